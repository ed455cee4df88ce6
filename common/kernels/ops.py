"""The operations that a model's pass is made of, and the choice of their implementation.

A row's result must not depend on the rows beside it: in float32 not in one bit (law 3), so a
model adds no arithmetic of its own. All tensors are on one device. `out` is a contiguous tensor to
put the result in: at one row, allocating it anew costs as much as the call.

T rows (packed tokens)  H hidden  I inputs or intermediate  O outputs  V vocabulary
N query heads  G KV heads  D head dim  L positions
"""

from types import ModuleType

import torch
from torch import Tensor

from common.kernels import (
    native_attention,
    native_products,
    native_rowwise,
    torch_attention,
    torch_path,
)
from common.kernels.attention_rows import AttentionRows, HeadNorms
from common.kernels.cpu import native
from common.kernels.matrix import Matrix, packs
from common.kernels.paged import KVLayer
from common.kernels.triton import choice
from common.kernels.triton.logprob_rows import LogprobRows
from common.kernels.triton.sampling_rows import SamplingRows


def set_threads(n: int, dtype: torch.dtype | None = None) -> None:
    """Compute threads of this process from now on, the caller's included.

    Where the C++ kernels compute with rows of `dtype`, torch gets no thread of its own: OpenMP's
    spin for milliseconds after an operation, on the processors that the kernels' need.
    """
    torch.set_num_threads(1 if dtype is not None and packs(dtype) else n)
    if native.available():
        native.lib.set_threads(n)


def is_native(x: Tensor) -> bool:
    """Whether the C++ kernels compute with such rows."""
    if not native.available() or x.device.type != "cpu":
        return False
    return x.dtype is torch.bfloat16 or x.dtype is torch.float32


def embed(ids_T: Tensor, table: Matrix) -> Tensor:
    """Rows of the table [V, H]: [T, H]. `ids_T` int64. IndexError: there is no such row."""
    if isinstance(table, Tensor):
        return torch_path.embed(ids_T, table)
    return table.read(ids_T)


def linear(x_TI: Tensor, w_OI: Matrix, bias_O: Tensor | None, out: Tensor | None = None) -> Tensor:
    """x W' + b: [T, O]."""
    if isinstance(w_OI, Tensor):
        if choice.computes(x_TI):
            return _triton().linear(x_TI, w_OI, bias_O, out)
        return _put(torch_path.linear(x_TI, w_OI, bias_O), out)
    return native_products.multiply(x_TI, w_OI, bias_O, out)


def logits(x_TI: Tensor, w_OI: Matrix) -> Tensor:
    """x W': [T, O] float32. No more exact than the weights' dtype, though not rounded to it."""
    if isinstance(w_OI, Tensor):
        if choice.computes(x_TI):
            return _triton().logits(x_TI, w_OI)
        return torch_path.linear(x_TI, w_OI, None).float()
    out = torch.empty((len(x_TI), w_OI.n_outputs), dtype=torch.float32)
    return native_products.multiply(x_TI, w_OI, None, out)


def swiglu(
    x_TH: Tensor, gate_up_2IH: Matrix, bias_2I: Tensor | None, out: Tensor | None = None
) -> Tensor:
    """silu(x Wg' + bg) * (x Wu' + bu): [T, I]. A packed matrix must be gated."""
    if isinstance(gate_up_2IH, Tensor):
        if choice.computes(x_TH):
            return _triton().swiglu(x_TH, gate_up_2IH, bias_2I, out)
        return _put(torch_path.swiglu(x_TH, gate_up_2IH, bias_2I), out)
    return native_products.multiply(x_TH, gate_up_2IH, bias_2I, out)


def rms_norm(x_TH: Tensor, weight_H: Tensor, eps: float, out: Tensor | None = None) -> Tensor:
    """Root-mean-square norm over the last axis; also per head, x [T, N, D] and weight [D].

    As Hugging Face computes it: in float32, rounded to x's dtype before the weight multiplies.
    """
    if is_native(x_TH):
        return native_rowwise.rms_norm(x_TH, weight_H, eps, out)
    if choice.computes(x_TH):
        return _triton().rms_norm(x_TH, weight_H, eps, out)
    return _put(torch_path.rms_norm(x_TH, weight_H, eps), out)


def add_rms_norm(
    x_TH: Tensor, residual_TH: Tensor, weight_H: Tensor, eps: float, out: Tensor | None = None
) -> Tensor:
    """Adds x to the residual, in place; the norm of that."""
    if is_native(x_TH):
        return native_rowwise.add_rms_norm(x_TH, residual_TH, weight_H, eps, out)
    if choice.computes(x_TH):
        return _triton().add_rms_norm(x_TH, residual_TH, weight_H, eps, out)
    return _put(torch_path.add_rms_norm(x_TH, residual_TH, weight_H, eps), out)


def rope_and_write(
    q_TND: Tensor,
    k_TGD: Tensor,
    v_TGD: Tensor,
    cos_sin_LD: Tensor,
    positions_T: Tensor,
    slots_T: Tensor,
    layer: KVLayer,
) -> Tensor:
    """Rotate q and k, write k and v to their slots, return q: [T, N, D].

    cos_sin_LD   float32; of a position, D / 2 cosines, then D / 2 sines; pair i of a head is
                 (x[i], x[i + D / 2])
    positions_T  int64; rows of cos_sin_LD
    slots_T      int64; page * page_tokens + place in the page, all different
    """
    if is_native(q_TND):
        path = native_attention
    else:
        path = _triton() if choice.computes(q_TND) else torch_path
    return path.rope_and_write(q_TND, k_TGD, v_TGD, cos_sin_LD, positions_T, slots_T, layer)


def attend(q_TND: Tensor, layer: KVLayer, rows: AttentionRows) -> Tensor:
    """Causal attention over pages, scaled by D ** -0.5; query heads share KV heads: [T, N, D].

    A row attends to the tokens of its sequence up to itself, whose KV must be in the pages. What
    lies elsewhere in the pool, or in slots not written yet, is of no effect, be it NaN.
    """
    if is_native(q_TND):
        return native_attention.attend(q_TND, layer, rows)
    if choice.computes(q_TND):
        return _triton().attend(q_TND, layer, rows)
    return torch_attention.attend(q_TND, layer, rows.groups)


def attention(
    qkv_TX: Tensor,
    norms: HeadNorms | None,
    cos_sin_LD: Tensor,
    rows: AttentionRows,
    layer: KVLayer,
    out: Tensor | None = None,
) -> Tensor:
    """All between two products: norm the heads, `rope_and_write`, `attend`: [T, N * D].

    qkv_TX  of each row N heads of q, then G of k, then G of v; may be overwritten
    """
    if is_native(qkv_TX):
        return native_attention.attention(qkv_TX, norms, cos_sin_LD, rows, layer, out)
    n_rows, n_kv_heads = len(qkv_TX), layer.geometry.n_kv_heads
    heads_TND = qkv_TX.view(n_rows, -1, layer.geometry.head_dim)
    n_heads = heads_TND.shape[1] - 2 * n_kv_heads
    q_TND, k_TGD, v_TGD = heads_TND.split((n_heads, n_kv_heads, n_kv_heads), dim=1)
    if norms is not None:
        q_TND = rms_norm(q_TND, norms.q_D, norms.eps)
        k_TGD = rms_norm(k_TGD, norms.k_D, norms.eps)
    q_TND = rope_and_write(q_TND, k_TGD, v_TGD, cos_sin_LD, rows.positions_T, rows.slots_T, layer)
    if choice.computes(qkv_TX):
        out_TND = None if out is None else out.view(q_TND.shape)
        return _triton().attend(q_TND, layer, rows, out_TND).view(n_rows, -1)
    return _put(attend(q_TND, layer, rows).reshape(n_rows, -1), out)


def argmax(logits_RV: Tensor) -> list[int]:
    """The most likely token of each row of float32 logits; of equals the lowest id.

    -1 where it is not finite or a logit of the row is NaN.
    """
    if is_native(logits_RV) and logits_RV.dtype is torch.float32:
        return native_rowwise.argmax(logits_RV)
    return torch_path.argmax(logits_RV)


def sample(logits_RV: Tensor, rows: SamplingRows) -> Tensor:
    """Tokens [R] int64, drawn where the logits are and not read back; see `triton.sampling`.

    Only where `choice.computes(logits_RV)`.
    """
    return _triton().sample(logits_RV, rows)


def logprobs(logits_RV: Tensor, token_R: Tensor, rows: LogprobRows) -> None:
    """Tells of drawn tokens where `rows` say; see `triton.logprobs`.

    Only where `choice.computes(logits_RV)`.
    """
    _triton().logprobs(logits_RV, token_R, rows)


def _triton() -> ModuleType:
    """Imported only where it computes: machines without a GPU lack it."""
    from common.kernels.triton import ops as kernels

    return kernels


def _put(result: Tensor, out: Tensor | None) -> Tensor:
    return result if out is None else out.copy_(result)
