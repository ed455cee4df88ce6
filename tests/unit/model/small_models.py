"""Small models of random weights, written as files by hand: no transformers, milliseconds."""

import json
from pathlib import Path

import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import Tensor

HIDDEN, INNER, VOCAB, LAYERS, HEADS, KV_HEADS, HEAD_DIM = 32, 64, 96, 2, 4, 2, 16
CONFIG = {
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "vocab_size": VOCAB,
    "max_position_embeddings": 128,
}


def random_weights(*, bias: bool = False, qk_norm: bool = False) -> dict[str, Tensor]:
    """Every tensor of the model under Hugging Face's names, float32."""
    generator = torch.Generator().manual_seed(1)
    q, kv = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (VOCAB, HIDDEN),
        "model.norm.weight": (HIDDEN,),
        "lm_head.weight": (VOCAB, HIDDEN),
    }
    for layer in range(LAYERS):
        for name, shape in {
            "input_layernorm": (HIDDEN,),
            "post_attention_layernorm": (HIDDEN,),
            "self_attn.q_proj": (q, HIDDEN),
            "self_attn.k_proj": (kv, HIDDEN),
            "self_attn.v_proj": (kv, HIDDEN),
            "self_attn.o_proj": (HIDDEN, q),
            "mlp.gate_proj": (INNER, HIDDEN),
            "mlp.up_proj": (INNER, HIDDEN),
            "mlp.down_proj": (HIDDEN, INNER),
        }.items():
            shapes[f"model.layers.{layer}.{name}.weight"] = shape
            if bias and name.startswith("self_attn"):
                shapes[f"model.layers.{layer}.{name}.bias"] = shape[:1]
        if qk_norm:
            for name in ("q_norm", "k_norm"):
                shapes[f"model.layers.{layer}.self_attn.{name}.weight"] = (HEAD_DIM,)
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def write_safetensors(
    directory: Path, weights: dict[str, Tensor], *, n_shards: int = 1, **config: object
) -> None:
    """A Hugging Face directory; `config` changes config.json's keys."""
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps({**CONFIG, **config}))
    if n_shards == 1:
        save_file(weights, directory / "model.safetensors")
        return
    shard_of = {name: f"model-{i % n_shards}.safetensors" for i, name in enumerate(weights)}
    for shard in set(shard_of.values()):
        save_file({n: w for n, w in weights.items() if shard_of[n] == shard}, directory / shard)
    index = directory / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": shard_of}))


_GGUF_NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_TOP = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}


def gguf_name(name: str) -> str:
    if name in _TOP:
        return _TOP[name]
    _, _, layer, rest = name.split(".", 3)
    stem, kind = rest.rsplit(".", 1)
    return f"blk.{layer}.{_GGUF_NAMES[stem]}.{kind}"


def permuted(weight: NDArray[np.float32], n_heads: int) -> NDArray[np.float32]:
    """What llama.cpp's converter does to q and k of `llama` models."""
    halves = weight.reshape(n_heads, 2, weight.shape[0] // n_heads // 2, *weight.shape[1:])
    return halves.swapaxes(1, 2).reshape(weight.shape)


def write_gguf(
    path: Path,
    weights: dict[str, Tensor],
    block_format: GGMLQuantizationType = GGMLQuantizationType.F32,
    architecture: str = "llama",
    extra: dict[str, object] | None = None,
) -> None:
    """Matrices in `block_format`, the rest float32, as converters do. `extra`: more metadata."""
    writer = GGUFWriter(path, architecture)
    writer.add_block_count(LAYERS)
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD_DIM)
    writer.add_layer_norm_rms_eps(1e-6)
    for key, value in (extra or {}).items():
        add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
        add[type(value)](f"{architecture}.{key}", value)
    for name, tensor in weights.items():
        values = tensor.numpy()
        if architecture == "llama" and ".q_proj." in name:
            values = permuted(values, HEADS)
        if architecture == "llama" and ".k_proj." in name:
            values = permuted(values, KV_HEADS)
        own = gguf_name(name) if name.startswith(("model.", "lm_head.")) else name
        if values.ndim == 2:
            writer.add_tensor(own, quantize(values, block_format), raw_dtype=block_format)
        else:
            writer.add_tensor(own, np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
