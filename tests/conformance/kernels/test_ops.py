"""Every operation but attention against its definition in float64."""

import numpy as np
import pytest
import torch
from torch import Tensor

from common.kernels import ops, reference
from common.kv.layout import KVSpec
from tests.conformance.kernels.pools import POISON, Heads, poisoned_pool

DTYPES = {torch.float32: 2e-6, torch.bfloat16: 2e-2}  # and the relative error allowed


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def check(got: Tensor, wanted: Tensor, dtype: torch.dtype) -> None:
    assert got.dtype == dtype
    tolerance = DTYPES[dtype]
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
@pytest.mark.parametrize("shape", [(1, 576), (7, 100), (5, 9, 64)])
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
@pytest.mark.parametrize(("head_dim", "page_tokens"), [(64, 16), (80, 1), (96, 64)])
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
