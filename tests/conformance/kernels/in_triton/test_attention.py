"""Paged attention in Triton against its definition, over pools where whatever is not asked is NaN.

Pages are written by torch: the kernel that writes them has its own tests, and one at the end.
"""

import random

import pytest
import torch
from torch import Tensor

from common.kernels import ops
from common.kernels.triton import choice
from common.kv.cache import KVCache
from common.model.inputs import PassInputs
from tests.conformance.kernels import test_attention
from tests.conformance.kernels.pools import (
    Heads,
    Sequence,
    give_pages,
    poisoned_pool,
    random_sequence,
    rows,
    write,
)
from tests.conformance.kernels.test_attention import check

pytestmark = pytest.mark.usefixtures("path")

TOLERANCES = {"float32": 1e-5, "float16": 4e-3}
CASES = [  # each two values of query heads a KV head, head dim and tokens of a page meet
    (n_rep, head_dim, [16, 64][(i + j) % 2], list(TOLERANCES)[(i + j // 2) % 2])
    for i, n_rep in enumerate([1, 3, 4, 8])
    for j, head_dim in enumerate([64, 80, 96, 128])
]


def write_in_torch(pool: KVCache, chunks: list[tuple[Sequence, int]], layer: int = 0) -> PassInputs:
    choice.interpret(wanted=False)
    inputs = write(pool, chunks, layer)
    choice.interpret(wanted=True)
    return inputs


def attend(pool: KVCache, chunks: list[tuple[Sequence, int]], layer: int = 0) -> list[Tensor]:
    """As `pools.attend`."""
    q_TND = rows("q_SND", chunks, pool)
    inputs = write_in_torch(pool, chunks, layer)
    attended_TND = ops.attend(q_TND, pool.layer(layer), inputs.rows)
    return list(attended_TND.split([n for _, n in chunks]))


@pytest.mark.parametrize(("n_rep", "head_dim", "page_tokens", "dtype"), CASES)
def test_ragged_batches(n_rep: int, head_dim: int, page_tokens: int, dtype: str) -> None:
    heads = Heads(n_kv_heads=2, n_rep=n_rep, head_dim=head_dim)
    seed = n_rep * 1000 + head_dim + page_tokens
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    lengths = [1, page_tokens + 1, rng.choice([257, 280]), rng.randint(3, 60)]
    sequences = [random_sequence(heads, n, generator) for n in lengths]
    pool = poisoned_pool(heads, 6 + sum(lengths) // page_tokens, page_tokens, 2, dtype)
    give_pages(sequences, pool, rng)
    write_in_torch(pool, [(sequences[2], 200)], layer=1)
    parts: list[list[Tensor]] = [[] for _ in sequences]
    for last in (False, True):  # all but one token, or but several; then those
        left = [i for i, s in enumerate(sequences) if s.written < len(s)]
        sizes = [len(s) - s.written - (not last) * rng.choice([1, 20]) for s in sequences]
        chunks = [(sequences[i], max(1, sizes[i])) for i in left]
        for i, got in zip(left, attend(pool, chunks, layer=1), strict=True):
            parts[i].append(got)
    for sequence, got in zip(sequences, parts, strict=True):
        check(torch.cat(got), sequence, sum(map(len, got)), TOLERANCES[dtype])


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("head_dim", [2, 36, 256])
def test_odd_head_dims(head_dim: int, dtype: str) -> None:
    heads = Heads(n_kv_heads=3, n_rep=2, head_dim=head_dim)
    sequence = random_sequence(heads, 70, torch.Generator().manual_seed(0))
    pool = poisoned_pool(heads, 20, 16, dtype=dtype)
    give_pages([sequence], pool, random.Random(0))
    for n in (69, 1):
        check(attend(pool, [(sequence, n)])[0], sequence, n, TOLERANCES[dtype])


def test_weights_far_apart_do_not_overflow() -> None:
    heads = Heads(n_kv_heads=1, n_rep=1, head_dim=64)
    sequence = random_sequence(heads, 300, torch.Generator().manual_seed(0))
    sequence.q_SND *= 200
    sequence.k_SGD[::2] *= 1e-3
    pool = poisoned_pool(heads, 20, 16)
    give_pages([sequence], pool, random.Random(0))
    for n in (299, 1):
        check(attend(pool, [(sequence, n)])[0], sequence, n, tolerance=1e-3)


@pytest.mark.parametrize(
    ("n_rep", "head_dim", "page_tokens"), [(1, 64, 16), (3, 64, 64), (4, 80, 16), (8, 128, 64)]
)
def test_a_row_s_bits_depend_on_that_row_alone(n_rep: int, head_dim: int, page_tokens: int) -> None:
    """One pass over each sequence, against chunks of all together in other pages."""
    heads = Heads(n_kv_heads=1, n_rep=n_rep, head_dim=head_dim)
    rng, generator = random.Random(n_rep), torch.Generator().manual_seed(0)
    sequences = [random_sequence(heads, n, generator) for n in (5, 280, 70)]
    pool = poisoned_pool(heads, 4 + 355 // page_tokens, page_tokens)

    def begin() -> None:
        """Of one sequence most tokens are there, as after a prefix hit."""
        pool.pages_PB.fill_(255)
        give_pages(sequences, pool, rng)
        for sequence in sequences:
            sequence.written = 0
        write_in_torch(pool, [(sequences[1], 210)])

    begin()
    whole = [attend(pool, [(s, len(s) - s.written)])[0] for s in sequences]
    begin()
    parts: list[list[Tensor]] = [[] for _ in sequences]
    for n_tokens in (4, 1, 40, 1, 23, 1):
        left = [i for i, s in enumerate(sequences) if s.written < len(s)]
        some = [sequences[i] for i in left]
        chunks = [(s, min(n_tokens, len(s) - s.written)) for s in some]
        for i, part in zip(left, attend(pool, chunks), strict=True):
            parts[i].append(part)
    for part, wanted in zip(parts, whole, strict=True):
        assert torch.equal(torch.cat(part), wanted)


def test_pages_beyond_two_to_the_31_elements() -> None:
    test_attention.test_pages_beyond_two_to_the_31_elements()
