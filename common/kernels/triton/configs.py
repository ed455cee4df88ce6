"""Which tiles, warps and stages a kernel runs with: chosen by shape from these tables, never timed
while requests wait.

`python -m bench.kernels --compile-only` prints what each costs in registers and shared memory, and
`python -m bench.kernels_tune` which are the fastest on the GPU at hand.
In float32 a configuration depends on the model's shapes alone, and on no chip (law 3).
"""

from typing import NamedTuple

import torch

WARP = 32
ACCESS = 8  # elements a thread: 16 bytes of a 2-byte dtype
MAX_WARPS = 16

EXACT_SPLIT = 256
"""Keys reduced at a time in float32: partial results merge at its multiples, whoever reads them."""


class Tile(NamedTuple):
    rows: int  # query heads and tokens
    keys: int
    warps: int
    stages: int


# by chip, from which one on; then by head dim, up to which one
DECODE = {
    80: {64: Tile(16, 64, 4, 5), 128: Tile(16, 64, 4, 5), 256: Tile(16, 32, 4, 5)},
}
DECODE_FP8 = {  # pages of it, which take registers to widen
    89: {64: Tile(16, 64, 4, 5), 128: Tile(16, 64, 8, 5), 256: Tile(16, 32, 8, 5)},
}
PREFILL = {
    80: {64: Tile(128, 64, 8, 5), 128: Tile(128, 32, 8, 5), 256: Tile(64, 32, 8, 5)},
    90: {64: Tile(128, 64, 8, 5), 128: Tile(128, 64, 8, 5), 256: Tile(64, 32, 4, 5)},
}
PREFILL[120] = PREFILL[80]  # 99 KiB of shared memory a block
EXACT = {64: Tile(16, 32, 4, 1), 128: Tile(16, 32, 8, 1), 256: Tile(16, 16, 8, 1)}
DECODE_SPLITS = {64: 256, 256: 512}  # keys, by sequences times KV heads, up to how many
DECODE_SPLIT = 1024  # beyond
DECODE_PROGRAMS = 8192  # of one launch, most of which may find nothing to read


def decode_tile(dtype: torch.dtype, chip: int, head_dim: int, *, fp8: bool = False) -> Tile:
    """`fp8`: pages are, and q is in `dtype`."""
    return _tile(DECODE_FP8 if fp8 else DECODE, dtype, chip, head_dim)


def prefill_tile(dtype: torch.dtype, chip: int, head_dim: int) -> Tile:
    return _tile(PREFILL, dtype, chip, head_dim)


def decode_split(dtype: torch.dtype, n_pairs: int, n_rep: int, *, fp8: bool = False) -> int:
    """Keys that one program reads: a multiple of every tile's.

    Partial results of many heads per KV head are large beside the keys, so those get more; more so
    where keys are fp8, and half as large.
    """
    if dtype is torch.float32:
        return EXACT_SPLIT
    splits = (keys for most, keys in DECODE_SPLITS.items() if n_pairs <= most)
    return next(splits, DECODE_SPLIT) * max(1, n_rep // (2 if fp8 else 4))


def decode_items(dtype: torch.dtype, n_kv_heads: int, most: int) -> list[int]:
    """Numbers of sequences, up to `most`, from which on `decode_split` is another: a launch for
    each, and nothing is left to be compiled for any number."""
    changes = () if dtype is torch.float32 else DECODE_SPLITS
    return [n for n in (1, *(pairs // n_kv_heads + 1 for pairs in changes)) if n <= most]


def decode_splits(dtype: torch.dtype, n_pairs: int, longest_keys: int, split: int) -> int:
    """How many programs share a sequence's keys; each may read several times `split`."""
    n_splits = -(-longest_keys // split)
    if dtype is torch.float32:
        return n_splits
    return min(n_splits, max(1, DECODE_PROGRAMS // n_pairs))


def elementwise_warps(n_elements: int) -> int:
    """Of a program over as many, a power of two."""
    return max(1, min(MAX_WARPS, n_elements // (WARP * ACCESS)))


def _tile(table: dict[int, dict[int, Tile]], dtype: torch.dtype, chip: int, head_dim: int) -> Tile:
    if dtype is torch.float32:
        by_dim = EXACT
    else:
        by_dim = table[max((c for c in table if c <= chip), default=min(table))]
    return by_dim[min(d for d in by_dim if head_dim <= d)]
