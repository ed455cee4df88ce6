"""The Llama family's forward pass: Llama, Mistral, Qwen2, Qwen3, SmolLM2.

A pass takes packed rows of any number of sequences and reads and writes their KV in pages. All
arithmetic is in `common.kernels.ops`, which sees to it that in float32 a row's bits depend on
nothing but its own sequence (law 3). Must not batch, sample or own pages.
"""

import torch
from torch import Tensor

from common.kernels import ops
from common.kernels.attention_rows import HeadNorms
from common.kernels.matrix import Matrix, plain
from common.kernels.paged import KVLayer
from common.kv.cache import KVCache
from common.model.inputs import PassInputs
from common.model.layers import Block, block
from common.model.native_layers import NativeLayers, are_packed
from common.model.spec import ModelSpec

# T rows (packed tokens)  R rows whose logits are wanted  H hidden  V vocabulary
# N query heads  G KV heads  D head dim


class Llama:
    """A model in memory. Activations have the weights' dtype; logits are float32."""

    def __init__(self, spec: ModelSpec, tensors: dict[str, Matrix], cos_sin_LD: Tensor) -> None:
        """`tensors`: of `packing.packed_layout(spec)`, by name; `cos_sin_LD`: see `rope`."""
        self.spec = spec
        self.cos_sin_LD = cos_sin_LD
        self.embed_VH = tensors["embed"]  # [V, H], as `lm_head_VH`
        self.blocks = [block(tensors, layer) for layer in range(spec.n_layers)]
        self.final_norm_H = plain(tensors["final_norm"])
        self.lm_head_VH = tensors.get("lm_head", self.embed_VH)
        self._native_layers = None
        if are_packed(self.blocks):
            self._native_layers = NativeLayers(spec, self.blocks, self.final_norm_H)

    @torch.inference_mode()
    def forward(self, inputs: PassInputs, kv: KVCache) -> Tensor:
        """Hidden states of every row after the final norm: [T, H]. Writes the rows' KV."""
        residual_TH = ops.embed(inputs.tokens_T, self.embed_VH)
        if self._native_layers is not None:
            return self._native_layers.run(residual_TH, inputs.rows, kv, self.cos_sin_LD)
        return self.layer_by_layer(residual_TH, inputs, kv)

    def layer_by_layer(self, residual_TH: Tensor, inputs: PassInputs, kv: KVCache) -> Tensor:
        """The layers as they are defined: from embeddings, overwritten, to `forward`'s result."""
        eps = self.spec.rms_norm_eps
        buffers = _Buffers(self.spec, residual_TH)
        normed_TH = ops.rms_norm(residual_TH, self.blocks[0].attn_norm_H, eps, buffers.normed_TH)
        for layer, b in enumerate(self.blocks):
            mixed_TH = self._attention(b, normed_TH, inputs, kv.layer(layer), buffers)
            ops.add_rms_norm(mixed_TH, residual_TH, b.mlp_norm_H, eps, normed_TH)
            gated_TI = ops.swiglu(
                normed_TH, b.gate_up.weight_OI, b.gate_up.bias_O, buffers.gated_TI
            )
            mixed_TH = ops.linear(gated_TI, b.down.weight_OI, b.down.bias_O, buffers.mixed_TH)
            last = layer + 1 == len(self.blocks)
            next_norm_H = self.final_norm_H if last else self.blocks[layer + 1].attn_norm_H
            ops.add_rms_norm(mixed_TH, residual_TH, next_norm_H, eps, normed_TH)
        return normed_TH

    @torch.inference_mode()
    def logits(self, hidden_RH: Tensor) -> Tensor:
        """[R, V] float32 from rows of `forward`'s result; no more exact than the weights' dtype."""
        return ops.logits(hidden_RH, self.lm_head_VH)

    def _attention(
        self, b: Block, x_TH: Tensor, inputs: PassInputs, kv: KVLayer, buffers: "_Buffers"
    ) -> Tensor:
        qkv_TX = ops.linear(x_TH, b.qkv.weight_OI, b.qkv.bias_O, buffers.qkv_TX)
        norms = None
        if b.q_norm_D is not None and b.k_norm_D is not None:
            norms = HeadNorms(b.q_norm_D, b.k_norm_D, self.spec.rms_norm_eps)
        attended_TO = ops.attention(
            qkv_TX, norms, self.cos_sin_LD, inputs.rows, kv, buffers.attended_TO
        )
        return ops.linear(attended_TO, b.o.weight_OI, b.o.bias_O, buffers.mixed_TH)


class _Buffers:
    """Results of one layer's operations, whose memory the next layer's take."""

    def __init__(self, spec: ModelSpec, like_TH: Tensor) -> None:
        def rows_of(n_columns: int) -> Tensor:
            return like_TH.new_empty((len(like_TH), n_columns))

        self.normed_TH = torch.empty_like(like_TH)
        self.qkv_TX = rows_of((spec.n_heads + 2 * spec.n_kv_heads) * spec.head_dim)
        self.attended_TO = rows_of(spec.n_heads * spec.head_dim)
        self.mixed_TH = torch.empty_like(like_TH)
        self.gated_TI = rows_of(spec.intermediate_size)
