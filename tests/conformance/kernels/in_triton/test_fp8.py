"""Pages of fp8, written and read by Triton's kernels, against their definition in float64.

What is read is exact: an answer is as near to that of the numbers in the pages as one without fp8.
What is written is the nearest of e4m3, whose 3 bits of mantissa put it within 2^-4 of a number, or
within 2^-10 of the scale, whichever is more.
"""

import mmap
import random

import numpy as np
import pytest
import torch
from torch import Tensor

from common.ids import PageId
from common.kernels import ops, reference
from common.kernels.attention_rows import native_pages
from common.kv.cache import KVCache
from tests.conformance.kernels.fp8_pages import (
    codes_of,
    fp8_pool,
    held,
    put,
    quantised,
    rows_of,
    scales_of,
)
from tests.conformance.kernels.in_triton.traffic import counting
from tests.conformance.kernels.pools import POISON, Heads, Sequence, give_pages, random_sequence
from tests.conformance.kernels.test_ops import normal

pytestmark = pytest.mark.usefixtures("path")

DTYPES = {torch.float32: 1e-5, torch.float16: 4e-3}  # and the relative error allowed in reading
FLOAT32_ERROR = 1e-6  # of a rotation, relative to the largest element


def write(
    pool: KVCache, k_NGD: Tensor, v_NGD: Tensor, slots: list[int], layer: int = 0
) -> tuple[Tensor, Tensor]:
    """By the kernel, at positions that are the slots; what it rotates k to and v, in float64."""
    head_dim = k_NGD.shape[-1]
    angles = normal(pool.n_pages * pool.spec.page_tokens, head_dim // 2, seed=5)
    table, slots_N = torch.cat((angles.cos(), angles.sin()), dim=1), torch.tensor(slots)
    ops.rope_and_write(k_NGD, k_NGD, v_NGD, table, slots_N, slots_N, pool.layer(layer))
    return reference.rotate(k_NGD, table, slots_N), v_NGD.double()


def written(pool: KVCache, slots: list[int], which: int, layer: int = 0) -> tuple[Tensor, Tensor]:
    """Numbers of e4m3 [N, G, D] and scales [N, G], both in float64."""
    page, at = np.divmod(slots, pool.spec.page_tokens)
    codes = codes_of(pool)[page, layer, which, :, at].view(torch.float8_e4m3fn)
    return codes.double(), scales_of(pool)[page, layer, which, :, at].double()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n_kv_heads", "head_dim", "page_tokens"), [(3, 64, 16), (2, 80, 1)])
def test_what_is_written_is_the_nearest_number(
    n_kv_heads: int, head_dim: int, page_tokens: int, dtype: torch.dtype
) -> None:
    """And what is not written to stays as it is."""
    pool = fp8_pool(Heads(n_kv_heads=n_kv_heads, n_rep=1, head_dim=head_dim), 40, page_tokens, 3)
    slots = [40 * page_tokens - 1, 0, 2 * page_tokens, 7]
    k, v = (normal(4, n_kv_heads, head_dim, seed=n).to(dtype) for n in range(2))
    v[1] *= 3e3
    v[2] *= 1e-6
    for which, exact in enumerate(write(pool, k, v, slots, layer=1)):
        number, scale = written(pool, slots, which, layer=1)
        largest = exact.abs().amax(-1)
        torch.testing.assert_close(scale, largest / 448, rtol=2 * FLOAT32_ERROR, atol=0)
        off = (number * scale[..., None] - exact).abs()
        allowed = torch.maximum(exact.abs() / 16, scale[..., None] / 1024)
        assert (off <= allowed + FLOAT32_ERROR * largest[..., None]).all()
        assert off.square().mean().sqrt() < exact.square().mean().sqrt() / 32
    codes, scales = codes_of(pool), scales_of(pool)
    page, at = np.divmod(slots, page_tokens)
    codes[page, 1, :, :, at] = POISON
    scales[page, 1, :, :, at] = torch.nan
    assert (pool.pages_PB[:, : pool.spec.scales_at] == POISON).all()
    assert (pool.pages_PB[:, pool.spec.used_bytes :] == POISON).all()
    assert scales.isnan().all()


def test_every_number_and_every_tie_is_rounded_as_the_definition_says() -> None:
    numbers = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    ties = (numbers[1:] + numbers[:-1]) / 2
    x = torch.cat((numbers, ties, ties.nextafter(numbers[1:]), ties.nextafter(numbers[:-1])))
    x = torch.cat((x, -x, torch.zeros(-2 * len(x) % 63)))
    v = torch.cat((x.view(-1, 1, 63), torch.full((len(x) // 63, 1, 1), 448.0)), dim=2)
    pool = fp8_pool(Heads(n_kv_heads=1, n_rep=1, head_dim=64), 2, 16)
    slots = list(range(len(v)))
    write(pool, v, v, slots)
    number, scale = written(pool, slots, 1)
    codes, _ = quantised(v)
    assert (scale == 1).all()
    assert torch.equal(number, codes.view(torch.float8_e4m3fn).double())


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_head_that_is_not_finite_is_read_as_nan_and_no_other(bad: float) -> None:
    pool = fp8_pool(Heads(n_kv_heads=2, n_rep=1, head_dim=64), 1, 16)
    x = normal(2, 2, 64)
    x[1, 1, 40] = bad
    with np.errstate(invalid="ignore"):
        write(pool, x, x, [3, 4])
    for which in (0, 1):
        number, scale = written(pool, [3, 4], which)
        read = number * scale[..., None]
        assert read[1, 1].isnan().all()
        read[1, 1] = 0.0
        assert read.isfinite().all()


def test_heads_of_zeros_and_of_any_size_are_kept() -> None:
    pool = fp8_pool(Heads(n_kv_heads=1, n_rep=1, head_dim=64), 1, 16)
    sizes = [0.0, 1e-45, 1e-36, 1e-35, 1e-20, 1.0, 1e20, 1e38]
    x = normal(1, 1, 64, seed=3).clamp(-3, 3) / 3 * torch.tensor(sizes).view(-1, 1, 1)
    write(pool, x, x, list(range(len(sizes))))
    number, scale = written(pool, list(range(len(sizes))), 1)
    read = number * scale[..., None]
    assert not read[:2].any()
    assert (read[2] == 0).all()  # too small to be divided by
    largest = x.double().abs().amax(-1, keepdim=True)
    off = (read - x.double()).abs()
    assert (off[3:] <= torch.maximum(x.double().abs() / 16, largest / 448 / 1024)[3:] * 1.001).all()


def attend(pool: KVCache, chunks: list[tuple[Sequence, int]], dtype: torch.dtype) -> list[Tensor]:
    """From the last n tokens of each, which are written."""
    parts = [s.q_SND[s.written - n : s.written] for s, n in chunks]
    out_TND = ops.attend(torch.cat(parts).to(dtype), pool.layer(1), rows_of(pool, chunks))
    return list(out_TND.split([n for _, n in chunks]))


def check(pool: KVCache, sequence: Sequence, got: Tensor) -> None:
    """`got`: of the last tokens that are written."""
    tolerance = DTYPES[got.dtype]
    q = sequence.q_SND[sequence.written - len(got) : sequence.written].to(got.dtype)
    k, v = held(pool, sequence, layer=1)
    size = float(v.abs().max()) / 4  # of values as others are tested with, some 1
    torch.testing.assert_close(
        got.double(), reference.attend(q, k, v), rtol=tolerance, atol=tolerance * size
    )


CASES = [
    (1, 96, 16, torch.float32),
    (3, 64, 16, torch.float16),
    (4, 80, 64, torch.float32),
    (8, 128, 64, torch.float16),
    pytest.param(1, 128, 64, torch.float16, marks=pytest.mark.full),
    pytest.param(3, 96, 64, torch.float32, marks=pytest.mark.full),
    pytest.param(4, 64, 16, torch.float16, marks=pytest.mark.full),
    pytest.param(8, 128, 16, torch.float32, marks=pytest.mark.full),
]


@pytest.mark.parametrize(("n_rep", "head_dim", "page_tokens", "dtype"), CASES)
def test_what_is_read_is_exact(
    n_rep: int, head_dim: int, page_tokens: int, dtype: torch.dtype
) -> None:
    heads = Heads(n_kv_heads=2, n_rep=n_rep, head_dim=head_dim)
    seed = n_rep * 1000 + head_dim + page_tokens
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    lengths = [1, page_tokens + 1, rng.choice([257, 280]), rng.randint(3, 60)]
    sequences = [random_sequence(heads, n, generator) for n in lengths]
    sequences[1].v_SGD *= 1e-3
    sequences[3].v_SGD *= 1e3 if dtype is torch.float32 else 1.0
    pool = fp8_pool(heads, 6 + sum(lengths) // page_tokens, page_tokens, 2)
    give_pages(sequences, pool, rng)
    put(pool, [(s, len(s) - 1) for s in sequences], layer=1)
    for n in (1, rng.randint(2, 20)):
        if n == 1:
            put(pool, [(s, 1) for s in sequences], layer=1)
        chunks = [(s, min(n, len(s))) for s in sequences]
        for (sequence, _), got in zip(chunks, attend(pool, chunks, dtype), strict=True):
            check(pool, sequence, got)


def test_answers_are_within_what_three_bits_keep() -> None:
    """Of numbers that are alike, errors of 2^-4 at most have a root mean square of some 2^-5.3;
    scores of size 2 change by that much of it, weights by as much, and values likewise."""
    heads = Heads(n_kv_heads=2, n_rep=3, head_dim=64)
    sequence = random_sequence(heads, 200, torch.Generator().manual_seed(0))
    pool = fp8_pool(heads, 14, 16, 2)
    give_pages([sequence], pool, random.Random(0))
    put(pool, [(sequence, 200)], layer=1)
    got = attend(pool, [(sequence, 12)], torch.float32)[0].double()
    wanted = reference.attend(sequence.q_SND[-12:], sequence.k_SGD, sequence.v_SGD)
    off = (got - wanted).square().mean().sqrt() / wanted.square().mean().sqrt()
    assert 2**-7 < off < 3 * 2**-5.3


@pytest.mark.parametrize(("n_rep", "head_dim", "page_tokens"), [(3, 64, 64), (4, 80, 16)])
def test_a_row_s_bits_depend_on_that_row_alone(n_rep: int, head_dim: int, page_tokens: int) -> None:
    """One pass over each sequence, against decoding and chunks, together, in other pages."""
    heads = Heads(n_kv_heads=1, n_rep=n_rep, head_dim=head_dim)
    rng, generator = random.Random(n_rep), torch.Generator().manual_seed(0)
    sequences = [random_sequence(heads, n, generator) for n in (5, 280, 70)]
    pool = fp8_pool(heads, 4 + 355 // page_tokens, page_tokens, 2)

    def begin(n_left: int) -> None:
        pool.pages_PB.fill_(POISON)
        give_pages(sequences, pool, rng)
        for sequence in sequences:
            sequence.written = 0
        put(pool, [(s, len(s) - n_left) for s in sequences], layer=1)

    begin(0)
    whole = [attend(pool, [(s, 4)], torch.float32)[0] for s in sequences]
    begin(4)
    parts: list[list[Tensor]] = [[] for _ in sequences]
    for n in (1, 2, 1):
        chunks = [(s, n) for s in sequences]
        put(pool, chunks, layer=1)
        for of_one, part in zip(parts, attend(pool, chunks, torch.float32), strict=True):
            of_one.append(part)
    for of_one, wanted in zip(parts, whole, strict=True):
        assert torch.equal(torch.cat(of_one), wanted)


def test_pages_beyond_two_to_the_31_floats() -> None:
    """Scales are floats: the last page of a sparse pool, of which nothing else is touched."""
    kv = fp8_pool(Heads(n_kv_heads=2, n_rep=2, head_dim=64), 1, 16, 2).spec
    n_pages = 2**33 // kv.page_bytes + 2
    mapped = mmap.mmap(-1, n_pages * kv.page_bytes)
    pool = KVCache(kv, np.frombuffer(mapped, np.uint8).reshape(n_pages, kv.page_bytes))
    last = (n_pages - 1) * kv.page_tokens
    q, k, v = (normal(2, n, 64, seed=n) for n in (4, 2, 2))
    table = torch.cat((torch.ones(1, 32), torch.zeros(1, 32)), dim=1)
    ops.rope_and_write(q, k, v, table, torch.zeros(2, dtype=torch.int64),
                       torch.tensor([last, last + 1]), pool.layer(1))  # fmt: skip
    sequence = Sequence(q_SND=q, k_SGD=k, v_SGD=v, pages=[PageId(n_pages - 1)], written=2)
    check(pool, sequence, attend(pool, [(sequence, 2)], torch.float32)[0])
    check(pool, sequence, attend(pool, [(sequence, 1)], torch.float32)[0])


def test_a_token_s_bytes_depend_on_that_token_alone() -> None:
    heads = Heads(n_kv_heads=3, n_rep=1, head_dim=64)
    x, y = normal(6, 3, 64, seed=1), normal(6, 3, 64, seed=2)
    together, alone = fp8_pool(heads, 2, 16), fp8_pool(heads, 2, 16)
    slots = [3, 17, 8, 31, 0, 5]
    write(together, x, y, slots)
    for row in (4, 1, 5, 0, 2, 3):
        write(alone, x[row : row + 1], y[row : row + 1], slots[row : row + 1])
    assert torch.equal(together.pages_PB, alone.pages_PB)


@pytest.mark.parametrize(("n_rep", "lengths"), [(1, (300, 70)), (4, (512, 480))])
def test_bytes_are_those_that_must_be_moved(n_rep: int, lengths: tuple[int, ...]) -> None:
    """A token's numbers and scales once, whatever the number of query heads that share them."""
    heads = Heads(n_kv_heads=2, n_rep=n_rep, head_dim=128)
    sequences = [random_sequence(heads, n, torch.Generator().manual_seed(n)) for n in lengths]
    pool = fp8_pool(heads, 70, 16, 2)
    give_pages(sequences, pool, random.Random(0))
    put(pool, [(s, len(s)) for s in sequences], layer=1)
    with counting() as traffic:
        out = torch.cat(attend(pool, [(s, 1) for s in sequences], torch.float16))
    n_pages = sum(len(s.pages) for s in sequences)
    token_bytes = pool.spec.token_bytes // pool.spec.n_layers
    assert token_bytes == 2 * 2 * (128 + 4)
    floor = sum(map(len, sequences)) * token_bytes + 2 * out.nbytes + 4 * n_pages
    assert floor <= traffic.n_bytes <= 1.05 * floor


def test_bytes_written_are_those_that_must_be() -> None:
    pool = fp8_pool(Heads(n_kv_heads=2, n_rep=4, head_dim=128), 1, 16)
    q, k, v = (normal(6, n, 128).half() for n in (8, 2, 2))
    positions, table = torch.arange(6), normal(6, 128)
    with counting() as traffic:
        ops.rope_and_write(q, k, v, table, positions, positions, pool.layer(0))
    read = q.nbytes + k.nbytes + v.nbytes + table.nbytes + 2 * positions.nbytes
    floor = read + q.nbytes + 6 * pool.spec.token_bytes
    assert floor <= traffic.n_bytes <= 1.05 * floor


def test_the_kernels_of_cpus_refuse_such_pages() -> None:
    pool = fp8_pool(Heads(n_kv_heads=1, n_rep=1, head_dim=64), 1, 16)
    with pytest.raises(ValueError, match="fp8"):
        native_pages(pool.layer(0))
