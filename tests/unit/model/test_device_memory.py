"""What is asked of CUDA's driver, by a driver that refuses what CUDA would; see `FakeDriver`."""

import ctypes
import os
from contextlib import closing
from typing import Any

import pytest

from common.errors import SetupError
from common.model.device_memory import DeviceMemory, Mapping, NotShareable
from tests.conformance.fake_driver import BLOCK_BYTES, FakeDriver

N_BYTES = 3 * BLOCK_BYTES


def memory(driver: FakeDriver) -> DeviceMemory:
    return DeviceMemory(driver, 0)


def content(mapping: Mapping) -> ctypes.Array[ctypes.c_char]:
    return (ctypes.c_char * mapping.n_bytes).from_address(mapping.address)


def test_what_one_writes_another_reads_when_the_first_has_let_go() -> None:
    writer, reader = FakeDriver(), FakeDriver()
    made = memory(writer).create(N_BYTES)
    fd = made.export()
    with closing(made.map(writable=True)) as mapping:
        content(mapping)[-5:] = b"Baton"
    made.release()
    assert (writer.n_handles, writer.n_ranges) == (0, 0)
    taken = memory(reader).take(fd, N_BYTES)
    os.close(fd)
    with closing(taken.map(writable=False)) as mapping:
        taken.release()
        assert content(mapping)[-5:] == b"Baton"
    assert (reader.n_handles, reader.n_ranges) == (0, 0)


def test_more_than_there_is_is_not_mapped_and_leaves_nothing() -> None:
    driver = FakeDriver()
    fd = memory(driver).create(N_BYTES).export()
    taken = memory(driver).take(fd, N_BYTES + BLOCK_BYTES)
    os.close(fd)
    with pytest.raises(NotShareable, match="cuMemMap: CUDA_ERROR_INVALID_VALUE"):
        taken.map(writable=False)
    assert driver.n_ranges == 0


def test_what_is_no_memory_of_a_device_is_not_taken() -> None:
    fd = os.memfd_create("other")
    with pytest.raises(NotShareable, match="cuMemImportFromShareableHandle"):
        memory(FakeDriver()).take(fd, N_BYTES)
    os.close(fd)


def test_too_little_memory_is_the_operators_affair() -> None:
    driver = FakeDriver()
    driver.free_bytes = N_BYTES - 1
    with pytest.raises(SetupError, match=rf"{N_BYTES} bytes of cuda:0: .*OUT_OF_MEMORY"):
        memory(driver).create(N_BYTES)


@pytest.mark.parametrize("name", ["VIRTUAL_MEMORY_MANAGEMENT", "HANDLE_TYPE_POSIX_FILE_DESCRIPTOR"])
def test_a_device_that_cannot_says_so(name: str) -> None:
    driver = FakeDriver()
    name = f"CU_DEVICE_ATTRIBUTE_{name}_SUPPORTED"
    driver.attributes[getattr(driver.CUdevice_attribute, name)] = 0
    with pytest.raises(NotShareable, match=f"cuda:0 says no to {name}"):
        memory(driver)


def test_a_machine_without_a_driver_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_driver(_: FakeDriver, Flags: int) -> tuple[int]:
        raise RuntimeError(f"no libcuda.so.1, told {Flags}")

    monkeypatch.setattr(FakeDriver, "cuInit", no_driver)
    with pytest.raises(NotShareable, match="no_driver: no libcuda"):
        memory(FakeDriver())


def test_cuda_12_tells_mig_instances_apart_by_another_call() -> None:
    class Cuda12(FakeDriver):
        def cuDeviceGetUuid_v2(self, dev: object, /) -> tuple[Any, ...]:  # noqa: N802
            return FakeDriver(b"\x02" * 16).cuDeviceGetUuid(dev)

    assert memory(Cuda12(b"\x01" * 16)).uuid == "02" * 16
