"""What a GGUF file says of its model: the spec, from the metadata and the tensors' table.

Must not import torch: the gateway, too, reads what it serves.
"""

from typing import TypeVar

import numpy as np
from gguf.quants import dequantize
from numpy.typing import NDArray

from common.errors import SetupError, UnsupportedModel
from common.model.gguf_file import GgufFile, GgufTensor
from common.model.hf_config import yarn_magnitude
from common.model.spec import (
    SUPPORTED,
    DivisorScaling,
    Family,
    LinearScaling,
    ModelSpec,
    NoScaling,
    RopeScaling,
    YarnScaling,
)

ROPE_DIVISORS = "rope_freqs.weight"

_FAMILIES = {"llama": Family.LLAMA, "qwen2": Family.QWEN2, "qwen3": Family.QWEN3}
_T = TypeVar("_T", int, float, str)


def spec_from_gguf(file: GgufFile) -> ModelSpec:
    """Raises `UnsupportedModel`, naming the key, for what is malformed or not implemented."""
    architecture = _get(file, "general.architecture", str)
    family = _FAMILIES.get(architecture)
    if family is None:
        raise UnsupportedModel(
            f"{file.path}: architecture {architecture} is not supported; supported are {SUPPORTED}"
        )
    if _get(file, "split.count", int, 1) > 1:
        raise SetupError(f"{file.path} is one of several pieces: join them with gguf-split --merge")
    if _get(file, f"{architecture}.expert_count", int, 0):
        raise UnsupportedModel(f"{file.path}: mixtures of experts are not supported")
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise SetupError(f"{file.path}: tensor token_embd.weight is missing")
    n_heads = _get(file, f"{architecture}.attention.head_count", int)
    hidden_size = _get(file, f"{architecture}.embedding_length", int)
    head_dim = _get(file, f"{architecture}.attention.key_length", int, hidden_size // n_heads)
    _refuse_odd_heads(file, architecture, head_dim)
    spec = ModelSpec(
        family=family,
        hidden_size=hidden_size,
        n_layers=_get(file, f"{architecture}.block_count", int),
        n_heads=n_heads,
        n_kv_heads=_get(file, f"{architecture}.attention.head_count_kv", int, n_heads),
        head_dim=head_dim,
        intermediate_size=_get(file, f"{architecture}.feed_forward_length", int),
        vocab_size=embedding.shape[0],
        rms_norm_eps=_get(file, f"{architecture}.attention.layer_norm_rms_epsilon", float),
        rope_theta=_get(file, f"{architecture}.rope.freq_base", float, 10_000.0),
        rope_scaling=_scaling(file, architecture),
        max_position=_get(file, f"{architecture}.context_length", int),
        tied_embeddings="output.weight" not in file.tensors,
        qkv_bias="blk.0.attn_q.bias" in file.tensors,
        o_bias="blk.0.attn_output.bias" in file.tensors,
        mlp_bias="blk.0.ffn_gate.bias" in file.tensors,
        qk_norm=family is Family.QWEN3,
        sliding_window=_get(file, f"{architecture}.attention.sliding_window", int, 0) or None,
        native_dtype="bfloat16",
    )
    spec.check()
    return spec


def _refuse_odd_heads(file: GgufFile, architecture: str, head_dim: int) -> None:
    rotated = _get(file, f"{architecture}.rope.dimension_count", int, head_dim)
    value_dim = _get(file, f"{architecture}.attention.value_length", int, head_dim)
    if rotated != head_dim or value_dim != head_dim:
        raise UnsupportedModel(
            f"{file.path}: heads of {head_dim} with {rotated} rotated and values of {value_dim}: "
            "all three must be equal"
        )


def _scaling(file: GgufFile, architecture: str) -> RopeScaling:
    if ROPE_DIVISORS in file.tensors:
        rows = file.rows(ROPE_DIVISORS)
        values = dequantized(rows, file.tensors[ROPE_DIVISORS]).reshape(-1)
        return DivisorScaling(divisors=tuple(float(v) for v in values))
    prefix = f"{architecture}.rope.scaling"
    legacy_factor = _get(file, f"{architecture}.rope.scale_linear", float, 1.0)
    factor = _get(file, f"{prefix}.factor", float, legacy_factor)
    kind = _get(file, f"{prefix}.type", str, "none" if factor in (0.0, 1.0) else "linear")
    match kind:
        case "none":
            return NoScaling()
        case "linear":
            return LinearScaling(factor=factor)
        case "yarn":
            own_factor = _get(file, f"{prefix}.attn_factor", float, 1.0)
            return YarnScaling(
                factor=factor,
                original_max_position=_get(file, f"{prefix}.original_context_length", int),
                attention_factor=own_factor * yarn_magnitude(factor),
                beta_fast=_get(file, f"{prefix}.yarn_beta_fast", float, 32.0),
                beta_slow=_get(file, f"{prefix}.yarn_beta_slow", float, 1.0),
            )
        case _:
            raise UnsupportedModel(
                f"{file.path}: RoPE scaling {kind!r} is not supported; none, linear and yarn are"
            )


def _get(file: GgufFile, key: str, kind: type[_T], default: _T | None = None) -> _T:
    """The metadata value, which must be of that type (an int will do for a float)."""
    value = file.metadata.get(key, default)
    if value is None:
        raise SetupError(f"{file.path}: metadata key {key} is missing")
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise UnsupportedModel(f"{file.path}: {key} is {value!r}, which is not one {kind.__name__}")
    return value


def dequantized(rows: NDArray[np.uint8], tensor: GgufTensor) -> NDArray[np.float32]:
    """Values of encoded rows. Raises `UnsupportedModel` for a format that cannot be read."""
    try:
        return np.require(dequantize(rows, tensor.block_format), np.float32, "W")
    except NotImplementedError:
        raise UnsupportedModel(
            f"tensor {tensor.name}: block format {tensor.block_format.name} cannot be read"
        ) from None
