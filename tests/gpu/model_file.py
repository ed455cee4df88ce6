"""A model directory of random weights, as large as a real one, written as fast as can be."""

import json
import math
from pathlib import Path

import torch

from common.model.spec import ModelSpec


def _tensors(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Of a Llama, by transformers' names."""
    hidden, inner = spec.hidden_size, spec.n_heads * spec.head_dim
    kv_inner, wide = spec.n_kv_heads * spec.head_dim, spec.intermediate_size
    of_layer = {
        "self_attn.q_proj": (inner, hidden),
        "self_attn.k_proj": (kv_inner, hidden),
        "self_attn.v_proj": (kv_inner, hidden),
        "self_attn.o_proj": (hidden, inner),
        "mlp.gate_proj": (wide, hidden),
        "mlp.up_proj": (wide, hidden),
        "mlp.down_proj": (hidden, wide),
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
    }
    named = {
        "model.embed_tokens": (spec.vocab_size, hidden),
        "model.norm": (hidden,),
        "lm_head": (spec.vocab_size, hidden),
    }
    for layer in range(spec.n_layers):
        named |= {f"model.layers.{layer}.{name}": shape for name, shape in of_layer.items()}
    return {f"{name}.weight": shape for name, shape in named.items()}


def file_bytes(spec: ModelSpec) -> int:
    """Of the weights, in bfloat16."""
    return sum(2 * math.prod(shape) for shape in _tensors(spec).values())


def write_model(directory: Path, spec: ModelSpec, device: torch.device) -> None:
    """Weights drawn on `device`, in bfloat16, and a configuration; no tokenizer."""
    directory.mkdir()
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": spec.hidden_size,
        "num_hidden_layers": spec.n_layers,
        "num_attention_heads": spec.n_heads,
        "num_key_value_heads": spec.n_kv_heads,
        "head_dim": spec.head_dim,
        "intermediate_size": spec.intermediate_size,
        "vocab_size": spec.vocab_size,
        "max_position_embeddings": spec.max_position,
        "rms_norm_eps": spec.rms_norm_eps,
        "rope_theta": spec.rope_theta,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }
    (directory / "config.json").write_text(json.dumps(config))
    header: dict[str, object] = {}
    at = 0
    for name, shape in _tensors(spec).items():
        n_bytes = 2 * math.prod(shape)
        entry = {"dtype": "BF16", "shape": shape, "data_offsets": (at, at + n_bytes)}
        header[name], at = entry, at + n_bytes
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    generator = torch.Generator(device).manual_seed(0)
    with (directory / "model.safetensors").open("wb", buffering=0) as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        for shape in _tensors(spec).values():
            tensor = torch.ones(shape, dtype=torch.bfloat16, device=device)
            if len(shape) > 1:
                tensor.normal_(0, shape[-1] ** -0.5, generator=generator)
            rest = tensor.view(torch.uint8).flatten().cpu().numpy().data
            while rest:
                rest = rest[file.write(rest) :]
