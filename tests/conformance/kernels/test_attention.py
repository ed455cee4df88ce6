"""Paged attention against its definition, over pools where whatever is not asked for is NaN."""

import mmap
import os
import random

import numpy as np
import pytest
import torch
from torch import Tensor

from common.kernels import reference
from common.kv.cache import KVCache
from common.kv.layout import KVSpec
from tests.conformance.kernels.pools import (
    Heads,
    Sequence,
    attend,
    give_pages,
    poisoned_pool,
    random_sequence,
    write,
)

CASES = [  # (query heads a KV head, head dim, tokens of a page): each two values meet
    (n_rep, head_dim, [1, 16, 64][(i + j) % 3])
    for i, n_rep in enumerate([1, 3, 4, 8])
    for j, head_dim in enumerate([64, 80, 96, 128])
]


def check(got: Tensor, sequence: Sequence, n: int, tolerance: float = 1e-5) -> None:
    """`got`: of the sequence's last n written tokens."""
    end = sequence.written
    q, k, v = (t.to(got.dtype) for t in (sequence.q_SND, sequence.k_SGD, sequence.v_SGD))
    wanted = reference.attend(q[end - n : end], k[:end], v[:end])
    torch.testing.assert_close(got.double(), wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("n_rep", "head_dim", "page_tokens"), CASES)
def test_ragged_batches(n_rep: int, head_dim: int, page_tokens: int) -> None:
    heads = Heads(n_kv_heads=2, n_rep=n_rep, head_dim=head_dim)
    seed = n_rep * 1000 + head_dim + page_tokens
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    lengths = [1, 2, page_tokens, page_tokens + 1, 128, 129, 257, rng.randint(3, 420)]
    sequences = [random_sequence(heads, n, generator) for n in lengths]
    pool = poisoned_pool(heads, 60 + sum(lengths) // page_tokens, page_tokens, n_layers=3)
    give_pages(sequences, pool, rng)
    pending = list(sequences)
    while pending:
        chunks = [(s, rng.choice([1, 1, 37, 400])) for s in rng.sample(pending, len(pending))]
        chunks = [(s, min(n, len(s) - s.written)) for s, n in chunks]
        for got, (sequence, n) in zip(attend(pool, chunks, layer=1), chunks, strict=True):
            check(got, sequence, n)
        pending = [s for s in pending if s.written < len(s)]


def test_bfloat16() -> None:
    heads = Heads(n_kv_heads=3, n_rep=3, head_dim=64)
    rng, generator = random.Random(0), torch.Generator().manual_seed(0)
    sequences = [random_sequence(heads, n, generator) for n in (1, 40, 300)]
    pool = poisoned_pool(heads, 40, 16, dtype="bfloat16")
    give_pages(sequences, pool, rng)
    for step in (39, 1, 259, 1):
        chunks = [(s, step) for s in sequences if s.written + step <= len(s)]
        for got, (sequence, n) in zip(attend(pool, chunks), chunks, strict=True):
            check(got, sequence, n, tolerance=0.05)


def test_more_key_blocks_than_are_read_at_once() -> None:
    heads = Heads(n_kv_heads=1, n_rep=2, head_dim=64)
    rng, generator = random.Random(0), torch.Generator().manual_seed(0)
    sequences = [random_sequence(heads, rng.randint(2, 300), generator) for _ in range(150)]
    sequences.append(random_sequence(heads, 21000, generator))
    pool = poisoned_pool(heads, 4000, 16)
    give_pages(sequences, pool, rng)
    write(pool, [(s, len(s) - 1) for s in sequences])
    last = [(s, 1) for s in sequences]
    for got, (sequence, n) in zip(attend(pool, last), last, strict=True):
        check(got, sequence, n)


def test_weights_far_apart_do_not_overflow() -> None:
    heads = Heads(n_kv_heads=1, n_rep=1, head_dim=64)
    sequence = random_sequence(heads, 300, torch.Generator().manual_seed(0))
    sequence.q_SND *= 200
    sequence.k_SGD[::2] *= 1e-3
    pool = poisoned_pool(heads, 20, 16)
    give_pages([sequence], pool, random.Random(0))
    check(attend(pool, [(sequence, 300)])[0], sequence, 300, tolerance=1e-3)


def test_pages_beyond_two_to_the_31_elements() -> None:
    """A pool that is a sparse memfd, as workers' pools are; only its last page is touched."""
    heads = Heads(n_kv_heads=2, n_rep=2, head_dim=64)
    spec = KVSpec(n_layers=2, n_kv_heads=2, head_dim=64, page_tokens=16, dtype="float32")
    n_pages = 2**33 // spec.page_bytes + 2
    memory = os.memfd_create("pool")
    try:
        os.ftruncate(memory, n_pages * spec.page_bytes)
        mapped = mmap.mmap(memory, n_pages * spec.page_bytes)
    finally:
        os.close(memory)
    pool = KVCache(spec, np.frombuffer(mapped, np.uint8).reshape(n_pages, spec.page_bytes))
    sequence = random_sequence(heads, 16, torch.Generator().manual_seed(0))
    sequence.pages = [n_pages - 1]  # pyright: ignore[reportAttributeAccessIssue] of that pool
    check(attend(pool, [(sequence, 15)], layer=1)[0], sequence, 15)
    check(attend(pool, [(sequence, 1)], layer=1)[0], sequence, 1)
