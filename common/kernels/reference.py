"""The operations as their definition says, slow and in float64: what kernels are tested against.

Must share no code with a kernel.
"""

import torch
from torch import Tensor

# T rows  H hidden  I inputs or intermediate  O outputs  N query heads  G KV heads  D head dim
# S tokens of a sequence with KV


def linear(x_TI: Tensor, w_OI: Tensor, bias_O: Tensor | None) -> Tensor:
    y_TO = x_TI.double() @ w_OI.double().T
    return y_TO if bias_O is None else y_TO + bias_O.double()


def rms_norm(x_TH: Tensor, weight_H: Tensor, eps: float) -> Tensor:
    x64 = x_TH.double()
    return x64 / (x64.square().mean(-1, keepdim=True) + eps).sqrt() * weight_H.double()


def silu_mul(gate_up_T2I: Tensor) -> Tensor:
    gate_TI, up_TI = gate_up_T2I.double().chunk(2, dim=-1)
    return gate_TI * torch.sigmoid(gate_TI) * up_TI


def rotate(x_TND: Tensor, cos_sin_LD: Tensor, positions_T: Tensor) -> Tensor:
    """Each pair (x[i], x[i + D / 2]) as a complex number, times cos + i sin."""
    half = x_TND.shape[-1] // 2
    turn = torch.complex(cos_sin_LD[:, :half].double(), cos_sin_LD[:, half:].double())
    pairs = torch.complex(x_TND[..., :half].double(), x_TND[..., half:].double())
    turned = pairs * turn[positions_T][:, None]
    return torch.cat((turned.real, turned.imag), dim=-1)


def attend(q_TND: Tensor, k_SGD: Tensor, v_SGD: Tensor) -> Tensor:
    """One sequence; its queries are its last tokens. Head n reads KV head n // (N / G)."""
    n_queries, n_heads, head_dim = q_TND.shape
    n_keys, n_kv_heads, _ = k_SGD.shape
    k_SND = k_SGD.double().repeat_interleave(n_heads // n_kv_heads, dim=1)
    v_SND = v_SGD.double().repeat_interleave(n_heads // n_kv_heads, dim=1)
    scores_NTS = torch.einsum("tnd,snd->nts", q_TND.double(), k_SND) * head_dim**-0.5
    key_S = torch.arange(n_keys)
    query_T1 = torch.arange(n_keys - n_queries, n_keys)[:, None]
    weights_NTS = scores_NTS.masked_fill(key_S > query_T1, -torch.inf).softmax(-1)
    return torch.einsum("nts,snd->tnd", weights_NTS, v_SND)
