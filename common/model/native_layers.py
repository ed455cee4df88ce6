"""All layers of a Llama in one C++ call: the same kernels in the same order as `Llama.forward`'s.

At one row the interpreter would cost a tenth of a step, and between any two kernels another thread
may hold its lock.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from common.kernels.attention_rows import AttentionRows
from common.kernels.cpu import native
from common.kernels.matrix import PackedMatrix
from common.kv.cache import KVCache
from common.model.layers import Block, Linear
from common.model.spec import ModelSpec

# T rows (packed tokens)  H hidden  L positions  D head dim


class NativeLayers:
    """One pass at a time."""

    def __init__(self, spec: ModelSpec, blocks: Sequence[Block], final_norm_H: Tensor) -> None:
        """The blocks' matrices are packed, and what they hold stays where it is."""
        self._kept = (tuple(blocks), final_norm_H)
        self._dtype = final_norm_H.dtype
        self._n_layers = len(blocks)
        self._n_rep = spec.n_heads // spec.n_kv_heads
        eps = spec.rms_norm_eps
        self._layers = native.lib.Layers(
            float32=self._dtype is torch.float32,
            hidden=spec.hidden_size,
            eps=eps,
            final_norm=final_norm_H.data_ptr(),
        )
        for b in blocks:
            self._layers.add(
                attn_norm=b.attn_norm_H.data_ptr(),
                mlp_norm=b.mlp_norm_H.data_ptr(),
                q_norm=_address(b.q_norm_D),
                k_norm=_address(b.k_norm_D),
                eps=eps,
                qkv=_matrix(b.qkv),
                qkv_bias=_address(b.qkv.bias_O),
                o=_matrix(b.o),
                o_bias=_address(b.o.bias_O),
                gate_up=_matrix(b.gate_up),
                gate_up_bias=_address(b.gate_up.bias_O),
                down=_matrix(b.down),
                down_bias=_address(b.down.bias_O),
            )

    def run(
        self, residual_TH: Tensor, rows: AttentionRows, kv: KVCache, cos_sin_LD: Tensor
    ) -> Tensor:
        """From embeddings, which are overwritten, to hidden states after the final norm: [T, H].

        IndexError: the rows name pages, slots or positions that are not there.
        """
        if kv.dtype is not self._dtype or len(rows.positions_T) != len(residual_TH):
            raise ValueError(
                f"{len(rows.positions_T)} rows and pages of {kv.dtype} for "
                f"{tuple(residual_TH.shape)} of {self._dtype}"
            )
        layers = [kv.layer(layer) for layer in range(self._n_layers)]
        out_TH = torch.empty_like(residual_TH)
        self._layers.run(
            rows.native_plan(layers[0], self._n_rep),
            rows.native_turns(layers[0], cos_sin_LD),
            [address for layer in layers for address in (layer.k_address, layer.v_address)],
            residual_TH.data_ptr(),
            out_TH.data_ptr(),
        )
        return out_TH


def are_packed(blocks: Sequence[Block]) -> bool:
    return all(
        isinstance(linear.weight_OI, PackedMatrix)
        for b in blocks
        for linear in (b.qkv, b.o, b.gate_up, b.down)
    )


def _matrix(linear: Linear) -> "native.lib.Matrix":
    assert isinstance(linear.weight_OI, PackedMatrix)
    return linear.weight_OI.native


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()
