"""A worker's pool, where its kernels compute: in shared memory, or on a CUDA device."""

from transfer.cuda_device import CudaDevice, cupy_runtime
from transfer.cuda_memory import DevicePages
from transfer.memory import SharedPages
from transfer.page_kernel import copy_runs


def make_pages(n_pages: int, page_bytes: int, device: int | None) -> SharedPages | DevicePages:
    """`device`: of CUDA, by the number that this process knows it by; None: in memory. Raises
    SetupError where the memory, or what it takes to reach it, is not there."""
    if device is None:
        return SharedPages(n_pages, page_bytes)
    return DevicePages(CudaDevice(cupy_runtime(), device, copy_runs), n_pages, page_bytes)


def device_of(pool: object) -> CudaDevice | None:
    """Where the pool lies; None: in memory."""
    return pool.device if isinstance(pool, DevicePages) else None
