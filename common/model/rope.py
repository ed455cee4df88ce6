"""Rotary position embedding: the table of cosines and sines that a model's attention reads.

Computed once, at load, in float64, for every position up to max-model-len. Scalings that
elsewhere depend on the length of the sequence at hand (`dynamic`, `longrope`) depend here on
max-model-len, so that a token's KV is a function of its own prefix alone (law 3).
"""

import math
from typing import assert_never

import torch
from torch import Tensor

from common.model.spec import (
    DivisorScaling,
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    ModelSpec,
    NoScaling,
    YarnScaling,
)

# L positions  D head dim


def cos_sin_table(spec: ModelSpec, max_model_len: int) -> Tensor:
    """[L = max_model_len, D] float32: D / 2 cosines, then D / 2 sines, of a position.

    Pair i of a head is (x[i], x[i + D / 2]), as in Hugging Face's layout.
    """
    freqs_D2, magnitude = inverse_frequencies(spec, max_model_len)
    angles_LD2 = torch.arange(max_model_len, dtype=torch.float64)[:, None] * freqs_D2
    table_LD = torch.cat((angles_LD2.cos(), angles_LD2.sin()), dim=1) * magnitude
    return table_LD.to(torch.float32)


def inverse_frequencies(spec: ModelSpec, max_model_len: int) -> tuple[Tensor, float]:
    """Radians per token of each pair ([D / 2] float64), and the factor on cos and sin."""
    scaling = spec.rope_scaling
    freqs_D2 = _trained_frequencies(spec.rope_theta, spec.head_dim)
    match scaling:
        case NoScaling():
            return freqs_D2, 1.0
        case LinearScaling():
            return freqs_D2 / scaling.factor, 1.0
        case DynamicScaling():
            return _dynamic(spec, scaling, max_model_len), 1.0
        case YarnScaling():
            return _yarn(spec, scaling, freqs_D2), scaling.attention_factor
        case Llama3Scaling():
            return _llama3(scaling, freqs_D2), 1.0
        case LongRopeScaling():
            long = max_model_len > scaling.original_max_position
            divisors = scaling.long_factors if long else scaling.short_factors
            return freqs_D2 / _float64(divisors), scaling.attention_factor
        case DivisorScaling():
            return freqs_D2 / _float64(scaling.divisors), 1.0
        case _:
            assert_never(scaling)


def _float64(values: tuple[float, ...]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def _trained_frequencies(theta: float, head_dim: int) -> Tensor:
    exponents_D2 = torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim
    return 1.0 / theta**exponents_D2


def _dynamic(spec: ModelSpec, scaling: DynamicScaling, max_model_len: int) -> Tensor:
    """NTK-aware scaling as in transformers, for a sequence of max_model_len tokens."""
    stretch = max(max_model_len, spec.max_position) / spec.max_position
    growth = scaling.factor * stretch - (scaling.factor - 1)
    dim = spec.head_dim
    return _trained_frequencies(spec.rope_theta * growth ** (dim / (dim - 2)), dim)


def _yarn(spec: ModelSpec, scaling: YarnScaling, freqs_D2: Tensor) -> Tensor:
    """arXiv 2309.00071, section 3.2: 'NTK-by-parts'."""

    def dimension_of(rotations: float) -> float:
        """Where a pair turns `rotations` times within the original context."""
        turns = scaling.original_max_position / (rotations * 2 * math.pi)
        return spec.head_dim * math.log(turns) / (2 * math.log(spec.rope_theta))

    low, high = dimension_of(scaling.beta_fast), dimension_of(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, spec.head_dim - 1)
    if low == high:
        high += 0.001  # a ramp of width 0 would divide by it
    ramp_D2 = (torch.arange(spec.head_dim // 2, dtype=torch.float64) - low) / (high - low)
    interpolated_D2 = ramp_D2.clamp(0, 1)
    return freqs_D2 / scaling.factor * interpolated_D2 + freqs_D2 * (1 - interpolated_D2)


def _llama3(scaling: Llama3Scaling, freqs_D2: Tensor) -> Tensor:
    """Llama 3.1's scaling as in transformers: `share` is 1 for high frequencies, 0 for low."""
    turns_D2 = scaling.original_max_position * freqs_D2 / (2 * math.pi)
    span = scaling.high_freq_factor - scaling.low_freq_factor
    share_D2 = ((turns_D2 - scaling.low_freq_factor) / span).clamp(0, 1)
    return freqs_D2 / scaling.factor * (1 - share_D2) + freqs_D2 * share_D2
