"""What a draw is in numbers, for all that draw: torch and the Triton kernels.

The C++ kernels repeat the series. Must not touch a tensor.
"""

import math

UNIFORM_BITS = 53
WEIGHT_BITS = 62  # of a row's sum, so that it stays below 2**63
MIN_TEMPERATURE = 1e-300  # what is smaller divides to NaN
LOG2_E = 1.4426950408889634
EXP2_SERIES = (  # 2 ** f for -1/2 <= f <= 1/2 within 1.6e-14: the highest power first
    1.0148341268202081e-07,
    1.3258335398449777e-06,
    1.5252990011882775e-05,
    0.0001540344088448824,
    0.0013333557625477476,
    0.009618129181163879,
    0.05550410866841569,
    0.2402265069572282,
    0.6931471805598851,
    1.0,
)


def scale_of(temperature: float) -> float:
    """What a logit's distance to the largest is multiplied with, to be an exponent of 2."""
    return LOG2_E / max(temperature, MIN_TEMPERATURE)


def weight_bits(n_vocab: int) -> int:
    """Of a token's weight."""
    return WEIGHT_BITS - math.ceil(math.log2(n_vocab))
