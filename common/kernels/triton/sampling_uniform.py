# pyright: reportArgumentType=false, reportAttributeAccessIssue=false
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false
"""The randomness of draws on the device: the 53 bits that `common.sampling.uniform_bits` gives.

BLAKE2b (RFC 7693) of seed, sample and index, as a counter-based generator: no state, and any draw's
bits at any time.
"""

import triton
import triton.language as tl
from torch import Tensor

from common.kernels.draws import UNIFORM_BITS
from common.kernels.triton.launch import Launch

BLOCK = 32  # rows of a program
DIGEST_BYTES = 8
MESSAGE_BYTES = 24

START = (  # section 2.6
    0x6A09E667F3BCC908,
    0xBB67AE8584CAA73B,
    0x3C6EF372FE94F82B,
    0xA54FF53A5F1D36F1,
    0x510E527FADE682D1,
    0x9B05688C2B3E6C1F,
    0x1F83D9ABFB41BD6B,
    0x5BE0CD19137E2179,
)
ORDERS = (  # section 2.7; the last two rounds have the first two orders
    (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
    (14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3),
    (11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4),
    (7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8),
    (9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13),
    (2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9),
    (12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11),
    (13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10),
    (6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5),
    (10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0),
)
N_ROUNDS = tl.constexpr(12)
WORD_OF = tl.constexpr(tuple(word for order in (*ORDERS, *ORDERS[:2]) for word in order))
IV = tl.constexpr(START)
FIRST = tl.constexpr(START[0] ^ 0x01010000 ^ DIGEST_BYTES)  # section 2.5, without a key
COUNTED = tl.constexpr(START[4] ^ MESSAGE_BYTES)
FINAL = tl.constexpr(START[6] ^ (2**64 - 1))
DROPPED_BITS = tl.constexpr(64 - UNIFORM_BITS)


def launch(keys_R3: Tensor, out_R: Tensor) -> Launch:
    """int64, 0 .. 2**53 - 1, of seeds, samples and indices; all contiguous."""
    if not (keys_R3.is_contiguous() and out_R.is_contiguous()):
        raise ValueError("keys and result must be contiguous")
    n_rows = len(out_R)
    return Launch(
        kernel=_uniforms,
        grid=(triton.cdiv(n_rows, BLOCK),),
        arguments={"keys": keys_R3, "out": out_R, "n_rows": n_rows, "BLOCK": BLOCK},
        num_warps=1,
    )


@triton.jit(do_not_specialize=["n_rows"])
def _uniforms(keys, out, n_rows, BLOCK: tl.constexpr):
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = row < n_rows
    seed = tl.load(keys + 3 * row, mask=there, other=0).to(tl.uint64)
    sample = tl.load(keys + 3 * row + 1, mask=there, other=0).to(tl.uint64)
    index = tl.load(keys + 3 * row + 2, mask=there, other=0).to(tl.uint64)
    o = seed ^ seed  # the message's other words
    m = (seed, sample, index, o, o, o, o, o, o, o, o, o, o, o, o, o)
    v0, v1, v2, v3 = o + FIRST, o + IV[1], o + IV[2], o + IV[3]
    v4, v5, v6, v7 = o + IV[4], o + IV[5], o + IV[6], o + IV[7]
    v8, v9, v10, v11 = o + IV[0], o + IV[1], o + IV[2], o + IV[3]
    v12, v13, v14, v15 = o + COUNTED, o + IV[5], o + FINAL, o + IV[7]
    for i in tl.static_range(N_ROUNDS):
        v0, v4, v8, v12 = _mix(v0, v4, v8, v12, m[WORD_OF[16 * i]], m[WORD_OF[16 * i + 1]])
        v1, v5, v9, v13 = _mix(v1, v5, v9, v13, m[WORD_OF[16 * i + 2]], m[WORD_OF[16 * i + 3]])
        v2, v6, v10, v14 = _mix(v2, v6, v10, v14, m[WORD_OF[16 * i + 4]], m[WORD_OF[16 * i + 5]])
        v3, v7, v11, v15 = _mix(v3, v7, v11, v15, m[WORD_OF[16 * i + 6]], m[WORD_OF[16 * i + 7]])
        v0, v5, v10, v15 = _mix(v0, v5, v10, v15, m[WORD_OF[16 * i + 8]], m[WORD_OF[16 * i + 9]])
        v1, v6, v11, v12 = _mix(v1, v6, v11, v12, m[WORD_OF[16 * i + 10]], m[WORD_OF[16 * i + 11]])
        v2, v7, v8, v13 = _mix(v2, v7, v8, v13, m[WORD_OF[16 * i + 12]], m[WORD_OF[16 * i + 13]])
        v3, v4, v9, v14 = _mix(v3, v4, v9, v14, m[WORD_OF[16 * i + 14]], m[WORD_OF[16 * i + 15]])
    digest = v0 ^ v8 ^ FIRST
    tl.store(out + row, (digest >> DROPPED_BITS).to(tl.int64), mask=there)


@triton.jit
def _mix(a, b, c, d, x, y):
    """G of section 3.1: rotations to the right by 32, 24, 16 and 63 bits."""
    a = a + b + x
    d = d ^ a
    d = (d >> 32) | (d << 32)
    c = c + d
    b = b ^ c
    b = (b >> 24) | (b << 40)
    a = a + b + y
    d = d ^ a
    d = (d >> 16) | (d << 48)
    c = c + d
    b = b ^ c
    b = (b >> 63) | (b << 1)
    return a, b, c, d
