"""What pages of fp8 do to answers, emulated where a CPU computes: K and V are rounded as kernels of
GPUs round them, and kept in the pool's dtype. CPUs serve no such pages."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from common.kernels import ops
from common.kernels.attention_rows import AttentionRows, HeadNorms
from common.kernels.paged import KVLayer
from common.kv.cache import KVCache
from common.model.inputs import PassInputs
from common.model.llama import Llama

LARGEST = 448.0  # of e4m3
LEAST_SCALE = 2.0**-126


class Fp8Pages:
    """A model whose pages are as if they were fp8: a `common.engine.runner.Model`."""

    def __init__(self, model: Llama) -> None:
        self.model = model

    def forward(self, inputs: PassInputs, kv: KVCache) -> Tensor:
        with _rounded_pages():
            rows_TH = ops.embed(inputs.tokens_T, self.model.embed_VH)
            return self.model.layer_by_layer(rows_TH, inputs, kv)

    def logits(self, hidden_RH: Tensor) -> Tensor:
        return self.model.logits(hidden_RH)


def read_back(x: Tensor) -> Tensor:
    """What is read of heads [..., D] that were written; finite."""
    scale = x.float().abs().amax(-1, keepdim=True) / LARGEST
    factor = torch.where(scale < LEAST_SCALE, 0.0, 1 / scale)
    return ((x.float() * factor).to(torch.float8_e4m3fn).float() * scale).to(x.dtype)


@contextmanager
def _rounded_pages() -> Iterator[None]:
    exact = ops.attention
    ops.attention = _attention
    try:
        yield
    finally:
        ops.attention = exact


def _attention(
    qkv_TX: Tensor,
    norms: HeadNorms | None,
    cos_sin_LD: Tensor,
    rows: AttentionRows,
    layer: KVLayer,
    out: Tensor | None = None,
) -> Tensor:
    """`ops.attention`, what it writes rounded before it is read."""
    n_rows, n_kv_heads = len(qkv_TX), layer.geometry.n_kv_heads
    heads_TND = qkv_TX.view(n_rows, -1, layer.geometry.head_dim)
    sizes = (heads_TND.shape[1] - 2 * n_kv_heads, n_kv_heads, n_kv_heads)
    q_TND, k_TGD, v_TGD = heads_TND.split(sizes, dim=1)
    if norms is not None:
        q_TND = ops.rms_norm(q_TND, norms.q_D, norms.eps)
        k_TGD = ops.rms_norm(k_TGD, norms.k_D, norms.eps)
    q_TND = ops.rope_and_write(
        q_TND, k_TGD, v_TGD, cos_sin_LD, rows.positions_T, rows.slots_T, layer
    )
    page_tokens = layer.geometry.page_tokens
    where = (rows.slots_T // page_tokens, rows.slots_T % page_tokens)
    for x_PSGD in (layer.k_PSGD, layer.v_PSGD):
        x_PSGD[where] = read_back(x_PSGD[where])
    attended_TX = ops.attend(q_TND, layer, rows).reshape(n_rows, -1)
    return attended_TX if out is None else out.copy_(attended_TX)
