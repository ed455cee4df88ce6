"""Weights from GGUF files, dequantised on the way.

Trap: converters to GGUF permute the rows of q and k in files of architecture `llama` (and only
there), so that rotation pairs are neighbours. Rows are put back here, biases' too; without that
a model loads and answers nonsense.
"""

import re
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from common.model.gguf_file import GgufFile
from common.model.gguf_spec import ROPE_DIVISORS, dequantized, spec_from_gguf
from common.model.spec import Family

_CHUNK_VALUES = 1 << 21  # dequantised at a time: 8 MiB of float32, which stays in the cache

_TOP_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_BLOCK_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_BLOCK = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")


class GgufSource:
    """A `WeightSource` over one GGUF file. `spec` describes the model."""

    def __init__(self, path: Path) -> None:
        self.file = GgufFile(path)
        self.spec = spec_from_gguf(self.file)
        self._names = {_canonical(name): name for name in self.file.tensors}
        self._names.pop(ROPE_DIVISORS, None)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: self.file.tensors[own].shape for name, own in self._names.items()}

    def read_into(self, name: str, out: Tensor) -> None:
        own = self._names[name]
        order = self._row_order(name)
        rows = self.file.rows(own)
        target = out.reshape(len(rows), -1)
        step = max(1, _CHUNK_VALUES // target.shape[1])
        for first in range(0, len(rows), step):
            chunk = (
                rows[first : first + step] if order is None else rows[order[first : first + step]]
            )
            values = dequantized(chunk, self.file.tensors[own])
            target[first : first + len(chunk)] = torch.from_numpy(values)

    def stored_format(self, name: str) -> str:
        return self.file.tensors[self._names[name]].block_format.name

    def stored_rows(self, name: str) -> Tensor:
        rows = self.file.rows(self._names[name])
        order = self._row_order(name)
        return torch.from_numpy(rows.copy() if order is None else rows[order])

    def _row_order(self, name: str) -> NDArray[np.intp] | None:
        """Which stored row each row comes from; None where they are in order."""
        if self.spec.family is not Family.LLAMA:
            return None
        if ".q_proj." in name:
            return _unpermuted(self.spec.n_heads, self.spec.head_dim)
        if ".k_proj." in name:
            return _unpermuted(self.spec.n_kv_heads, self.spec.head_dim)
        return None


def _unpermuted(n_heads: int, head_dim: int) -> NDArray[np.intp]:
    """Stored row 2i + p of a head is row p * head_dim / 2 + i (p: half, i: pair)."""
    stored = np.arange(n_heads * head_dim).reshape(n_heads, head_dim // 2, 2)
    return stored.swapaxes(1, 2).reshape(-1)


def _canonical(name: str) -> str:
    """Hugging Face's name of a GGUF tensor; the name itself where there is none."""
    if name in _TOP_NAMES:
        return _TOP_NAMES[name]
    match = _BLOCK.fullmatch(name)
    if match is None or match[2] not in _BLOCK_NAMES:
        return name
    return f"model.layers.{match[1]}.{_BLOCK_NAMES[match[2]]}.{match[3]}"
