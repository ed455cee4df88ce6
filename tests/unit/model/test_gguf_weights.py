import math
from pathlib import Path

import pytest
import torch
from gguf import GGMLQuantizationType as Format
from gguf.quants import dequantize, quantize

from common.errors import SetupError, UnsupportedModel
from common.model.gguf_weights import GgufSource
from common.model.spec import DivisorScaling, Family, LinearScaling, NoScaling, YarnScaling
from tests.unit.model.small_models import random_weights, write_gguf


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])  # only llama's is permuted
def test_float32_comes_back_bit_for_bit(architecture: str, tmp_path: Path) -> None:
    weights = random_weights(bias=True, qk_norm=architecture == "qwen3")
    write_gguf(tmp_path / "m.gguf", weights, architecture=architecture)
    source = GgufSource(tmp_path / "m.gguf")
    assert source.shapes() == {name: tuple(w.shape) for name, w in weights.items()}
    assert source.spec.qkv_bias
    assert source.spec.o_bias
    for name, weight in weights.items():
        out = torch.empty_like(weight)
        source.read_into(name, out)
        assert torch.equal(out, weight), name


@pytest.mark.parametrize(
    "block_format",
    [Format.F16, Format.BF16, Format.Q4_0, Format.Q4_1, Format.Q5_0, Format.Q5_1, Format.Q8_0],
)
def test_blocks_are_dequantised_then_rounded_once(block_format: Format, tmp_path: Path) -> None:
    weights = random_weights()
    write_gguf(tmp_path / "m.gguf", weights, block_format)
    source = GgufSource(tmp_path / "m.gguf")
    name = "model.layers.1.self_attn.k_proj.weight"  # its rows must travel whole
    expected = torch.from_numpy(
        dequantize(quantize(weights[name].numpy(), block_format), block_format)
    )
    for dtype in (torch.float32, torch.bfloat16):
        out = torch.empty(weights[name].shape, dtype=dtype)
        source.read_into(name, out)
        assert torch.equal(out, expected.to(dtype))


def test_the_spec_comes_from_the_metadata_and_the_tensors(tmp_path: Path) -> None:
    weights = random_weights()
    del weights["lm_head.weight"]
    write_gguf(tmp_path / "m.gguf", weights, extra={"rope.freq_base": 1e5})
    spec = GgufSource(tmp_path / "m.gguf").spec
    assert (spec.family, spec.head_dim, spec.vocab_size) == (Family.LLAMA, 16, 96)
    assert spec.tied_embeddings
    assert spec.rope_theta == 1e5
    assert spec.rope_scaling == NoScaling()
    assert not spec.qkv_bias


def test_rope_scalings(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    weights = random_weights()
    linear = {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}
    write_gguf(path, weights, extra=linear)
    assert GgufSource(path).spec.rope_scaling == LinearScaling(factor=4.0)

    yarn = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0}
    write_gguf(path, weights, extra={**yarn, "rope.scaling.original_context_length": 32})
    assert GgufSource(path).spec.rope_scaling == YarnScaling(
        factor=4.0, original_max_position=32, attention_factor=0.1 * math.log(4) + 1
    )

    divisors = torch.arange(1.0, 9.0)
    write_gguf(path, {**weights, "rope_freqs.weight": divisors})
    source = GgufSource(path)
    assert source.spec.rope_scaling == DivisorScaling(divisors=tuple(divisors.tolist()))
    assert "rope_freqs.weight" not in source.shapes()


@pytest.mark.parametrize(
    ("architecture", "extra", "error", "says"),
    [
        ("gemma2", {}, UnsupportedModel, "gemma2 is not supported; supported are Llama"),
        ("llama", {"expert_count": 8}, UnsupportedModel, "mixtures of experts"),
        ("llama", {"rope.dimension_count": 8}, UnsupportedModel, "8 rotated"),
        ("llama", {"rope.scaling.type": "longrope"}, UnsupportedModel, "'longrope'"),
        ("llama", {"rope.freq_base": "high"}, UnsupportedModel, "not one float"),
        ("llama", {"rope.scaling.type": "yarn"}, SetupError, "original_context_length is missing"),
    ],
)
def test_what_is_not_implemented_is_refused_by_name(
    architecture: str,
    extra: dict[str, object],
    error: type[SetupError],
    says: str,
    tmp_path: Path,
) -> None:
    write_gguf(tmp_path / "m.gguf", random_weights(), architecture=architecture, extra=extra)
    with pytest.raises(error, match=says):
        GgufSource(tmp_path / "m.gguf")
