"""Runs of bytes copied on a CUDA device by one kernel, beside the copies of `transfer.cuda_device`.

A call of CUDA for each of hundreds of pages takes longer than copying them does. Torch and Triton
are imported at the first copy: a process whose pages lie in memory needs neither here. Must not
know what a page is.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray


def copy_runs(
    device: int, stream: int, source: int, destination: int, runs_R3: NDArray[np.int64]
) -> None:
    """Implements `transfer.cuda_device.RunsKernel`."""
    import torch

    from common.kernels.triton.pages import ALIGN_BYTES, launch

    ends_2 = (runs_R3[:, :2] + runs_R3[:, 2:]).max(axis=0).tolist()
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
