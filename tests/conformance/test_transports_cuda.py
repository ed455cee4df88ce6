"""What pages on GPUs promise beyond what all transports do: who opens them, until when, and which
way they go where nobody can."""

import fcntl
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest

from common.errors import PeerError, SetupError
from common.ids import HostId
from common.messages import RegionKey
from tests.conformance.fake_cuda import FakeCuda, Gpu
from tests.conformance.transports_reader import (
    PAGE_BYTES,
    TIMEOUT_S,
    OwnerProcess,
    Reader,
    copies_of,
    until,
)
from transfer.api import Status
from transfer.cuda_device import CudaDevice, CudaStream, Runtime, cupy_runtime
from transfer.cuda_memory import DevicePages, PeerDevicePages
from transfer.memory import SEALS
from transfer.open import open_transport
from transfer.tickets import Reason

TWO = ("0000:01:00.0", "0000:41:00.0")
SECOND = Gpu(number=1, bus_ids=TWO)
FIRST = Gpu(number=0, bus_ids=TWO)
FIRST_READS_SECOND = Gpu(number=0, bus_ids=TWO, peers=((0, 1),))


@pytest.fixture
def device() -> Iterator[CudaDevice]:
    cuda, device = Gpu().open()
    yield device
    cuda.end_process()


def n_fds() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def fake_of(reader: Reader) -> FakeCuda:
    assert reader.cuda is not None
    return reader.cuda


def only_by_cuda(key: RegionKey) -> RegionKey:
    return msgspec.structs.replace(key, doors={"cuda_ipc": key.doors["cuda_ipc"]})


# --- which way -----------------------------------------------------------------------------------


def test_another_device_is_read_where_it_can_be(tmp_path: Path) -> None:
    with (
        OwnerProcess("auto", tmp_path, gpu=SECOND) as owner,
        Reader("auto", tmp_path, gpu=FIRST_READS_SECOND) as reader,
    ):
        copies = copies_of(owner.do("write", range(64)), range(64))
        assert reader.pull(owner.key, copies) == (Status.DONE, "")
        assert reader.holds(copies)
        assert fake_of(reader).n_opened == 1


@pytest.mark.parametrize("reader_gpu", [FIRST, Gpu()], ids=["no peer access", "not visible"])
def test_a_device_that_cannot_be_read_is_gone_round(reader_gpu: Gpu, tmp_path: Path) -> None:
    with (
        OwnerProcess("auto", tmp_path, gpu=SECOND) as owner,
        Reader("auto", tmp_path, gpu=reader_gpu) as reader,
    ):
        copies = copies_of(owner.do("write", range(64)), range(64))
        assert reader.pull(owner.key, copies) == (Status.DONE, "")
        assert reader.holds(copies)
        assert fake_of(reader).n_opened == 0
        status, why = reader.pull(only_by_cuda(owner.key), copies)
        assert status is Status.FAILED
        assert why == (
            f"unreachable: cuda_ipc: device {TWO[1]} cannot be read from {TWO[0]}; "
            "tcp: its pages are not offered so"
        )


@pytest.mark.parametrize(
    ("owner_gpu", "reader_gpu", "n_launches"),
    [(Gpu(), Gpu(), 1), (SECOND, FIRST_READS_SECOND, 0)],
    ids=["one device", "two"],
)
def test_scattered_pages_of_one_device_are_copied_by_one_kernel(
    owner_gpu: Gpu, reader_gpu: Gpu, n_launches: int, tmp_path: Path
) -> None:
    with (
        OwnerProcess("cuda_ipc", tmp_path, gpu=owner_gpu) as owner,
        Reader("cuda_ipc", tmp_path, gpu=reader_gpu) as reader,
    ):
        copies = copies_of(owner.do("write", range(64)), [page * 37 % 64 for page in range(64)])
        before = fake_of(reader).n_runs_kernels  # compiled by then
        assert before > 0
        assert reader.pull(owner.key, copies) == (Status.DONE, "")
        assert reader.holds(copies)
        assert fake_of(reader).n_runs_kernels - before == n_launches


def test_another_host_is_another_way(tmp_path: Path) -> None:
    with (
        OwnerProcess("auto", tmp_path, gpu=Gpu()) as owner,
        Reader("auto", tmp_path, gpu=Gpu()) as reader,
    ):
        copies = copies_of(owner.do("write", [3]), [5])
        elsewhere = msgspec.structs.replace(owner.key, host=HostId("elsewhere"))
        assert reader.transport.way(elsewhere) == ("tcp+pinned", "cuda_ipc: another host")
        assert reader.pull(elsewhere, copies) == (Status.DONE, "")
        assert reader.holds(copies)
        assert fake_of(reader).n_opened == 0
        _, why = reader.pull(only_by_cuda(elsewhere), copies)
        assert why.startswith("unreachable: cuda_ipc: another host")


def test_where_cuda_opens_nothing_pages_go_another_way_from_then_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        OwnerProcess("auto", tmp_path, gpu=Gpu()) as owner,
        Reader("auto", tmp_path, gpu=Gpu()) as reader,
    ):
        fake_of(reader).refuses_ipc = True
        copies = copies_of(owner.do("write", range(64)), range(64))
        status, why = reader.pull(owner.key, copies)
        assert (status, why.split(":")[0]) == (Status.FAILED, Reason.REFUSED)
        assert f"memory of device {TWO[0]} cannot be opened" in why
        assert "event=pages_come_otherwise peer=0wner" in caplog.text
        assert reader.pull(owner.key, copies) == (Status.DONE, "")
        assert reader.holds(copies)
        reader.transport.forget(owner.key.owner)  # and is asked anew when it comes back
        fake_of(reader).refuses_ipc = False
        assert reader.pull(owner.key, copies) == (Status.DONE, "")
        assert fake_of(reader).n_opened == 1


@pytest.mark.parametrize(
    ("owner_gpu", "reader_gpu"), [(Gpu(), None), (None, Gpu())], ids=["to memory", "from memory"]
)
def test_a_gpu_and_a_cpu_exchange_pages(
    owner_gpu: Gpu | None, reader_gpu: Gpu | None, tmp_path: Path
) -> None:
    with (
        OwnerProcess("auto", tmp_path, gpu=owner_gpu) as owner,
        Reader("auto", tmp_path, gpu=reader_gpu) as reader,
    ):
        copies = copies_of(owner.do("write", range(64)), range(64))
        assert reader.pull(owner.key, copies) == (Status.DONE, "")
        assert reader.holds(copies)
        stale = copies_of(owner.do("announce", [7]), [7])
        owner.do("write", [7])
        assert reader.pull(owner.key, stale)[1].startswith("stale")


# --- what is opened, and until when --------------------------------------------------------------


def test_a_handle_that_opens_other_memory_is_refused(tmp_path: Path) -> None:
    with OwnerProcess("cuda_ipc", tmp_path) as owner, Reader("cuda_ipc", tmp_path) as reader:
        fake_of(reader).opens_other = True
        copies = copies_of(owner.do("write", range(64)), range(64))
        status, why = reader.pull(owner.key, copies)
        assert status is Status.FAILED
        assert why == f"refused: a handle of device {TWO[0]} opens other memory"
        assert fake_of(reader).n_opened == 0
        assert not reader.pages.any()


def test_a_dead_owner_s_memory_is_closed_at_once(tmp_path: Path) -> None:
    with OwnerProcess("cuda_ipc", tmp_path) as owner, Reader("cuda_ipc", tmp_path) as reader:
        copies = copies_of(owner.do("write", range(64)), range(64))
        fds = n_fds()
        reader.connect(owner.key)
        assert fake_of(reader).n_opened == 1
        owner.kill()
        until(lambda: reader.transport.stats().peers == 0)
        assert fake_of(reader).n_opened == 0
        assert n_fds() <= fds
        status, why = reader.pull(owner.key, copies)
        assert (status, why.split(":")[0]) == (Status.FAILED, Reason.UNREACHABLE)
        assert reader.transport.alive


def test_what_is_copied_as_its_owner_dies_does_not_count(tmp_path: Path) -> None:
    """Its memory gives rubbish from then on, and no generation says so."""
    failed = 0
    for delay_s in (0.0005, 0.001, 0.002, 0.004, 0.008):
        with (
            OwnerProcess("cuda_ipc", tmp_path) as owner,
            Reader("cuda_ipc", tmp_path, timeout_s=TIMEOUT_S) as reader,
        ):
            copies = copies_of(owner.do("write", range(64)), range(64))
            reader.connect(owner.key)
            tickets = [reader.start(owner.key, copies) for _ in range(4)]
            time.sleep(delay_s)
            owner.process.kill()
            for ticket in tickets:
                status = reader.finish(ticket)
                failed += status is Status.FAILED
                assert status is Status.FAILED or reader.holds(copies)
            assert reader.transport.alive
    assert failed


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_device_that_fails_ends_the_transport(tmp_path: Path) -> None:
    """Nothing that CUDA says can be trusted then: the worker must end."""
    with OwnerProcess("cuda_ipc", tmp_path) as owner, Reader("cuda_ipc", tmp_path) as reader:
        copies = copies_of(owner.do("write", range(64)), range(64))
        assert reader.pull(owner.key, copies) == (Status.DONE, "")
        fake_of(reader).has_failed = True
        assert reader.pull(owner.key, copies) == (Status.FAILED, "closed")
        until(lambda: not reader.transport.alive)
        assert reader.pull(owner.key, copies) == (Status.FAILED, "closed")


def test_exported_memory_is_freed_by_the_end_of_its_process_alone(device: CudaDevice) -> None:
    cuda = device.current()
    assert isinstance(cuda, FakeCuda)
    own, offered = DevicePages(device, 1, 4096), DevicePages(device, 1, 4096)
    offered.exported()
    for pages in (own, offered, own, offered):
        pages.close()
    assert cuda.n_made == 1


# --- the card ------------------------------------------------------------------------------------


def sealed(content: bytes, seals: int = SEALS) -> int:
    fd = os.memfd_create("card", os.MFD_ALLOW_SEALING)
    os.write(fd, content)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda file: sealed(file[:-4096]), "a file of 4096 bytes"),
        (lambda file: sealed(file, fcntl.F_SEAL_GROW), "could shrink"),
        (lambda file: sealed(file.replace(b'"handle"', b'"hundle"')), "undecodable card"),
        (lambda file: sealed(file[:4096] + bytes(4096)), "undecodable card"),
        (lambda file: sealed(file.replace(b'"n_bytes":2', b'"n_bytes":4')), "an allocation of 4"),
        (
            lambda file: sealed(file.replace(b'"handle":"', b'"handle":"AAAA')[:8192]),
            "length <= 64",
        ),
        (lambda file: sealed(file.replace(b"0000:01", b"0000:99")), "device 0000:99:00.0 cannot"),
    ],
)
def test_a_file_that_is_no_region_s_is_refused(
    harm: Callable[[bytes], int], said: str, device: CudaDevice
) -> None:
    memory = DevicePages(device, 2, 4096)
    fd = harm(os.pread(memory.exported().fd, 8192, 0))
    stream = CudaStream(device)
    with pytest.raises((ValueError, PeerError), match=said):
        PeerDevicePages(fd, (2, 4096), owner_pid=os.getpid(), device=device, stream=stream)
    os.close(fd)
    stream.close()
    memory.close()


def test_a_handle_of_this_very_process_is_not_opened(device: CudaDevice) -> None:
    memory, stream = DevicePages(device, 2, 4096), CudaStream(device)
    fds = n_fds()
    with pytest.raises(PeerError, match="cannot be opened"):
        PeerDevicePages(
            memory.exported().fd, (2, 4096), owner_pid=os.getpid(), device=device, stream=stream
        )
    assert n_fds() == fds
    stream.close()
    memory.close()


# --- memory of a device --------------------------------------------------------------------------


def test_memory_begins_as_zeros_and_is_read_and_written_by_pages(device: CudaDevice) -> None:
    memory = DevicePages(device, 3, PAGE_BYTES)
    assert not any(memory.pages[page].any() for page in range(3))
    memory.pages[2] = np.arange(PAGE_BYTES, dtype=np.uint64).astype(np.uint8)
    assert (memory.pages[2] == np.arange(PAGE_BYTES) % 256).all()
    assert not memory.pages[1].any()
    for page in (-1, 3):
        with pytest.raises(IndexError):
            memory.pages[page]
    with pytest.raises(ValueError, match="bytes for a page"):
        memory.pages[0] = np.zeros(4096, np.uint8)
    memory.close()


def test_its_pages_are_taken_as_an_array_without_a_copy(device: CudaDevice) -> None:
    memory = DevicePages(device, 3, 4096)
    array = np.asarray(SimpleNamespace(__array_interface__=memory.__cuda_array_interface__))
    assert (array.shape, array.dtype) == ((3, 4096), np.uint8)
    array[1] = 7
    assert (memory.pages[1] == 7).all()
    memory.close()


def test_memory_that_is_not_there_names_the_flag() -> None:
    cuda, device = Gpu().open()
    cuda.n_blocks = 1
    with pytest.raises(SetupError, match="of cuda:0: lower --kv-cache-memory-bytes"):
        DevicePages(device, 3, 4096)


def test_a_device_that_is_not_there_is_refused() -> None:
    with pytest.raises(SetupError, match="no device cuda:1: 1 are visible"):
        Gpu(number=1).open()


def test_pages_in_memory_are_not_offered_by_cuda(tmp_path: Path) -> None:
    with Reader("shm", tmp_path) as reader, pytest.raises(SetupError, match="pages in memory"):
        open_transport(
            "cuda_ipc",
            instance=reader.key.owner,
            host=reader.key.host,
            run_dir=tmp_path,
            listen_host="127.0.0.1",
            wake=lambda: None,
        )


# --- CuPy ----------------------------------------------------------------------------------------


def test_without_cupy_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("cupy", "cupy.cuda"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(SetupError, match=r"pip install 'baton-serving\[cuda\]'"):
        cupy_runtime()


def test_what_is_called_is_there_in_cupy() -> None:
    pytest.importorskip("cupy")
    runtime = cupy_runtime()
    calls = [name for name in vars(Runtime) if not name.startswith("_")]
    assert len(calls) == 20
    assert [name for name in calls if not hasattr(runtime, name)] == []
