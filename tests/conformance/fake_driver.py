# ruff: noqa: N802  the driver's names
"""`cuda.bindings.driver` without a GPU, as far as `common.model.device_memory.Driver` goes.

Structures and names are the binding's own. The memory of its devices is memory files, so that other
processes map them and keep them when their maker dies. It is as unkind as CUDA is allowed to be:
new memory holds rubbish, what was not asked for is not shared, a write to a mapping that may only
be read is the end of the process, and arguments that CUDA would not take are refused.
"""

import ctypes
import mmap
import os
from dataclasses import dataclass
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import torch

from common.model.device_memory import Mapping
from common.model.shared_device_weights import Cuda

binding: Any = import_module("cuda.bindings.driver")

BLOCK_BYTES = 1 << 16
FILE_NAME = "fake-gpu"
_RUBBISH = b"\xdb"
_FIXED = 0x10  # MAP_FIXED

_OK = binding.CUresult.CUDA_SUCCESS
_INVALID = binding.CUresult.CUDA_ERROR_INVALID_VALUE
_FULL = binding.CUresult.CUDA_ERROR_OUT_OF_MEMORY
_NOT_SUPPORTED = binding.CUresult.CUDA_ERROR_NOT_SUPPORTED
_NOT_PERMITTED = binding.CUresult.CUDA_ERROR_NOT_PERMITTED
_BY_DESCRIPTOR = binding.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
_ON_DEVICE = binding.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
_PROTECTION = {
    binding.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READ: mmap.PROT_READ,
    binding.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE: mmap.PROT_READ | mmap.PROT_WRITE,
}
_ATTRIBUTES = binding.CUdevice_attribute

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_int64]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


@dataclass(eq=False)
class _Memory:
    fd: int
    n_bytes: int
    is_shared: bool


@dataclass(eq=False)
class _Range:
    """Of addresses."""

    n_bytes: int
    is_mapped: bool = False


class FakeDriver:
    """Plain attributes, set by a test at any time, say what goes wrong.

    attributes      what the device says to what it is asked
    free_bytes      how much memory it has
    refuses_export  no descriptor is given
    refuses_import  no descriptor is taken
    """

    CUdevice_attribute = binding.CUdevice_attribute
    CUmemAccessDesc = binding.CUmemAccessDesc
    CUmemAccess_flags = binding.CUmemAccess_flags
    CUmemAllocationGranularity_flags = binding.CUmemAllocationGranularity_flags
    CUmemAllocationHandleType = binding.CUmemAllocationHandleType
    CUmemAllocationProp = binding.CUmemAllocationProp
    CUmemAllocationType = binding.CUmemAllocationType
    CUmemLocationType = binding.CUmemLocationType

    def __init__(self, uuid: bytes = b"\x01" * 16) -> None:
        self.attributes = {
            _ATTRIBUTES.CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED: 1,
            _ATTRIBUTES.CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED: 1,
        }
        self.free_bytes = 1 << 30
        self.refuses_export = False
        self.refuses_import = False
        self._uuid = uuid
        self._is_begun = False
        self._handles: dict[int, _Memory] = {}
        self._ranges: dict[int, _Range] = {}
        self._n_handles = 0

    @property
    def n_handles(self) -> int:
        return len(self._handles)

    @property
    def n_ranges(self) -> int:
        return len(self._ranges)

    # --- the device ------------------------------------------------------------------------------

    def cuInit(self, Flags: int, /) -> tuple[Any, ...]:
        self._is_begun = True
        return (_INVALID if Flags else _OK,)

    def cuDeviceGet(self, ordinal: int, /) -> tuple[Any, ...]:
        if not self._is_begun:
            return binding.CUresult.CUDA_ERROR_NOT_INITIALIZED, None
        if ordinal:
            return binding.CUresult.CUDA_ERROR_INVALID_DEVICE, None
        return _OK, binding.CUdevice(ordinal)

    def cuDeviceGetAttribute(self, attrib: object, dev: object, /) -> tuple[Any, ...]:
        assert isinstance(dev, binding.CUdevice)
        return _OK, self.attributes.get(attrib, 0)

    def cuDeviceGetUuid(self, dev: object, /) -> tuple[Any, ...]:
        assert isinstance(dev, binding.CUdevice)
        return _OK, SimpleNamespace(bytes=self._uuid)

    # --- memory ----------------------------------------------------------------------------------

    def cuMemGetAllocationGranularity(self, prop: object, option: object, /) -> tuple[Any, ...]:
        if not _is_plain(prop) or not isinstance(option, self.CUmemAllocationGranularity_flags):
            return _INVALID, None
        return _OK, BLOCK_BYTES

    def cuMemCreate(self, size: int, prop: Any, flags: int, /) -> tuple[Any, ...]:  # noqa: ANN401
        if not _is_plain(prop) or size % BLOCK_BYTES or not size or flags:
            return _INVALID, None
        if size > self.free_bytes:
            return _FULL, None
        fd = os.memfd_create(FILE_NAME, os.MFD_CLOEXEC)
        os.write(fd, _RUBBISH * size)
        is_shared = prop.requestedHandleTypes == _BY_DESCRIPTOR
        return _OK, self._handle(_Memory(fd, size, is_shared=is_shared))

    def cuMemRelease(self, handle: object, /) -> tuple[Any, ...]:
        os.close(self._handles.pop(_number(handle)).fd)
        return (_OK,)

    def cuMemExportToShareableHandle(
        self, handle: object, handleType: object, flags: int, /
    ) -> tuple[Any, ...]:
        memory = self._handles[_number(handle)]
        if self.refuses_export or not memory.is_shared:
            return _NOT_PERMITTED, None
        if handleType != _BY_DESCRIPTOR or flags:
            return _INVALID, None
        return _OK, os.dup(memory.fd)

    def cuMemImportFromShareableHandle(
        self, osHandle: int, shHandleType: object, /
    ) -> tuple[Any, ...]:
        is_ours = FILE_NAME in os.readlink(f"/proc/self/fd/{osHandle}")  # noqa: PTH115
        if self.refuses_import:
            return _NOT_SUPPORTED, None
        if shHandleType != _BY_DESCRIPTOR or not is_ours:
            return _INVALID, None
        n_bytes = os.fstat(osHandle).st_size
        return _OK, self._handle(_Memory(os.dup(osHandle), n_bytes, is_shared=True))

    # --- addresses -------------------------------------------------------------------------------

    def cuMemAddressReserve(
        self, size: int, alignment: int, addr: int, flags: int, /
    ) -> tuple[Any, ...]:
        if size % mmap.PAGESIZE or not size or alignment or addr or flags:
            return _INVALID, None
        address = _mmap(None, size, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1)
        self._ranges[address] = _Range(size)
        return _OK, binding.CUdeviceptr(address)

    def cuMemAddressFree(self, ptr: int, size: int, /) -> tuple[Any, ...]:
        there = self._ranges.get(ptr)
        if there is None or there.is_mapped or there.n_bytes != size:
            return (_INVALID,)
        _libc.munmap(ptr, size)
        del self._ranges[ptr]
        return (_OK,)

    def cuMemMap(
        self, ptr: int, size: int, offset: int, handle: object, flags: int, /
    ) -> tuple[Any, ...]:
        there, memory = self._ranges.get(ptr), self._handles[_number(handle)]
        if there is None or there.is_mapped or size != there.n_bytes:
            return (_INVALID,)
        if size > memory.n_bytes or size % BLOCK_BYTES or offset or flags:
            return (_INVALID,)
        _mmap(ptr, size, 0, mmap.MAP_SHARED | _FIXED, memory.fd)
        there.is_mapped = True
        return (_OK,)

    def cuMemUnmap(self, ptr: int, size: int, /) -> tuple[Any, ...]:
        there = self._ranges.get(ptr)
        if there is None or not there.is_mapped or there.n_bytes != size:
            return (_INVALID,)
        _mmap(ptr, size, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _FIXED, -1)
        there.is_mapped = False
        return (_OK,)

    def cuMemSetAccess(
        self, ptr: int, size: int, desc: list[Any], count: int, /
    ) -> tuple[Any, ...]:
        there = self._ranges.get(ptr)
        if there is None or not there.is_mapped or there.n_bytes != size:
            return (_INVALID,)
        if count != 1 or desc[0].location.type != _ON_DEVICE or desc[0].location.id:
            return (_INVALID,)
        assert not _libc.mprotect(ptr, size, _PROTECTION[desc[0].flags])
        return (_OK,)

    def _handle(self, memory: _Memory) -> object:
        self._n_handles += 1
        self._handles[self._n_handles] = memory
        return binding.CUmemGenericAllocationHandle(self._n_handles)


class FakeCuda(Cuda):
    """A device whose tensors torch takes for the CPU's. `device`: not torch's name of the CPU, so
    that it counts as another."""

    def __init__(self, driver: FakeDriver | None = None) -> None:
        super().__init__(torch.device("cpu", 0))
        self.fake = driver or FakeDriver()

    def driver(self) -> FakeDriver:
        return self.fake

    def tensor(self, mapping: Mapping) -> torch.Tensor:
        memory = (ctypes.c_ubyte * mapping.n_bytes).from_address(mapping.address)
        return torch.frombuffer(memory, dtype=torch.uint8)

    def synchronize(self) -> None:
        """What is asked of it is done at once."""


def _is_plain(prop: Any) -> bool:  # noqa: ANN401
    kind = binding.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    return prop.type == kind and prop.location.type == _ON_DEVICE and prop.location.id == 0


def _number(handle: Any) -> int:  # noqa: ANN401
    assert isinstance(handle, binding.CUmemGenericAllocationHandle)
    return int(handle)


def _mmap(address: int | None, n_bytes: int, protection: int, flags: int, fd: int) -> int:
    mapped = _libc.mmap(address, n_bytes, protection, flags, fd, 0)
    assert mapped != ctypes.c_void_p(-1).value, os.strerror(ctypes.get_errno())
    return mapped
