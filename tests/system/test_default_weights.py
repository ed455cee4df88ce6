"""The default model's GGUF file against transformers' own import of it."""

from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from common.kernels.matrix import plain
from common.model.layers import Block
from common.model.load import LoadedModel, load_model
from tests.system.one_sequence import OneSequence

pytestmark = pytest.mark.slow  # transformers takes most of a minute to import the file

PROMPT = [1, 4093, 198, 28120, 346, 260, 3575, 282, 4649, 47, 2, 198, *range(900, 1100)]


@pytest.fixture(scope="module")
def oracle(default_model: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(
        default_model.parent, gguf_file=default_model.name, dtype=torch.float32
    ).eval()


@pytest.fixture(scope="module")
def loaded(default_model: Path) -> LoadedModel:
    return load_model(default_model, torch.float32, None, 1024)


def expected_block(weights: dict[str, Tensor], layer: int) -> dict[str, Tensor]:
    def stack(*names: str) -> Tensor:
        return torch.cat([weights.pop(f"model.layers.{layer}.{n}.weight") for n in names])

    return {
        "attn_norm_H": stack("input_layernorm"),
        "qkv": stack(*(f"self_attn.{p}_proj" for p in "qkv")),
        "o": stack("self_attn.o_proj"),
        "mlp_norm_H": stack("post_attention_layernorm"),
        "gate_up": stack("mlp.gate_proj", "mlp.up_proj"),
        "down": stack("mlp.down_proj"),
    }


def given_block(block: Block) -> dict[str, Tensor]:
    return {
        "attn_norm_H": block.attn_norm_H,
        "qkv": plain(block.qkv.weight_OI),
        "o": plain(block.o.weight_OI),
        "mlp_norm_H": block.mlp_norm_H,
        "gate_up": plain(block.gate_up.weight_OI),
        "down": plain(block.down.weight_OI),
    }


def test_every_weight_is_the_same_to_the_bit(oracle: PreTrainedModel, loaded: LoadedModel) -> None:
    weights = oracle.state_dict()
    for layer, block in enumerate(loaded.model.blocks):
        expected, given = expected_block(weights, layer), given_block(block)
        for name, tensor in expected.items():
            assert torch.equal(given[name], tensor), f"layer {layer}: {name}"
    assert torch.equal(plain(loaded.model.embed_VH), weights.pop("model.embed_tokens.weight"))
    assert torch.equal(loaded.model.final_norm_H, weights.pop("model.norm.weight"))
    assert loaded.model.lm_head_VH is loaded.model.embed_VH
    assert list(weights) == ["lm_head.weight"]  # none is left over; this one is tied


def test_logits_are_those_of_transformers(oracle: PreTrainedModel, loaded: LoadedModel) -> None:
    ours_TV = OneSequence(loaded.model, len(PROMPT)).run(PROMPT)
    with torch.inference_mode():
        theirs_TV = oracle(torch.tensor([PROMPT])).logits[0]
    torch.testing.assert_close(ours_TV, theirs_TV, rtol=0, atol=5e-4)
    assert torch.equal(ours_TV.argmax(-1), theirs_TV.argmax(-1))
