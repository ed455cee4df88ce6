"""Numbers of e4m3 (OCP's FP8: 4 bits of exponent, 3 of mantissa, no infinity) with one scale for a
head's elements of one token: kept is the nearest number to x / scale, the largest being 448.

Of a head whose elements are not all finite the scale is NaN, and so is whatever is read of it. One
whose elements are all too small for float32 to divide by them is read as 0.
"""

import triton
import triton.language as tl

SCALE_BYTES = tl.constexpr(4)
LARGEST = tl.constexpr(448.0)
LEAST_SCALE = tl.constexpr(2.0**-126)
"""Of those that have a reciprocal."""

EXPONENT_BITS = tl.constexpr(0x7F800000)
LEAST_EXPONENT = tl.constexpr((127 - 6) << 23)
"""Of e4m3's normal numbers, as float32 has it."""

ROUNDING_EXPONENT = tl.constexpr(20 << 23)
"""From a number's own to the one whose last place is worth the number's third."""


@triton.jit
def quantise(first_HE, second_HE):
    """Of heads [H] in two halves, float32: the halves in e4m3, and the scales in float32."""
    largest_H = tl.max(tl.maximum(_size(first_HE), _size(second_HE)), 1)
    scale_H = (1 / LARGEST) * largest_H
    is_finite_H = scale_H < float("inf")
    is_kept_H = is_finite_H & (scale_H >= LEAST_SCALE)
    factor_H = tl.div_rn(1.0, tl.where(is_kept_H, scale_H, 1.0))
    first_HE = _nearest(tl.where(is_kept_H[:, None], first_HE, 0.0) * factor_H[:, None])
    second_HE = _nearest(tl.where(is_kept_H[:, None], second_HE, 0.0) * factor_H[:, None])
    scale_H = tl.where(is_kept_H, scale_H, tl.where(is_finite_H, 0.0, float("nan")))
    return first_HE, second_HE, scale_H


@triton.jit
def _size(x):
    """A maximum passes over NaN: infinite, then."""
    return tl.where(x == x, tl.abs(x), float("inf"))


@triton.jit
def _nearest(x):
    """Of e4m3, ties to even; |x| is 448 at most. It is found in float32, so that the conversion has
    nothing left to round: that differs between chips, and Triton's interpreter does it wrong."""
    exponent = tl.maximum(x.to(tl.int32, bitcast=True) & EXPONENT_BITS, LEAST_EXPONENT)
    three_halves = (exponent + ROUNDING_EXPONENT) | (1 << 22)
    shift = three_halves.to(tl.float32, bitcast=True)
    return ((x + shift) - shift).to(tl.float8e4nv)
