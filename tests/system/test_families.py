"""Every family and RoPE scaling against transformers, on small models of random weights.

The oracle computes a finished sequence in one pass; ours comes in chunks, then token by token.
"""

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from common.kernels import ops
from common.kv.cache import KVCache
from common.model.inputs import PassInputs
from common.model.llama import Llama
from common.model.load import load_model
from tests.system.one_sequence import OneSequence

N_TOKENS = 64  # of a finished sequence, and max-model-len, which `dynamic` and `longrope` follow
N_PROMPT = 40
CHUNK = 16

SMALL: dict[str, object] = {
    "vocab_size": 160,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
ORIGINAL = {"original_max_position_embeddings": 32}
BANDS = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
FACTORS = {"short_factor": [1.0] * 4, "long_factor": [2.0, 3.0, 4.0, 5.0]}


def config_of(model_type: str, **changes: object) -> PreTrainedConfig:
    return AutoConfig.for_model(model_type, **{**SMALL, **changes})


def scaled(kind: str, **rope: object) -> dict[str, object]:
    return {"rope_type": kind, "rope_theta": 1e4, **rope}


CONFIGS = {
    "llama-2": config_of("llama", num_key_value_heads=6),
    "llama-tied": config_of("llama", tie_word_embeddings=True),
    "llama-biases": config_of("llama", attention_bias=True, mlp_bias=True),
    "llama-3": config_of(
        "llama", rope_parameters=scaled("llama3", factor=8.0, **BANDS, **ORIGINAL)
    ),
    "linear": config_of("llama", rope_parameters=scaled("linear", factor=4.0)),
    "dynamic": config_of(
        "llama", rope_parameters=scaled("dynamic", factor=4.0), max_position_embeddings=32
    ),
    "yarn": config_of("llama", rope_parameters=scaled("yarn", factor=2.0, **ORIGINAL)),
    "longrope": config_of("llama", rope_parameters=scaled("longrope", **FACTORS, **ORIGINAL)),
    "mistral": config_of("mistral", head_dim=16, sliding_window=64),
    "qwen2": config_of("qwen2"),
    "qwen2-tied": config_of("qwen2", tie_word_embeddings=True),
    "qwen3": config_of("qwen3", head_dim=32),
}


@torch.no_grad()
def random_model(config: PreTrainedConfig) -> PreTrainedModel:
    """Weights large enough that a wrong rotation, bias or norm shows in every logit."""
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2:
            gain = 2.0 if "q_proj" in name or "k_proj" in name else 1.0
            parameter.normal_(0, gain * parameter.shape[1] ** -0.5)
        else:
            parameter.normal_(0, 0.3).add_(0.0 if name.endswith("bias") else 1.0)
    return model


def generate(model: Llama) -> tuple[list[int], Tensor]:
    """A random prompt in chunks, then greedy tokens; the logits of every position."""
    generator = torch.Generator().manual_seed(5)
    tokens = torch.randint(3, 160, (N_PROMPT,), generator=generator).tolist()
    sequence = OneSequence(model, N_TOKENS)
    logits: list[Tensor] = []
    while sequence.n_tokens < N_TOKENS:
        done = sequence.n_tokens
        logits.append(sequence.run(tokens[done : done + CHUNK]))
        if N_PROMPT <= sequence.n_tokens < N_TOKENS:
            tokens.append(int(logits[-1][-1].argmax()))
    return tokens, torch.cat(logits)


class LayerByLayer(Llama):
    """A loaded model that computes as the operations are written down, one by one."""

    def __init__(self, model: Llama) -> None:
        self.__dict__.update(model.__dict__)

    @torch.inference_mode()
    def forward(self, inputs: PassInputs, kv: KVCache) -> Tensor:
        return self.layer_by_layer(ops.embed(inputs.tokens_T, self.embed_VH), inputs, kv)


def check(directory: Path, oracle: PreTrainedModel) -> None:
    loaded = load_model(directory, torch.float32, None, N_TOKENS)
    tokens, ours_TV = generate(loaded.model)
    assert torch.equal(generate(LayerByLayer(loaded.model))[1], ours_TV)
    with torch.inference_mode():
        theirs_TV = oracle(torch.tensor([tokens])).logits[0]
    torch.testing.assert_close(ours_TV, theirs_TV, rtol=1e-4, atol=1e-4)
    assert tokens[N_PROMPT:] == theirs_TV[N_PROMPT - 1 : -1].argmax(-1).tolist()
    assert float(theirs_TV.std()) > 0.3  # not all alike


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_and_tokens_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    oracle = random_model(CONFIGS[name])
    oracle.save_pretrained(tmp_path)
    check(tmp_path, oracle)


def test_shards_and_the_older_form_of_the_configuration(tmp_path: Path) -> None:
    oracle = random_model(CONFIGS["llama-3"])
    oracle.save_pretrained(tmp_path, max_shard_size="40KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    rope = config.pop("rope_parameters")
    config |= {"rope_theta": rope.pop("rope_theta"), "rope_scaling": rope, "torch_dtype": "float32"}
    path.write_text(json.dumps(config))
    check(tmp_path, oracle)
