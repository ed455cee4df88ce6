import json

import pytest

from common.errors import UnsupportedModel
from common.model.hf_config import spec_from_config
from common.model.spec import (
    DynamicScaling,
    Family,
    LinearScaling,
    Llama3Scaling,
    ModelSpec,
    NoScaling,
    YarnScaling,
    check_max_model_len,
)

LLAMA2 = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "vocab_size": 32000,
    "torch_dtype": "float16",
}


def spec_of(**changes: object) -> ModelSpec:
    return spec_from_config(json.dumps({**LLAMA2, **changes}).encode())


def test_llama_2_says_nothing_of_rope_and_gets_its_defaults() -> None:
    assert spec_of() == ModelSpec(
        family=Family.LLAMA,
        hidden_size=4096,
        n_layers=32,
        n_heads=32,
        n_kv_heads=32,
        head_dim=128,
        intermediate_size=11008,
        vocab_size=32000,
        rms_norm_eps=1e-5,
        rope_theta=10_000.0,
        rope_scaling=NoScaling(),
        max_position=4096,
        tied_embeddings=False,
        qkv_bias=False,
        o_bias=False,
        mlp_bias=False,
        qk_norm=False,
        sliding_window=None,
        native_dtype="float16",
    )


LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def test_the_forms_of_transformers_4_and_5_mean_the_same() -> None:
    old = spec_of(rope_theta=500000.0, rope_scaling=LLAMA3, max_position_embeddings=131072)
    new = spec_of(rope_parameters={**LLAMA3, "rope_theta": 5e5}, max_position_embeddings=131072)
    assert old == new
    assert old.rope_theta == 500_000.0
    assert old.rope_scaling == Llama3Scaling(
        factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position=8192
    )
    assert old.context_tokens == 131072


def test_the_older_name_of_the_kind_is_read() -> None:
    spec = spec_of(rope_scaling={"type": "linear", "factor": 2})
    assert spec.rope_scaling == LinearScaling(factor=2.0)
    assert spec.context_tokens == 8192
    assert spec_of(rope_scaling={"type": "dynamic", "factor": 4.0}).rope_scaling == DynamicScaling(
        factor=4.0
    )


def test_yarn_multiplies_attention_and_extends_the_original_context() -> None:
    spec = spec_of(
        model_type="qwen2",
        max_position_embeddings=32768,
        rope_scaling={"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
    )
    assert isinstance(spec.rope_scaling, YarnScaling)
    assert spec.rope_scaling.attention_factor == pytest.approx(1.1386294)  # 0.1 ln 4 + 1
    assert spec.context_tokens == 131072


def test_each_family_has_its_own_biases_and_norms() -> None:
    flags = {
        family: (spec.qkv_bias, spec.o_bias, spec.qk_norm)
        for family in ("llama", "mistral", "qwen2", "qwen3")
        if (spec := spec_of(model_type=family, sliding_window=None))
    }
    assert flags == {
        "llama": (False, False, False),
        "mistral": (False, False, False),
        "qwen2": (True, False, False),
        "qwen3": (False, False, True),
    }
    with_bias = spec_of(attention_bias=True, mlp_bias=True)
    assert (with_bias.qkv_bias, with_bias.o_bias, with_bias.mlp_bias) == (True, True, True)
    assert spec_of(model_type="qwen3", hidden_size=1024).head_dim == 128


def test_a_window_is_harmless_up_to_its_length_and_refused_beyond() -> None:
    spec = spec_of(model_type="mistral", sliding_window=4096, max_position_embeddings=32768)
    assert spec.context_tokens == 4096
    check_max_model_len(spec, 4096)
    with pytest.raises(UnsupportedModel, match="lower max-model-len from 4097 to 4096"):
        check_max_model_len(spec, 4097)


@pytest.mark.parametrize(
    ("changes", "window"),
    [
        ({"model_type": "mistral"}, 4096),  # absent: transformers' default
        ({"model_type": "mistral", "sliding_window": None}, None),
        ({"model_type": "qwen2", "sliding_window": 1024}, None),  # not switched on
        ({"model_type": "qwen2", "sliding_window": 1024, "use_sliding_window": True}, 1024),
        (
            {
                "model_type": "qwen2",
                "sliding_window": 1024,
                "use_sliding_window": True,
                "max_window_layers": 32,  # no layer left to cut
            },
            None,
        ),
        ({"model_type": "llama", "sliding_window": 1024}, None),
    ],
)
def test_windows(changes: dict[str, object], window: int | None) -> None:
    assert spec_of(**changes).sliding_window == window


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"model_type": "mamba", "architectures": ["MambaForCausalLM"]}, "MambaForCausalLM is not"),
        ({"model_type": "mamba"}, "Llama 2/3 and SmolLM2"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "does not generate text"),
        ({"quantization_config": {"quant_method": "gptq"}}, "gptq"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"partial_rotary_factor": 0.5}, "only 0.5"),
        ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.25}}, "only 0.25"),
        ({"rope_scaling": {"rope_type": "mrope"}}, "'mrope' is not supported"),
        ({"rope_scaling": {"rope_type": "yarn", "odd": 1}}, "unknown field `odd`"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}, "unknown field"),
        ({"rope_scaling": {"rope_type": "linear"}}, "'linear' needs 'factor'"),
        ({"hidden_size": "wide"}, r"hidden_size"),
        ({"num_key_value_heads": 5}, "32 query heads are not a multiple of 5"),
        ({"head_dim": 63}, "odd"),
        ({"num_hidden_layers": 0}, "n_layers is 0"),
    ],
)
def test_what_is_not_implemented_is_refused_by_name(changes: dict[str, object], says: str) -> None:
    with pytest.raises(UnsupportedModel, match=says):
        spec_of(**changes)


def test_longrope_needs_a_factor_for_each_pair() -> None:
    longrope = {
        "rope_type": "longrope",
        "short_factor": [1.0] * 64,
        "long_factor": [2.0] * 63,
        "original_max_position_embeddings": 2048,
    }
    with pytest.raises(UnsupportedModel, match="lists 63 factors; the head has 64"):
        spec_of(rope_scaling=longrope)
