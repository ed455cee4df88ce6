"""One copy of the weights on a GPU, by a driver whose memory is files; see `FakeDriver`."""

import itertools
import logging
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from common.errors import SetupError
from common.kernels.matrix import Matrix, plain
from common.model import shared_device_weights
from common.model.device_memory import Mapping, NotShareable
from common.model.device_weights import DeviceWeights, common_weights
from common.model.packing import Packed, place
from common.model.shared_device_weights import Layout, SharedDeviceWeights
from common.model.shared_weights import Filler
from tests.conformance.fake_driver import BLOCK_BYTES, FakeCuda, FakeDriver

LAYOUT = Layout(
    *place((Packed("a", (3, 5), (("a", 3),)), Packed("b", (2,), (("b", 2),))), torch.float32),
    torch.float32,
)


def fill(tensors: dict[str, Matrix]) -> None:
    for i, tensor in enumerate(tensors.values()):
        plain(tensor).copy_(torch.arange(plain(tensor).numel()).view(plain(tensor).shape) + 100 * i)


def refuse_to_fill(tensors: dict[str, Matrix]) -> None:
    raise AssertionError(f"filled twice: {list(tensors)}")


def ignore(process_id: int) -> None:
    del process_id


def check_values(tensors: dict[str, Matrix]) -> None:
    assert torch.equal(plain(tensors["a"]), torch.arange(15.0).view(3, 5))
    assert torch.equal(plain(tensors["b"]), torch.tensor([100.0, 101.0]))
    assert all(plain(t).data_ptr() % 64 == 0 for t in tensors.values())


def n_open() -> int:
    """Descriptors of this process."""
    return len(list(Path("/proc/self/fd").iterdir()))


class Worker:
    """What a process does, with a driver of its own."""

    def __init__(
        self, run_dir: Path, *, key: str = "k", layout: Layout = LAYOUT, uuid: bytes = b"\x01" * 16
    ) -> None:
        self.cuda = FakeCuda(FakeDriver(uuid))
        self.driver = self.cuda.fake
        self._at = (run_dir, key)
        self._layout = layout
        self._weights: DeviceWeights | None = None

    def load(self, filler: Filler = refuse_to_fill) -> DeviceWeights:
        self._weights = common_weights(self._layout, filler, ignore, self.cuda, self._at)
        return self._weights

    def close(self) -> None:
        if self._weights is not None and self._weights.shared is not None:
            self._weights.shared.close()


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return tmp_path / "run"


@pytest.fixture
def pair(run_dir: Path) -> Iterator[tuple[Worker, Worker]]:
    workers = Worker(run_dir), Worker(run_dir)
    yield workers
    for worker in workers:
        worker.close()


def test_the_second_sees_what_the_first_filled(
    pair: tuple[Worker, Worker], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    first, second = pair
    mine, yours = first.load(fill), second.load()
    check_values(mine.tensors)
    check_values(yours.tensors)
    assert mine.common_bytes == yours.common_bytes == BLOCK_BYTES
    assert f"event=weights_shared device=cpu:0 bytes={BLOCK_BYTES} loaded=here" in caplog.text
    assert f"event=weights_shared device=cpu:0 bytes={BLOCK_BYTES} loaded=elsewhere" in caplog.text
    for worker in pair:  # a mapping each, which holds the memory by itself
        assert (worker.driver.n_handles, worker.driver.n_ranges) == (0, 1)


def test_of_two_at_once_one_waits_and_says_so(
    pair: tuple[Worker, Worker], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    first, second = pair
    is_begun = threading.Event()

    def fill_slowly(tensors: dict[str, Matrix]) -> None:
        is_begun.set()
        time.sleep(0.2)
        fill(tensors)

    loading = threading.Thread(target=first.load, args=(fill_slowly,))
    loading.start()
    is_begun.wait()
    check_values(second.load().tensors)
    loading.join()
    told = [record.message for record in caplog.records if "weights_awaited" in record.message]
    assert told == [f"event=weights_awaited loaded_by={os.getpid()}"]


def test_who_comes_later_gets_them_from_who_is_left(run_dir: Path) -> None:
    workers = [Worker(run_dir) for _ in range(4)]
    workers[0].load(fill)
    for leaving, newcomer in itertools.pairwise(workers):
        check_values(newcomer.load().tensors)
        leaving.close()
    workers[-1].close()
    again = Worker(run_dir)
    check_values(again.load(fill).tensors)
    again.close()


@pytest.mark.parametrize(
    ("key", "uuid"), [("other", b"\x01" * 16), ("k", b"\x02" * 16)], ids=["content", "GPU"]
)
def test_others_weights_and_those_on_other_gpus_are_others(
    run_dir: Path, key: str, uuid: bytes
) -> None:
    first, second = Worker(run_dir), Worker(run_dir, key=key, uuid=uuid)
    first.load(fill)
    check_values(second.load(fill).tensors)
    for worker in (first, second):
        worker.close()


SAME_SIZE = Layout(LAYOUT.placed, LAYOUT.n_bytes, torch.int32)
SHORTER = Layout(LAYOUT.placed[:1], LAYOUT.placed[1].offset, torch.float32)


@pytest.mark.parametrize("layout", [SAME_SIZE, SHORTER], ids=["dtype", "tensors"])
def test_what_was_not_expected_is_refused(run_dir: Path, layout: Layout) -> None:
    first, other = Worker(run_dir), Worker(run_dir, layout=layout)
    first.load(fill)
    with pytest.raises(SetupError, match=r"are not those expected .*name another --run-dir"):
        other.load()
    assert (other.driver.n_handles, other.driver.n_ranges) == (0, 0)
    first.close()


def test_what_is_too_small_is_not_opened(run_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    big = place((Packed("a", (BLOCK_BYTES, 5), (("a", BLOCK_BYTES),)),), torch.float32)
    first, other = Worker(run_dir), Worker(run_dir, layout=Layout(*big, torch.float32))
    first.load(fill)
    assert other.load(fill).shared is None
    assert 'why="cuMemMap: CUDA_ERROR_INVALID_VALUE"' in caplog.text
    first.close()


def test_where_nothing_can_be_shared_each_has_a_copy_and_says_why(
    pair: tuple[Worker, Worker], caplog: pytest.LogCaptureFixture
) -> None:
    for worker in pair:
        worker.driver.refuses_export = True
        loaded = worker.load(fill)
        check_values(loaded.tensors)
        assert loaded.shared is None
        assert loaded.common_bytes == 0
        assert worker.driver.n_handles == worker.driver.n_ranges == 0
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 2
    assert "event=weights_not_shared device=cpu:0 why=" in caplog.text
    assert "cuMemExportToShareableHandle: CUDA_ERROR_NOT_PERMITTED" in caplog.text


def test_who_cannot_open_the_copy_has_its_own_and_pays_for_both(
    pair: tuple[Worker, Worker], caplog: pytest.LogCaptureFixture
) -> None:
    first, second = pair
    first.load(fill)
    second.driver.refuses_import = True
    loaded = second.load(fill)
    check_values(loaded.tensors)
    assert loaded.shared is None
    assert loaded.common_bytes == BLOCK_BYTES
    assert "cuMemImportFromShareableHandle: CUDA_ERROR_NOT_SUPPORTED" in caplog.text


def test_a_filler_that_fails_leaves_the_place_to_the_next(pair: tuple[Worker, Worker]) -> None:
    def fail(tensors: dict[str, Matrix]) -> None:
        raise SetupError(f"truncated after {len(tensors)} tensors")

    failing, next_one = pair
    n_fds = n_open()
    with pytest.raises(SetupError, match="truncated"):
        failing.load(fail)
    assert n_open() == n_fds
    assert (failing.driver.n_handles, failing.driver.n_ranges) == (0, 0)
    check_values(next_one.load(fill).tensors)


def test_too_little_memory_is_refused(run_dir: Path) -> None:
    worker = Worker(run_dir)
    worker.driver.free_bytes = BLOCK_BYTES - 1
    with pytest.raises(SetupError, match="bytes of cuda:0: cuMemCreate"):
        worker.load(fill)


def test_a_hundred_openings_leave_no_descriptor(run_dir: Path) -> None:
    first = Worker(run_dir)
    first.load(fill)

    def open_and_close() -> None:
        worker = Worker(run_dir)
        worker.load()
        worker.close()

    open_and_close()  # `first` serves by now
    n_fds = n_open()
    for _ in range(100):
        open_and_close()
    assert n_open() <= n_fds + 1  # the connection that was served last may be closing
    first.close()


@pytest.mark.parametrize("refuses", [True, False], ids=["refuses", "copies"])
def test_where_torch_does_not_take_what_is_mapped_each_has_a_copy(
    run_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    *,
    refuses: bool,
) -> None:
    def as_tensor(mapping: Mapping, device: torch.device) -> torch.Tensor:
        if refuses:
            raise RuntimeError("The specified pointer resides on host memory")
        return torch.zeros(mapping.n_bytes, dtype=torch.uint8, device=device)

    class Cuda(FakeCuda):
        tensor = shared_device_weights.Cuda.tensor

    monkeypatch.setattr(torch, "as_tensor", as_tensor)
    worker = Worker(run_dir)
    worker.cuda = Cuda(worker.driver)
    loaded = worker.load(fill)
    check_values(loaded.tensors)
    assert (loaded.shared, loaded.common_bytes) == (None, 0)
    assert (worker.driver.n_handles, worker.driver.n_ranges) == (0, 0)
    assert "event=weights_not_shared" in caplog.text


def test_a_device_without_a_driver_shares_nothing(run_dir: Path) -> None:
    class Driverless(FakeCuda):
        def driver(self) -> FakeDriver:
            raise NotShareable("it takes cuda-bindings")

    with pytest.raises(NotShareable, match="cuda-bindings"):
        SharedDeviceWeights(Driverless(), run_dir, "k", LAYOUT)
    assert not run_dir.exists()
