"""Every operation but attention against its definition in float64."""

import numpy as np
import pytest
import torch
from torch import Tensor

from common.engine.plan import PassPlan, Piece, pack
from common.engine.runner import inputs_of
from common.ids import PageId
from common.kernels import ops, reference
from common.kernels.attention_rows import AttentionRows, HeadNorms
from common.kv.cache import KVCache
from common.kv.layout import KVSpec
from tests.conformance.kernels.pools import POISON, Heads, poisoned_pool

DTYPES = {torch.float32: 2e-6, torch.bfloat16: 2e-2}  # and the relative error allowed
TOLERANCES = {**DTYPES, torch.float16: 3e-3}


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def check(got: Tensor, wanted: Tensor, dtype: torch.dtype) -> None:
    assert got.dtype == dtype
    tolerance = TOLERANCES[dtype]
    torch.testing.assert_close(got.double(), wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n_rows", [1, 16, 33])
@pytest.mark.parametrize("n_outputs", [64, 8, 101])
@pytest.mark.parametrize("has_bias", [False, True])
def test_linear(dtype: torch.dtype, n_rows: int, n_outputs: int, has_bias: bool) -> None:  # noqa: FBT001
    x, w = normal(n_rows, 96).to(dtype), (normal(n_outputs, 96, seed=1) / 10).to(dtype)
    bias = normal(n_outputs, seed=2).to(dtype) if has_bias else None
    check(ops.linear(x, w, bias), reference.linear(x, w, bias), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 576), (7, 100), (5, 9, 64), (3, 5), (200, 640)])
@pytest.mark.usefixtures("path")
def test_rms_norm(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    x, weight = (normal(*shape) * 3).to(dtype), normal(shape[-1], seed=1).to(dtype)
    residual = normal(*shape, seed=2).to(dtype)
    before, total = x.clone(), x + residual
    check(ops.rms_norm(x, weight, 1e-5), reference.rms_norm(x, weight, 1e-5), dtype)
    normed = ops.add_rms_norm(x, residual, weight, 1e-5)
    assert torch.equal(residual, total)
    check(normed, reference.rms_norm(total, weight, 1e-5), dtype)
    assert torch.equal(x, before)


@pytest.mark.parametrize("dtype", DTYPES)
def test_swiglu(dtype: torch.dtype) -> None:
    x, w = normal(9, 3).to(dtype), (normal(2 * 51, 3, seed=1)).to(dtype)
    x[0, 0], x[1, 0] = 500.0, -500.0  # exponentials overflow
    rounded = reference.linear(x, w, None).to(dtype)
    check(ops.swiglu(x, w, None), reference.silu_mul(rounded), dtype)


def test_embed() -> None:
    table = normal(20, 8)
    assert torch.equal(ops.embed(torch.tensor([3, 19, 3]), table), table[[3, 19, 3]])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("head_dim", "page_tokens"), [(64, 16), (80, 1), (96, 64), (10, 4)])
@pytest.mark.usefixtures("path")
def test_rope_and_write(dtype: torch.dtype, head_dim: int, page_tokens: int) -> None:
    """Also that what is not written to stays as it is."""
    heads = Heads(n_kv_heads=2, n_rep=3, head_dim=head_dim)
    name = str(dtype).removeprefix("torch.")
    pool = poisoned_pool(heads, 5, page_tokens, n_layers=3, dtype=name)
    slots = torch.tensor([5 * page_tokens - 1, 0, 2 * page_tokens])
    positions = torch.tensor([0, 9, 4])
    angles = torch.rand(10, head_dim // 2, generator=torch.Generator().manual_seed(1)) * 6
    table = torch.cat((angles.cos(), angles.sin()), dim=1)
    q, k, v = (normal(3, n, head_dim, seed=n).to(dtype) for n in (6, 2, 2))
    rotated = ops.rope_and_write(q, k, v, table, positions, slots, pool.layer(1))
    check(rotated, reference.rotate(q, table, positions), dtype)
    kv = in_pages(pool.spec, pool.pages_PB, dtype)
    where = (slots // page_tokens, slice(None), slots % page_tokens)
    check(kv[:, 1, 0][where], reference.rotate(k, table, positions), dtype)
    assert torch.equal(kv[:, 1, 1][where], v)
    kv[:, 1, 0][where] = torch.nan
    kv[:, 1, 1][where] = torch.nan
    assert kv.isnan().all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("with_norms", [False, True])
@pytest.mark.usefixtures("path")
def test_attention_is_its_parts(dtype: torch.dtype, with_norms: bool) -> None:  # noqa: FBT001
    heads = Heads(n_kv_heads=2, n_rep=3, head_dim=64)
    n_tokens, name = 40, str(dtype).removeprefix("torch.")
    table = normal(n_tokens, 64, seed=1)
    norms = None
    if with_norms:
        norms = HeadNorms(normal(64, seed=2).to(dtype), normal(64, seed=3).to(dtype), 1e-5)
    qkv_TX = normal(n_tokens, (6 + 2 + 2) * 64).to(dtype)
    q, k, v = qkv_TX.clone().view(n_tokens, -1, 64).split((6, 2, 2), dim=1)
    if norms is not None:
        q, k = (ops.rms_norm(x, w, 1e-5) for x, w in ((q, norms.q_D), (k, norms.k_D)))
    pools = [poisoned_pool(heads, 4, 16, dtype=name) for _ in range(2)]
    rows = rows_of_one_sequence(n_tokens, pools[0])
    q = ops.rope_and_write(q, k, v, table, rows.positions_T, rows.slots_T, pools[0].layer(0))
    wanted = ops.attend(q, pools[0].layer(0), rows).flatten(1)
    rows = rows_of_one_sequence(n_tokens, pools[1])
    got = ops.attention(qkv_TX, norms, table, rows, pools[1].layer(0))
    assert torch.equal(got, wanted)
    assert torch.equal(pools[0].pages_PB, pools[1].pages_PB)


def rows_of_one_sequence(n_tokens: int, pool: KVCache) -> AttentionRows:
    arrays = pack([Piece([0] * n_tokens, 0, [PageId(2), PageId(0), PageId(3)])], 16)
    return inputs_of(PassPlan(**arrays), pool.geometry).rows  # pyright: ignore[reportArgumentType] pack() names its arrays as PassPlan does


@pytest.mark.parametrize("n_vocab", [1, 15, 64, 1000, 5003])
@pytest.mark.usefixtures("path")
def test_argmax(n_vocab: int) -> None:
    logits = normal(30, n_vocab).mul_(2).round_()  # many are equal
    logits[1:20, : n_vocab // 2] = -torch.inf
    assert ops.argmax(logits) == [int((row == row.max()).nonzero()[0]) for row in logits]
    for row, bad in enumerate((torch.nan, torch.inf, -torch.inf)):
        logits[row, n_vocab // 3] = bad
    logits[3:5] = -torch.inf
    logits[5, -1] = torch.nan
    got = ops.argmax(logits)
    finite = [bool(row.max().isfinite()) for row in logits]
    assert [token >= 0 for token in got] == finite


def in_pages(spec: KVSpec, pages_PB: Tensor, dtype: torch.dtype) -> Tensor:
    """[pages, *spec.shape], as `KVSpec` says that a page is."""
    return pages_PB[:, : spec.used_bytes].view(dtype).view(-1, *spec.shape)


def test_a_page_s_padding_is_left_alone() -> None:
    pool = poisoned_pool(Heads(n_kv_heads=1, n_rep=1, head_dim=80), 3, 4)
    assert pool.spec.used_bytes < pool.spec.page_bytes
    x = normal(12, 1, 80)
    ops.rope_and_write(
        x, x, x, normal(1, 80), torch.zeros(12, dtype=torch.int64), torch.arange(12), pool.layer(0)
    )
    bytes_ = pool.pages_PB.numpy()
    assert (bytes_[:, pool.spec.used_bytes :] == POISON).all()
    assert np.isfinite(bytes_[:, : pool.spec.used_bytes].view(np.float32)).all()
