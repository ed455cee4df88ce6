"""Pages of fp8 as a GPU writes and reads them, against their definition in float64."""

import random

import pytest
import torch
from torch import Tensor

from common.kernels import ops, reference
from common.kv.cache import KVCache
from common.spellings import FP8_CAPABILITY
from tests.conformance.kernels.fp8_pages import (
    codes_of,
    fp8_pool,
    held,
    put,
    quantised,
    rows_of,
    scales_of,
)
from tests.conformance.kernels.pools import Heads, Sequence, give_pages, random_sequence
from tests.conformance.kernels.test_ops import normal

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        torch.cuda.is_available() and torch.cuda.get_device_capability() < FP8_CAPABILITY,
        reason="the GPU has no fp8",
    ),
]

GPU = torch.device("cuda")
DTYPES = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 0.04}  # and errors allowed
SLOTS = [3, 17, 8, 31, 0, 5]


def written(k: Tensor, v: Tensor) -> KVCache:
    """A pool in memory, of what a GPU has written to slots, unrotated."""
    n_heads, head_dim = k.shape[1:]
    pool = fp8_pool(Heads(n_kv_heads=n_heads, n_rep=1, head_dim=head_dim), 2, 16)
    there = KVCache(pool.spec, pool.pages_PB.to(GPU))
    at = torch.tensor(SLOTS[: len(k)], device=GPU)
    table = torch.tensor([[1.0] * (head_dim // 2) + [0.0] * (head_dim // 2)], device=GPU)
    k, v = k.to(GPU), v.to(GPU)
    ops.rope_and_write(k, k, v, table, torch.zeros_like(at), at, there.layer(0))
    return KVCache(pool.spec, there.pages_PB.cpu())


def kept(pool: KVCache, n: int, which: int) -> tuple[Tensor, Tensor]:
    """Numbers of e4m3 [n, G, D] and scales [n, G], in float64."""
    at = torch.tensor(SLOTS[:n])
    codes = codes_of(pool)[at // 16, 0, which, :, at % 16].view(torch.float8_e4m3fn)
    return codes.double(), scales_of(pool)[at // 16, 0, which, :, at % 16].double()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("head_dim", [64, 80, 128])
def test_what_is_written_is_the_nearest_number(head_dim: int, dtype: torch.dtype) -> None:
    k, v = (normal(len(SLOTS), 3, head_dim, seed=n).to(dtype) for n in range(2))
    k[1] *= 3e3
    v[2] *= 1e-6
    v[3, 1] = 0.0
    pool = written(k, v)
    for which, x in enumerate((k.double(), v.double())):
        number, scale = kept(pool, len(SLOTS), which)
        torch.testing.assert_close(scale, x.abs().amax(-1) / 448, rtol=1e-6, atol=0)
        allowed = torch.maximum(x.abs() / 16, scale[..., None] / 1024) * (1 + 1e-5)
        assert ((number * scale[..., None] - x).abs() <= allowed).all()


def test_every_number_and_every_tie_is_rounded_as_the_definition_says() -> None:
    numbers = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    ties = (numbers[1:] + numbers[:-1]) / 2
    x = torch.cat((numbers, ties, -numbers, -ties))
    x = torch.cat((x, torch.zeros(6 * 127 - len(x)))).view(6, 1, 127)
    x = torch.cat((x, torch.full((6, 1, 1), 448.0)), dim=2)
    number, scale = kept(written(x, x), 6, 1)
    assert (scale == 1).all()
    assert torch.equal(number, quantised(x)[0].view(torch.float8_e4m3fn).double())


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_head_that_is_not_finite_is_read_as_nan_and_no_other(bad: float) -> None:
    x = normal(2, 2, 64)
    x[1, 1, 40] = bad
    pool = written(x, x)
    for which in (0, 1):
        number, scale = kept(pool, 2, which)
        read = number * scale[..., None]
        assert read[1, 1].isnan().all()
        read[1, 1] = 0.0
        assert read.isfinite().all()


def attend(pool: KVCache, chunks: list[tuple[Sequence, int]], dtype: torch.dtype) -> list[Tensor]:
    """From the last n tokens of each, which are written."""
    there = KVCache(pool.spec, pool.pages_PB.to(GPU))
    q_TND = torch.cat([s.q_SND[s.written - n : s.written] for s, n in chunks]).to(dtype)
    out_TND = ops.attend(q_TND.to(GPU), there.layer(1), rows_of(pool, chunks)).cpu()
    return list(out_TND.split([n for _, n in chunks]))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n_rep", "head_dim"), [(1, 128), (3, 64), (4, 128), (8, 128), (4, 80)])
def test_what_is_read_is_exact(n_rep: int, head_dim: int, dtype: torch.dtype) -> None:
    heads = Heads(n_kv_heads=2, n_rep=n_rep, head_dim=head_dim)
    rng, generator = random.Random(n_rep), torch.Generator().manual_seed(head_dim)
    sequences = [random_sequence(heads, n, generator) for n in (1, 300, 2, 1025)]
    sequences[1].v_SGD *= 1e-3
    pool = fp8_pool(heads, 100, 16, 2)
    give_pages(sequences, pool, rng)
    put(pool, [(s, len(s)) for s in sequences], layer=1)
    for most in (1, 400):
        chunks = [(s, min(most, len(s))) for s in sequences]
        for (sequence, n), got in zip(chunks, attend(pool, chunks, dtype), strict=True):
            k, v = held(pool, sequence, layer=1)
            wanted = reference.attend(sequence.q_SND[-n:].to(dtype), k, v)
            atol = DTYPES[dtype] * float(v.abs().max()) / 4
            torch.testing.assert_close(got.double(), wanted, rtol=DTYPES[dtype], atol=atol)


def test_in_float32_decode_and_prefill_give_a_row_the_same_bits() -> None:
    heads = Heads(n_kv_heads=2, n_rep=4, head_dim=128)
    sequence = random_sequence(heads, 600, torch.Generator().manual_seed(0))
    pool = fp8_pool(heads, 50, 16, 2)
    give_pages([sequence], pool, random.Random(0))
    put(pool, [(sequence, 600)], layer=1)
    whole, last = (attend(pool, [(sequence, n)], torch.float32)[0] for n in (600, 1))
    assert torch.equal(last[0], whole[599])
