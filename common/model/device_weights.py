"""The packed weights in a device's memory: one allocation, filled tensor by tensor from the file,
of this process's own or shared with others.

No more than one of the file's tensors is in host memory at a time.
"""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch

from common.errors import SetupError
from common.kernels.matrix import Matrix
from common.log import line
from common.model.device_memory import NotShareable
from common.model.packing import Placed
from common.model.shared_device_weights import Cuda, Layout, SharedDeviceWeights
from common.model.shared_weights import Filler

_log = logging.getLogger(__name__)


class DeviceWeights(NamedTuple):
    """`common_bytes`: of the one copy on the device that workers share, whether or not this process
    could open it; 0: there is none."""

    tensors: dict[str, Matrix]
    shared: SharedDeviceWeights | None
    common_bytes: int


def device_weights(
    placed: tuple[Placed, ...],
    n_bytes: int,
    dtype: torch.dtype,
    fill: Filler,
    device: torch.device,
) -> dict[str, Matrix]:
    """Every tensor, as plain rows, in memory of one's own. Raises SetupError where the device lacks
    it."""
    try:
        buffer = torch.empty(n_bytes, dtype=torch.uint8, device=device)
    except torch.OutOfMemoryError as error:
        raise SetupError(f"the weights take {n_bytes} bytes of {device}: {error}") from error
    tensors = Layout(placed, n_bytes, dtype).views(buffer)
    fill(tensors)
    return tensors


def common_weights(
    layout: Layout, fill: Filler, waiting: Callable[[int], None], cuda: Cuda, at: tuple[Path, str]
) -> DeviceWeights:
    """Every tensor, of the copy that workers on the device share; where it cannot be had, a line of
    the log says why, and the copy is one's own.

    `at`: the directory where they meet, and a key, equal only for equal bytes. `waiting`: see
    `Rendezvous.obtain`. Raises SetupError: too little memory, or a copy of something else.
    """
    shared: SharedDeviceWeights | None = None
    try:
        shared = SharedDeviceWeights(cuda, *at, layout)
        tensors = shared.open(fill, _saying_so(waiting))
    except NotShareable as error:
        _log.warning(line("weights_not_shared", device=str(cuda.device), why=str(error)))
        common_bytes = shared.n_bytes if shared is not None and shared.is_there else 0
        _close(shared)
        tensors = device_weights(layout.placed, layout.n_bytes, layout.dtype, fill, cuda.device)
        return DeviceWeights(tensors, None, common_bytes)
    except BaseException:
        _close(shared)
        raise
    _log.info(
        line(
            "weights_shared",
            device=str(cuda.device),
            bytes=shared.n_bytes,
            loaded="here" if shared.is_made_here else "elsewhere",
        )
    )
    return DeviceWeights(tensors, shared, shared.n_bytes)


def _saying_so(waiting: Callable[[int], None]) -> Callable[[int], None]:
    """And a line of the log, once, for each process that is waited for."""
    awaited = {0}  # who has not said yet who it is

    def wait(process_id: int) -> None:
        if process_id not in awaited:
            awaited.add(process_id)
            _log.info(line("weights_awaited", loaded_by=process_id))
        waiting(process_id)

    return wait


def _close(shared: SharedDeviceWeights | None) -> None:
    if shared is not None:
        shared.close()
