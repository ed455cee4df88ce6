"""Builds pools whose every byte nobody wrote is NaN, and passes over them."""

import random
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from common.engine.plan import PassPlan, Piece, pack
from common.engine.runner import inputs_of
from common.ids import PageId
from common.kernels import ops
from common.kv.cache import KVCache
from common.kv.layout import KVSpec, pages_for
from common.model.inputs import PassInputs

POISON = 0xFF  # every such float16, bfloat16 and float32 is NaN
NOWHERE = 2**31 - 1  # a page id that no pool has


@dataclass(frozen=True, kw_only=True)
class Heads:
    n_kv_heads: int
    n_rep: int
    head_dim: int

    @property
    def n_heads(self) -> int:
        return self.n_kv_heads * self.n_rep


def poisoned_pool(
    heads: Heads, n_pages: int, page_tokens: int, n_layers: int = 1, dtype: str = "float32"
) -> KVCache:
    spec = KVSpec(
        n_layers=n_layers,
        n_kv_heads=heads.n_kv_heads,
        head_dim=heads.head_dim,
        page_tokens=page_tokens,
        dtype=dtype,
    )
    return KVCache(spec, np.full((n_pages, spec.page_bytes), POISON, np.uint8))


@dataclass(kw_only=True)
class Sequence:
    """Query, key and value of every token, and the pages for them, in random order."""

    q_SND: Tensor
    k_SGD: Tensor
    v_SGD: Tensor
    pages: list[PageId]
    written: int = 0

    def __len__(self) -> int:
        return len(self.q_SND)


def random_sequence(heads: Heads, n_tokens: int, generator: torch.Generator) -> Sequence:
    def normal(n_heads: int, spread: float) -> Tensor:
        return torch.randn(n_tokens, n_heads, heads.head_dim, generator=generator) * spread

    return Sequence(
        q_SND=normal(heads.n_heads, 2.0),
        k_SGD=normal(heads.n_kv_heads, 1.0),
        v_SGD=normal(heads.n_kv_heads, 1.0),
        pages=[],
    )


def give_pages(sequences: list[Sequence], pool: KVCache, rng: random.Random) -> None:
    free = rng.sample(range(pool.n_pages), pool.n_pages)
    for sequence in sequences:
        sequence.pages = [
            PageId(free.pop()) for _ in range(pages_for(len(sequence), pool.spec.page_tokens))
        ]


def write(pool: KVCache, chunks: list[tuple[Sequence, int]], layer: int = 0) -> PassInputs:
    """Write the next n tokens of each sequence, unrotated; the pass that does so."""
    pieces = [Piece([0] * n, s.written, s.pages) for s, n in chunks]
    arrays = pack(pieces, pool.spec.page_tokens)
    for b, (sequence, n) in enumerate(chunks):
        arrays["tables_BM"][b, pages_for(sequence.written + n, pool.spec.page_tokens) :] = NOWHERE
    plan = PassPlan(**arrays)  # pyright: ignore[reportArgumentType] pack() names its arrays as PassPlan does
    inputs = inputs_of(plan, pool.geometry)
    zeros, half = torch.zeros_like(inputs.rows.positions_T), pool.spec.head_dim // 2
    ops.rope_and_write(
        rows("q_SND", chunks, pool),
        rows("k_SGD", chunks, pool),
        rows("v_SGD", chunks, pool),
        torch.tensor([[1.0] * half + [0.0] * half]),
        zeros,
        inputs.rows.slots_T,
        pool.layer(layer),
    )
    for sequence, n in chunks:
        sequence.written += n
    return inputs


def attend(pool: KVCache, chunks: list[tuple[Sequence, int]], layer: int = 0) -> list[Tensor]:
    """Write the next n tokens of each sequence, and attend from them: [n, N, D] each."""
    q_TND = rows("q_SND", chunks, pool)
    attended_TND = ops.attend(q_TND, pool.layer(layer), write(pool, chunks, layer).rows)
    return list(attended_TND.split([n for _, n in chunks]))


def rows(name: str, chunks: list[tuple[Sequence, int]], pool: KVCache) -> Tensor:
    parts = [getattr(s, name)[s.written : s.written + n] for s, n in chunks]
    return torch.cat(parts).to(pool.dtype)
