"""Runs of bytes copied on a CUDA device by one kernel, beside the copies of `transfer.cuda_device`.

A call of CUDA for each of hundreds of pages takes longer than copying them does. Torch and Triton
are imported at the first copy: a process whose pages lie in memory needs neither here. Must not
know what a page is.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

_LONGEST_BYTES = 2**18
"""Of a run as the kernel has it. Its programs are as many for each run as the longest needs: beside
one of a hundred pages, those of a page would have a hundred times what they have to do."""


def copy_runs(
    device: int, stream: int, source: int, destination: int, runs_R3: NDArray[np.int64]
) -> None:
    """Implements `transfer.cuda_device.RunsKernel`."""
    import torch

    from common.kernels.triton.pages import ALIGN_BYTES, launch

    ends_2 = (runs_R3[:, :2] + runs_R3[:, 2:]).max(axis=0).tolist()
    runs_R3 = cut(runs_R3)
    longest = max(ALIGN_BYTES, int(runs_R3[:, 2].max()))
    on_stream = torch.cuda.ExternalStream(stream, device)
    with torch.cuda.device(device), torch.cuda.stream(on_stream):
        # torch keeps what it pins until the stream has passed, and gives out what was on the device
        # in the stream's order: neither has to be kept here
        table_R3 = torch.from_numpy(runs_R3).pin_memory().to(on_stream.device, non_blocking=True)
        source_B, destination_B = (
            torch.as_tensor(_Bytes(address, max(ALIGN_BYTES, end)), device=on_stream.device)
            for address, end in zip((source, destination), ends_2, strict=True)
        )
        launch(source_B, destination_B, table_R3, longest).run()


def cut(runs_R3: NDArray[np.int64]) -> NDArray[np.int64]:
    """The same bytes, in runs that are not too long."""
    n_R = np.maximum(1, -(-runs_R3[:, 2] // _LONGEST_BYTES))
    of_P = np.repeat(np.arange(len(runs_R3)), n_R)
    first_P = (np.arange(len(of_P)) - (np.cumsum(n_R) - n_R)[of_P]) * _LONGEST_BYTES
    pieces_P3 = runs_R3[of_P]
    pieces_P3[:, :2] += first_P[:, None]
    pieces_P3[:, 2] = np.minimum(pieces_P3[:, 2] - first_P, _LONGEST_BYTES)
    return pieces_P3


class _Bytes:
    """Memory of a device, as torch takes it for a tensor."""

    def __init__(self, address: int, n_bytes: int) -> None:
        self.__cuda_array_interface__: dict[str, Any] = {
            "version": 3,
            "shape": (n_bytes,),
            "typestr": "|u1",
            "data": (address, False),
            "strides": None,
        }
