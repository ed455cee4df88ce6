"""Which rows of a pass decode attention computes and which prefill: arrays on the device.

Sequences with one row are decoded; the rows of longer ones are cut into tiles of queries. In
float32 that does not change a row's result (law 3). Must not know pages or import Triton.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from common.kernels.attention_plan import Sequences

# B sequences  I of them with one row  X tiles  M pages of the longest table


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRows:
    """All int32.

    single_I       sequences with one row
    longest_keys   of those, in tokens
    tile_X2        sequence and first of `tile_tokens` of its queries; most keys first
    start_B1, len_B, tables_BM  as in `Sequences`
    """

    single_I: Tensor
    longest_keys: int
    tile_X2: Tensor
    start_B1: Tensor
    len_B: Tensor
    tables_BM: Tensor

    @staticmethod
    def of(sequences: Sequences, tile_tokens: int, device: torch.device) -> "DeviceRows":
        n_rows_B = np.diff(sequences.start_B1)
        single_I = np.flatnonzero(n_rows_B == 1)

        def on_device(array: NDArray[np.generic]) -> Tensor:
            return tensor_of(np.ascontiguousarray(array, np.int32), device)

        return DeviceRows(
            single_I=on_device(single_I),
            longest_keys=int(sequences.len_B[single_I].max(initial=0)),
            tile_X2=on_device(_tiles(sequences, n_rows_B, tile_tokens)),
            start_B1=on_device(sequences.start_B1),
            len_B=on_device(sequences.len_B),
            tables_BM=on_device(sequences.tables_BM),
        )


def tensor_of(array: NDArray[np.generic], device: torch.device) -> Tensor:
    """On the device; in memory it shares the array's. Nobody waits for what the device has to do
    before: from memory that is not pinned CUDA may copy when it has."""
    tensor = torch.from_numpy(array)
    if device.type == "cuda":
        tensor = tensor.pin_memory()  # which torch keeps until the copy is made
    return tensor.to(device, non_blocking=True)


def _tiles(
    sequences: Sequences, n_rows_B: NDArray[np.int32], tile_tokens: int
) -> NDArray[np.int64]:
    tiles = [
        (b, first)
        for b in np.flatnonzero(n_rows_B > 1)
        for first in range(0, int(n_rows_B[b]), tile_tokens)
    ]
    tile_X2 = np.array(tiles, np.int64).reshape(-1, 2)
    seq_X, first_X = tile_X2[:, 0], tile_X2[:, 1]
    n_keys_X = sequences.len_B[seq_X] - n_rows_B[seq_X] + first_X
    return tile_X2[np.argsort(-n_keys_X, kind="stable")]
