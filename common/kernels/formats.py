"""How weights are kept, and rows of weights as their source stores them: bytes, group by group.

A group is inputs that share a scale. Its bytes are the scales, then the codes. Must not multiply:
kernels read what `common.kernels.matrix` packs of such rows.
"""

from enum import StrEnum

import numpy as np
import torch
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize
from torch import Tensor

# R rows  I inputs  B bytes of a row

_LARGEST = 127  # of int8's codes: -128 would have no opposite
_SCALE_BYTES = 4  # of an int8 row
_GROUP, _Q8_0_SCALE_BYTES = 32, 2


class WeightFormat(StrEnum):
    """Named as in `cpu/matrix.h`."""

    PLAIN = "plain"  # in the dtype of the rows that they multiply
    INT8 = "int8"  # a row is one group, its scale a float32
    Q8_0 = "q8_0"  # GGUF's, in groups of 32: code * scale
    Q4_1 = "q4_1"  # GGUF's, in groups of 32: code * scale + minimum


def encode_int8(rows_RI: Tensor) -> Tensor:
    """float32 rows as int8's: uint8 [R, B]. A row's largest magnitude has the largest code."""
    scale_R1 = rows_RI.abs().amax(-1, keepdim=True) / _LARGEST
    codes_RI = (rows_RI / scale_R1).nan_to_num_(0.0).round_().to(torch.int8)
    return torch.cat((scale_R1.view(torch.uint8), codes_RI.view(torch.uint8)), dim=1)


def decode(stored_RB: Tensor, weight_format: WeightFormat) -> Tensor:
    """The weights that stored rows mean, exact: float32 [R, I]."""
    match weight_format:
        case WeightFormat.PLAIN:
            raise ValueError("plain weights are not encoded")
        case WeightFormat.INT8:
            scale_R1 = stored_RB[:, :_SCALE_BYTES].contiguous().view(torch.float32)
            return stored_RB[:, _SCALE_BYTES:].view(torch.int8) * scale_R1
        case WeightFormat.Q8_0 | WeightFormat.Q4_1:
            kind = GGMLQuantizationType[weight_format.name]
            weights = dequantize(np.ascontiguousarray(stored_RB.numpy()), kind)
            return torch.from_numpy(np.require(weights, np.float32, "W"))


def has_unopposed_codes(stored_RB: Tensor, weight_format: WeightFormat) -> bool:
    """Whether an 8-bit code is -128. Kernels cannot read it; quantisers do not write it."""
    if weight_format is not WeightFormat.Q8_0:
        return False
    groups = stored_RB.view(torch.int8).view(len(stored_RB), -1, _Q8_0_SCALE_BYTES + _GROUP)
    return bool((groups[..., _Q8_0_SCALE_BYTES:] == -_LARGEST - 1).any())
