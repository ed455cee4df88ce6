"""Paged attention against its definition, over pools where whatever is not asked for is NaN."""

import mmap
import os
import random

import numpy as np
import pytest
import torch
from torch import Tensor

from common.kernels import ops, reference
from common.kernels.attention_plan import Sequences
from common.kernels.attention_rows import AttentionRows
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

pytestmark = pytest.mark.usefixtures("path", "threads")

TOLERANCES = {"float32": 1e-5, "bfloat16": 0.04}
CASES = [  # each two values of query heads a KV head, head dim and tokens of a page meet
    (n_rep, head_dim, [1, 16, 64][(i + j) % 3], list(TOLERANCES)[(i + j) % 2])
    for i, n_rep in enumerate([1, 3, 4, 8])
    for j, head_dim in enumerate([64, 80, 96, 128])
]


def check(got: Tensor, sequence: Sequence, n: int, tolerance: float = 1e-5) -> None:
    """`got`: of the sequence's last n written tokens."""
    end = sequence.written
    q, k, v = (t.to(got.dtype) for t in (sequence.q_SND, sequence.k_SGD, sequence.v_SGD))
    wanted = reference.attend(q[end - n : end], k[:end], v[:end])
    torch.testing.assert_close(got.double(), wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("n_rep", "head_dim", "page_tokens", "dtype"), CASES)
def test_ragged_batches(n_rep: int, head_dim: int, page_tokens: int, dtype: str) -> None:
    ops.set_threads(1 + n_rep % 3)
    heads = Heads(n_kv_heads=2, n_rep=n_rep, head_dim=head_dim)
    seed = n_rep * 1000 + head_dim + page_tokens
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    lengths = [1, 2, page_tokens, page_tokens + 1, 128, 129, 257, rng.randint(3, 420)]
    sequences = [random_sequence(heads, n, generator) for n in lengths]
    n_pages = 60 + sum(lengths) // page_tokens
    pool = poisoned_pool(heads, n_pages, page_tokens, n_layers=3, dtype=dtype)
    give_pages(sequences, pool, rng)
    parts: list[list[Tensor]] = [[] for _ in sequences]
    while pending := [i for i, s in enumerate(sequences) if s.written < len(s)]:
        some = rng.sample(pending, len(pending))
        sizes = [rng.choice([1, 1, 37, 400]) for _ in some]
        chunks = [
            (sequences[i], min(n, len(sequences[i]) - sequences[i].written))
            for i, n in zip(some, sizes, strict=True)
        ]
        for i, got in zip(some, attend(pool, chunks, layer=1), strict=True):
            parts[i].append(got)
    for sequence, got in zip(sequences, parts, strict=True):
        check(torch.cat(got), sequence, len(sequence), TOLERANCES[dtype])


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("head_dim", [2, 8, 36, 72, 256])
def test_odd_head_dims(head_dim: int, dtype: str) -> None:
    heads = Heads(n_kv_heads=3, n_rep=2, head_dim=head_dim)
    sequence = random_sequence(heads, 150, torch.Generator().manual_seed(0))
    pool = poisoned_pool(heads, 20, 16, dtype=dtype)
    give_pages([sequence], pool, random.Random(0))
    for n in (149, 1):
        check(attend(pool, [(sequence, n)])[0], sequence, n, TOLERANCES[dtype])


def test_more_key_blocks_than_are_read_at_once() -> None:
    """And sequences so unlike that the work on one is shared out."""
    ops.set_threads(3)
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


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("n_threads", [1, 2, 3])
@pytest.mark.parametrize("against", [-1.0, -40.0])
def test_scores_all_far_below_zero_where_a_few_rows_begin_a_block_of_keys(
    dtype: str, n_threads: int, against: float
) -> None:
    """What a row does not see is below whatever it sees, however its keys are shared out."""
    ops.set_threads(n_threads)
    heads = Heads(n_kv_heads=1, n_rep=3, head_dim=64)
    sequence = random_sequence(heads, 134, torch.Generator().manual_seed(0))
    sequence.k_SGD.abs_()
    sequence.q_SND.abs_().mul_(against)
    pool = poisoned_pool(heads, 10, 16, dtype=dtype)
    give_pages([sequence], pool, random.Random(0))
    attend(pool, [(sequence, 125)])
    got = attend(pool, [(sequence, 9)])[0]
    if dtype == "bfloat16" and against < -1:  # a score's own rounding is more than weights bear
        assert got.isfinite().all()
        return
    check(got, sequence, 9, 1e-4 if dtype == "float32" else TOLERANCES[dtype])
    if dtype == "float32":
        ops.set_threads(1)
        sequence.written = 125
        assert torch.equal(got, attend(pool, [(sequence, 9)])[0])


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


def test_what_comes_later_is_of_no_effect_even_where_it_is_infinite(path: str) -> None:
    if path == "torch":
        pytest.skip("weights of 0 keep out only what is finite")
    heads = Heads(n_kv_heads=1, n_rep=3, head_dim=64)
    sequence = random_sequence(heads, 40, torch.Generator().manual_seed(0))
    sequence.k_SGD[25], sequence.v_SGD[25], sequence.v_SGD[30] = torch.nan, torch.inf, torch.nan
    pool = poisoned_pool(heads, 3, 16)
    give_pages([sequence], pool, random.Random(0))
    got = attend(pool, [(sequence, 40)])[0]
    assert got[25:].isnan().all()
    sequence.written = 25
    check(got[:25], sequence, 25)


@pytest.mark.parametrize("missing", ["page", "slot", "position"])
def test_what_is_not_there_is_refused(path: str, missing: str) -> None:
    if path == "torch":
        pytest.skip("torch refuses what it indexes with")
    heads = Heads(n_kv_heads=1, n_rep=1, head_dim=64)
    pool = poisoned_pool(heads, 4, 16)
    x_TND, table = torch.zeros(1, 1, 64), torch.zeros(2, 64)
    for value in (-1, {"page": 4, "slot": 64, "position": 2}[missing]):
        given = {"page": 0, "slot": 0, "position": 0, missing: value}
        rows = one_row(pool, given["page"])
        with pytest.raises(IndexError, match=f"no {missing} {value}"):
            ops.rope_and_write(
                x_TND,
                x_TND,
                x_TND,
                table,
                torch.tensor([given["position"]]),
                torch.tensor([given["slot"]]),
                pool.layer(0),
            )
            ops.attend(x_TND, pool.layer(0), rows)


def one_row(pool: KVCache, page: int) -> AttentionRows:
    sequences = Sequences(
        start_B1=np.array([0, 1], np.int32),
        len_B=np.array([1], np.int32),
        tables_BM=np.array([[page]], np.int32),
    )
    index = torch.zeros(1, dtype=torch.int64)
    return AttentionRows(index, index, sequences, pool.geometry)
