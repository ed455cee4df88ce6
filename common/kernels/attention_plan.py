"""Which keys each query of a pass reads, worked out once for all layers.

Sequences with one row (decode) are attended together; the rows of longer ones (prompt chunks) in
tiles, one after the other. Either way a query meets the same blocks of `KEY_BLOCK` keys, aligned
to absolute position, in ascending order, so its result does not depend on which it was (law 3).
Must not know layers or query heads.

Axes: B sequences, M pages of the longest table, I items (sequences or tiles) of a group,
Q query tokens of an item, X pairs (block, item) of a step, C tokens of a key block.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from common.kernels.paged import KEY_BLOCK, PageGeometry

QUERY_TILE = 256  # tokens: bounds the memory of a tile's scores
QUERY_STEP = 4  # tokens: tiles are padded and cut in multiples, see `torch_path.PRODUCT_ROWS`
GATHERED = 1 << 20  # elements of K that a step gathers at most, unless one pair has more
SCORED = 512  # query tokens times pairs of a step, at most


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyStep:
    """Key blocks that a group reads at once. Pairs are ordered by block, then by item.

    items_of_blocks  how many items read each block: the first ones of the group; descending
    item_X           int64; the pair's item
    first_query      queries of an item before this one see none of these keys
    units_U          int64; rows of `KVLayer.k_units`: keys by pair, KV head, token
    unwritten_W      int64; of the [X * G * C] gathered tokens those never written; None: none
    hidden_XQC       bool [X, 1, Q - first_query, 1, C]: keys after the query; None: none
    """

    items_of_blocks: tuple[int, ...]
    item_X: Tensor
    first_query: int
    units_U: Tensor
    unwritten_W: Tensor | None
    hidden_XQC: Tensor | None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryGroup:
    """Items with the same number of query tokens, those with most key blocks first.

    rows_IQ    int64 [I * Q]; rows of the pass
    n_queries  Q
    n_padded   Q rounded up; the queries added are zeros
    """

    rows_IQ: Tensor
    n_items: int
    n_queries: int
    n_padded: int
    steps: tuple[KeyStep, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequences:
    """The arrays of a `PassPlan` that attention needs (see there)."""

    start_B1: NDArray[np.int32]
    len_B: NDArray[np.int32]
    tables_BM: NDArray[np.int32]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Items:
    """Sequence, first row, and first query's position of each item; `n_queries` each."""

    seq_I: NDArray[np.int64]
    row_I: NDArray[np.int64]
    position_I: NDArray[np.int64]
    n_queries: int

    def reading(self, block: int) -> int:
        """How many items read that key block."""
        return int((self.position_I + self.n_queries > block * KEY_BLOCK).sum())


def plan_attention(sequences: Sequences, geometry: PageGeometry) -> tuple[QueryGroup, ...]:
    """The groups of a pass; every row is in exactly one."""
    pair_elements = geometry.n_kv_heads * KEY_BLOCK * geometry.head_dim
    max_pairs = max(1, GATHERED // pair_elements)
    return tuple(
        _group(items, sequences, geometry, max_pairs) for items in _all_items(sequences, max_pairs)
    )


def _all_items(sequences: Sequences, max_items: int) -> Iterator[_Items]:
    first_B = sequences.start_B1[:-1].astype(np.int64)
    n_rows_B = np.diff(sequences.start_B1).astype(np.int64)
    position_B = sequences.len_B - n_rows_B
    single_I = np.flatnonzero(n_rows_B == 1)
    single_I = single_I[np.argsort(-position_B[single_I], kind="stable")]
    for at in range(0, len(single_I), max_items):
        seq_I = single_I[at : at + max_items]
        yield _Items(seq_I=seq_I, row_I=first_B[seq_I], position_I=position_B[seq_I], n_queries=1)
    for b in np.flatnonzero(n_rows_B > 1):
        for at in range(0, int(n_rows_B[b]), QUERY_TILE):
            yield _Items(
                seq_I=np.array([b]),
                row_I=first_B[b : b + 1] + at,
                position_I=position_B[b : b + 1] + at,
                n_queries=min(QUERY_TILE, int(n_rows_B[b]) - at),
            )


def _group(
    items: _Items, sequences: Sequences, geometry: PageGeometry, max_pairs: int
) -> QueryGroup:
    n_queries = items.n_queries
    rows_IQ = items.row_I[:, None] + np.arange(n_queries)
    n_padded = 1 if n_queries == 1 else -(-n_queries // QUERY_STEP) * QUERY_STEP
    steps: list[KeyStep] = []
    block = 0
    while items.reading(block):
        end = _last_block_together(items, block, min(max_pairs, max(1, SCORED // n_queries)))
        steps.append(_step(items, range(block, end), n_padded, sequences, geometry))
        block = end
    return QueryGroup(
        rows_IQ=torch.from_numpy(rows_IQ.reshape(-1)),
        n_items=len(items.seq_I),
        n_queries=n_queries,
        n_padded=n_padded,
        steps=tuple(steps),
    )


def _last_block_together(items: _Items, block: int, max_pairs: int) -> int:
    """End of the blocks read at once from `block` on: all with the same first query."""
    n_pairs = items.reading(block)
    end = block + 1
    while n_pairs + items.reading(end) <= max_pairs and items.reading(end):
        if _first_query(items, end) != _first_query(items, block):
            break
        n_pairs += items.reading(end)
        end += 1
    return end


def _first_query(items: _Items, block: int) -> int:
    """The first of a tile's queries that sees the block, rounded down."""
    if items.n_queries == 1:
        return 0
    return max(0, (block * KEY_BLOCK - int(items.position_I[0])) // QUERY_STEP * QUERY_STEP)


def _step(
    items: _Items, blocks: range, n_padded: int, sequences: Sequences, geometry: PageGeometry
) -> KeyStep:
    counts = [items.reading(block) for block in blocks]
    item_X = np.concatenate([np.arange(n) for n in counts])
    block_X = np.repeat(np.arange(blocks.start, blocks.stop), counts)
    source_XR, written_X = _sources(items.seq_I[item_X], block_X, sequences, geometry)
    units_U = _units(items.seq_I[item_X], source_XR, sequences, geometry)
    first_query = _first_query(items, blocks.start)
    last = items.n_queries - 1
    query_Q = np.minimum(np.arange(first_query, n_padded), last)
    position_XQ = items.position_I[item_X][:, None] + query_Q
    key_XC = (block_X * KEY_BLOCK)[:, None] + np.arange(KEY_BLOCK)
    hidden_XQC = key_XC[:, None, None, None, :] > position_XQ[:, None, :, None, None]
    unwritten_W = _unwritten(source_XR, written_X, geometry)
    return KeyStep(
        items_of_blocks=tuple(counts),
        item_X=torch.from_numpy(item_X),
        first_query=first_query,
        units_U=torch.from_numpy(units_U),
        unwritten_W=torch.from_numpy(unwritten_W) if len(unwritten_W) else None,
        hidden_XQC=torch.from_numpy(hidden_XQC) if hidden_XQC.any() else None,
    )


# R runs of a key block: tokens side by side in one page


def _sources(
    seq_X: NDArray[np.int64],
    block_X: NDArray[np.int64],
    sequences: Sequences,
    geometry: PageGeometry,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """First position of each run [X, R], and tokens written of the pair's sequence [X].

    A run past the sequence's end is replaced by its first: those keys are hidden, but a weight
    of 0 keeps out only a value that is finite.
    """
    start_XR = (block_X * KEY_BLOCK)[:, None] + np.arange(0, KEY_BLOCK, geometry.run_tokens)
    len_X = sequences.len_B[seq_X].astype(np.int64)
    return np.where(start_XR < len_X[:, None], start_XR, 0), len_X


def _units(
    seq_X: NDArray[np.int64],
    source_XR: NDArray[np.int64],
    sequences: Sequences,
    geometry: PageGeometry,
) -> NDArray[np.int64]:
    page_tokens, head_dim = geometry.page_tokens, geometry.head_dim
    page_XR = sequences.tables_BM[seq_X[:, None], source_XR // page_tokens].astype(np.int64)
    element_XR = page_XR * geometry.stride + source_XR % page_tokens * head_dim
    head_G = np.arange(geometry.n_kv_heads) * (page_tokens * head_dim)
    piece = np.arange(0, geometry.run_tokens * head_dim, geometry.unit)
    element_XGRU = element_XR[:, None, :, None] + head_G[:, None, None] + piece
    return (element_XGRU // geometry.unit).reshape(-1)


def _unwritten(
    source_XR: NDArray[np.int64], len_X: NDArray[np.int64], geometry: PageGeometry
) -> NDArray[np.int64]:
    position_XRT = source_XR[:, :, None] + np.arange(geometry.run_tokens)
    pair, run, token = np.nonzero(position_XRT >= len_X[:, None, None])
    within = run * geometry.run_tokens + token
    head_G = np.arange(geometry.n_kv_heads)
    rows_WG = (pair[:, None] * geometry.n_kv_heads + head_G) * KEY_BLOCK + within[:, None]
    return rows_WG.reshape(-1)
