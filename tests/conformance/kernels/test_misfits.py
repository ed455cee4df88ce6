"""What does not fit its rows or pages is refused before C++ reads where nothing is."""

import numpy as np
import pytest
import torch
from torch import Tensor

from common.kernels import native_attention
from common.kernels.attention_plan import Sequences
from common.kernels.attention_rows import AttentionRows
from common.kernels.cpu import native
from common.kernels.paged import KVLayer
from tests.conformance.kernels.pools import Heads, poisoned_pool

pytestmark = pytest.mark.skipif(not native.available(), reason=native.why_not())

HEADS = Heads(n_kv_heads=2, n_rep=3, head_dim=16)
N_ROWS, PAGE_TOKENS = 5, 4
COS_SIN = torch.zeros(8, 16)


def layer(page_tokens: int = PAGE_TOKENS) -> KVLayer:
    return poisoned_pool(HEADS, 4, page_tokens).layer(0)


def rows(n_positions: int = N_ROWS, n_slots: int = N_ROWS) -> AttentionRows:
    sequences = Sequences(
        start_B1=np.array([0, N_ROWS], np.int32),
        len_B=np.array([N_ROWS], np.int32),
        tables_BM=np.array([[0, 1]], np.int32),
    )
    return AttentionRows(
        torch.arange(n_positions), torch.arange(n_slots), sequences, layer().geometry
    )


def qkv(n_rows: int = N_ROWS, n_heads: int = HEADS.n_heads + 2 * HEADS.n_kv_heads) -> Tensor:
    return torch.ones(n_rows, n_heads * HEADS.head_dim)


def attention(x: Tensor, some: AttentionRows, out: Tensor | None = None) -> Tensor:
    return native_attention.attention(x, None, COS_SIN, some, layer(), out)


def test_what_fits_is_computed() -> None:
    assert attention(qkv(), rows()).shape == (N_ROWS, HEADS.n_heads * HEADS.head_dim)


@pytest.mark.parametrize(
    ("x", "some"),
    [
        (qkv(N_ROWS - 1), rows()),
        (qkv(N_ROWS + 1), rows()),
        (qkv().T.contiguous().T, rows()),
        (qkv(), rows(n_positions=N_ROWS - 1)),
        (qkv(), rows(n_slots=N_ROWS - 1)),
        (qkv().bfloat16(), rows()),
    ],
    ids=["fewer rows", "more rows", "strided", "positions", "slots", "dtype"],
)
def test_rows(x: Tensor, some: AttentionRows) -> None:
    with pytest.raises((ValueError, RuntimeError)):
        attention(x, some)


@pytest.mark.parametrize(
    "out",
    [torch.empty(N_ROWS, 95), torch.empty(96, N_ROWS).T, torch.empty(N_ROWS, 96).bfloat16()],
    ids=["shape", "strides", "dtype"],
)
def test_results(out: Tensor) -> None:
    with pytest.raises(ValueError, match=r"for (5 )?rows"):
        attention(qkv(), rows(), out)


def test_queries_and_pools() -> None:
    q = torch.ones(N_ROWS, HEADS.n_heads, HEADS.head_dim)
    with pytest.raises(ValueError, match="heads"):
        native_attention.attend(q[1:], layer(), rows())
    with pytest.raises(ValueError, match="heads"):
        native_attention.attend(q[..., 1:], layer(), rows())
    with pytest.raises(ValueError, match="for rows of"):
        native_attention.attend(q, layer(page_tokens=8), rows())


def test_keys_to_write() -> None:
    q, k = torch.ones(N_ROWS, 6, 16), torch.ones(N_ROWS, 2, 16)
    at = torch.arange(N_ROWS)
    for keys, values in ((k[1:], k), (k, k[1:]), (k, k[:, :1]), (k[..., 1:], k)):
        with pytest.raises(ValueError, match="heads"):
            native_attention.rope_and_write(q, keys, values, COS_SIN, at, at, layer())
