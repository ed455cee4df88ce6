# ruff: noqa: N802  the driver's names
"""Memory of a CUDA device that goes from process to process as a file descriptor.

The driver counts who has it: it is there until its last descriptor is closed and its last mapping
is gone, in whatever processes those are; who made it may die (a handle of CUDA IPC dies with its
maker). By NVIDIA's own binding of the driver, which is imported where a device is opened and
nowhere before: machines without a GPU lack it. Must not know what lies in the memory.

Source: CUDA Driver API, "Virtual Memory Management".
"""

from collections.abc import Callable
from contextlib import ExitStack
from importlib import import_module
from typing import Any, Protocol, cast

from common.errors import BatonError, SetupError

Answer = tuple[Any, ...]
"""A CUresult, then what the call gives."""


class Driver(Protocol):
    """What is used of `cuda.bindings.driver`. Calls concern the device that they name, in whatever
    thread; what the driver lacks is a RuntimeError."""

    CUdevice_attribute: Any
    CUmemAccessDesc: Any
    CUmemAccess_flags: Any
    CUmemAllocationGranularity_flags: Any
    CUmemAllocationHandleType: Any
    CUmemAllocationProp: Any
    CUmemAllocationType: Any
    CUmemLocationType: Any

    def cuInit(self, Flags: int, /) -> Answer: ...
    def cuDeviceGet(self, ordinal: int, /) -> Answer: ...
    def cuDeviceGetAttribute(self, attrib: object, dev: object, /) -> Answer: ...
    def cuDeviceGetUuid(self, dev: object, /) -> Answer: ...
    def cuMemGetAllocationGranularity(self, prop: object, option: object, /) -> Answer: ...
    def cuMemCreate(self, size: int, prop: object, flags: int, /) -> Answer: ...
    def cuMemRelease(self, handle: object, /) -> Answer: ...
    def cuMemExportToShareableHandle(
        self, handle: object, handleType: object, flags: int, /
    ) -> Answer: ...
    def cuMemImportFromShareableHandle(self, osHandle: int, shHandleType: object, /) -> Answer: ...
    def cuMemAddressReserve(
        self, size: int, alignment: int, addr: int, flags: int, /
    ) -> Answer: ...
    def cuMemAddressFree(self, ptr: int, size: int, /) -> Answer: ...
    def cuMemMap(
        self, ptr: int, size: int, offset: int, handle: object, flags: int, /
    ) -> Answer: ...
    def cuMemUnmap(self, ptr: int, size: int, /) -> Answer: ...
    def cuMemSetAccess(self, ptr: int, size: int, desc: list[object], count: int, /) -> Answer: ...


class NotShareable(BatonError):
    """Why a device's memory does not go from process to process here. `status`: CUDA's name of
    what it answered; "": it was not asked."""

    def __init__(self, why: str, status: str = "") -> None:
        super().__init__(why)
        self.status = status


def nvidia_driver() -> Driver:
    """Raises NotShareable: the binding is not installed."""
    try:
        return cast("Driver", import_module("cuda.bindings.driver"))
    except ImportError as error:
        raise NotShareable(
            f"it takes cuda-bindings: pip install 'baton-serving[cuda]' ({error})"
        ) from error


class DeviceMemory:
    """Of one of the devices that this process sees.

    uuid         the device's, or a MIG instance's: the same in every process of the host
    block_bytes  allocations are multiples of it
    """

    def __init__(self, driver: Driver, number: int) -> None:
        """Raises NotShareable."""
        self._driver = driver
        self._number = number
        call(driver.cuInit, 0)
        device = call(driver.cuDeviceGet, number)
        attributes = driver.CUdevice_attribute
        for name in (
            "CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED",
            "CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED",
        ):
            if not call(driver.cuDeviceGetAttribute, getattr(attributes, name), device):
                raise NotShareable(f"cuda:{number} says no to {name}")
        # Of CUDA 12 this one tells MIG instances apart; CUDA 13 calls it cuDeviceGetUuid.
        get_uuid = getattr(driver, "cuDeviceGetUuid_v2", driver.cuDeviceGetUuid)
        self.uuid = bytes(call(get_uuid, device).bytes).hex()
        flags = driver.CUmemAllocationGranularity_flags
        self.block_bytes = int(
            call(
                driver.cuMemGetAllocationGranularity,
                self._properties(),
                flags.CU_MEM_ALLOC_GRANULARITY_RECOMMENDED,
            )
        )

    def create(self, n_bytes: int) -> "Allocation":
        """New memory, of unknown content. Raises SetupError where there is too little,
        NotShareable."""
        try:
            handle = call(self._driver.cuMemCreate, n_bytes, self._properties(), 0)
        except NotShareable as error:
            if error.status != "CUDA_ERROR_OUT_OF_MEMORY":
                raise
            raise SetupError(f"{n_bytes} bytes of cuda:{self._number}: {error}") from error
        return Allocation(self._driver, self._number, handle, n_bytes)

    def take(self, fd: int, n_bytes: int) -> "Allocation":
        """What another process made, or this one. Does not keep `fd`. Raises NotShareable."""
        handle = call(self._driver.cuMemImportFromShareableHandle, fd, self._by_descriptor)
        return Allocation(self._driver, self._number, handle, n_bytes)

    @property
    def _by_descriptor(self) -> object:
        types = self._driver.CUmemAllocationHandleType
        return types.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR

    def _properties(self) -> object:
        driver = self._driver
        properties = driver.CUmemAllocationProp()
        properties.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        properties.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        properties.location.id = self._number
        properties.requestedHandleTypes = self._by_descriptor
        return properties


class Allocation:
    """A reference to memory, of which `n_bytes` will be mapped."""

    def __init__(self, driver: Driver, number: int, handle: object, n_bytes: int) -> None:
        self._driver = driver
        self._number = number
        self._handle = handle
        self._n_bytes = n_bytes

    def export(self) -> int:
        """A descriptor of it: the caller's to close. Raises NotShareable."""
        types = self._driver.CUmemAllocationHandleType
        by_descriptor = types.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
        return int(call(self._driver.cuMemExportToShareableHandle, self._handle, by_descriptor, 0))

    def map(self, *, writable: bool) -> "Mapping":
        """At an address of this process, where kernels that write it fail unless `writable`. Raises
        NotShareable: it is smaller, or cannot be mapped."""
        driver, n_bytes = self._driver, self._n_bytes
        with ExitStack() as undo:
            address = int(call(driver.cuMemAddressReserve, n_bytes, 0, 0, 0))
            undo.callback(call, driver.cuMemAddressFree, address, n_bytes)
            call(driver.cuMemMap, address, n_bytes, 0, self._handle, 0)
            undo.callback(call, driver.cuMemUnmap, address, n_bytes)
            self._allow(address, writable=writable)
            return Mapping(address, n_bytes, undo.pop_all())

    def release(self) -> None:
        """Once. Mappings stay good, and hold the memory."""
        call(self._driver.cuMemRelease, self._handle)

    def _allow(self, address: int, *, writable: bool) -> None:
        driver = self._driver
        flags = driver.CUmemAccess_flags
        access = driver.CUmemAccessDesc()
        access.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        access.location.id = self._number
        access.flags = (
            flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
            if writable
            else flags.CU_MEM_ACCESS_FLAGS_PROT_READ
        )
        call(driver.cuMemSetAccess, address, self._n_bytes, [access], 1)


class Mapping:
    """Memory at an address of this process, for as long as that lives, or until it is closed."""

    def __init__(self, address: int, n_bytes: int, undo: ExitStack) -> None:
        self.address = address
        self.n_bytes = n_bytes
        self._undo = undo

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """By which torch takes it for [n_bytes] of uint8, uncopied. That it may not be written is
        not told: torch refuses arrays that say so."""
        return {
            "version": 3,
            "shape": (self.n_bytes,),
            "typestr": "|u1",
            "data": (self.address, False),
            "strides": None,
        }

    def close(self) -> None:
        """When nothing uses it any more, on the device either. Idempotent."""
        self._undo.close()


def call(function: Callable[..., Answer], *arguments: object) -> Any:  # noqa: ANN401 - the binding's
    """What the driver's function gives. Raises NotShareable: it refuses, or is not there."""
    name = getattr(function, "__name__", "CUDA's driver")
    try:
        status, *given = function(*arguments)
    except RuntimeError as error:  # no driver, or an older one
        raise NotShareable(f"{name}: {error}") from error
    if int(status):
        raise NotShareable(f"{name}: {status.name}", status.name)
    return given[0] if given else None
