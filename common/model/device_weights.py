"""The packed weights in a device's memory: one allocation, filled tensor by tensor from the file.

No more than one of the file's tensors is in host memory at a time.
"""

import torch
from torch import Tensor

from common.errors import InvariantBroken, SetupError
from common.kernels.matrix import Matrix
from common.model.packing import Placed
from common.model.shared_weights import Filler


def device_weights(
    placed: tuple[Placed, ...],
    n_bytes: int,
    dtype: torch.dtype,
    fill: Filler,
    device: torch.device,
) -> dict[str, Matrix]:
    """Every tensor, as plain rows. Raises SetupError where the device lacks the memory."""
    try:
        buffer = torch.empty(n_bytes, dtype=torch.uint8, device=device)
    except torch.OutOfMemoryError as error:
        raise SetupError(f"the weights take {n_bytes} bytes of {device}: {error}") from error
    tensors: dict[str, Matrix] = {e.packed.name: _view(buffer, e, dtype) for e in placed}
    fill(tensors)
    return tensors


def _view(buffer: Tensor, entry: Placed, dtype: torch.dtype) -> Tensor:
    if entry.is_packed(dtype):
        raise InvariantBroken(f"{entry.packed.name} would be packed for a CPU")
    return buffer[entry.offset : entry.offset + entry.n_bytes].view(dtype).view(entry.shape)
