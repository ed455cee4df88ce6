"""A Hugging Face `config.json` read into a `ModelSpec`, in the forms of transformers 4 and 5.

Pure: takes the file's bytes. It must never guess: what it does not know it refuses, because a
model computed with one setting ignored answers fluently and wrongly.
"""

import math
from typing import Any, TypeVar

import msgspec

from common.errors import UnsupportedModel
from common.model.spec import (
    SUPPORTED,
    DynamicScaling,
    Family,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    ModelSpec,
    NoScaling,
    RopeScaling,
    YarnScaling,
)

_T = TypeVar("_T")
_MISTRAL_WINDOW = 4096  # transformers' own default where the key is absent


class _Rope(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`rope_scaling` of transformers 4 or `rope_parameters` of 5; what is None was not given.

    An unknown key is refused: it may change every frequency.
    """

    rope_type: str | None = None
    type: str | None = None  # the older name of rope_type
    rope_theta: float | None = None
    factor: float | None = None
    original_max_position_embeddings: int | None = None
    attention_factor: float | None = None
    beta_fast: float | None = None
    beta_slow: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool | None = None
    low_freq_factor: float | None = None
    high_freq_factor: float | None = None
    short_factor: tuple[float, ...] | None = None
    long_factor: tuple[float, ...] | None = None
    partial_rotary_factor: float | None = None


class _Config(msgspec.Struct, frozen=True):
    """The keys of config.json that matter here; all others are ignored."""

    model_type: str
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    vocab_size: int
    max_position_embeddings: int
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    hidden_act: str = "silu"
    rms_norm_eps: float = 1e-6
    original_max_position_embeddings: int | None = None
    rope_theta: float | None = None
    rope_scaling: _Rope | None = None
    rope_parameters: _Rope | None = None
    partial_rotary_factor: float | None = None
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    sliding_window: int | msgspec.UnsetType | None = msgspec.UNSET
    use_sliding_window: bool = False
    max_window_layers: int | None = None
    layer_types: tuple[str, ...] | None = None
    quantization_config: dict[str, Any] | None = None
    torch_dtype: str | None = None
    dtype: str | None = None


class _Type(msgspec.Struct, frozen=True):
    model_type: str = "(none)"
    architectures: tuple[str, ...] | None = None


def spec_from_config(config_json: bytes) -> ModelSpec:
    """Raises `UnsupportedModel`, naming the key, for what is malformed or not implemented."""
    try:
        family = _family(msgspec.json.decode(config_json, type=_Type))
        config = msgspec.json.decode(config_json, type=_Config)
    except msgspec.MsgspecError as error:
        raise UnsupportedModel(f"config.json: {error}") from error
    _refuse_what_is_not_implemented(config)
    rope = config.rope_parameters or config.rope_scaling or _Rope()
    max_position = config.max_position_embeddings
    spec = ModelSpec(
        family=family,
        hidden_size=config.hidden_size,
        n_layers=config.num_hidden_layers,
        n_heads=config.num_attention_heads,
        n_kv_heads=config.num_key_value_heads or config.num_attention_heads,
        head_dim=config.head_dim or _default_head_dim(config, family),
        intermediate_size=config.intermediate_size,
        vocab_size=config.vocab_size,
        rms_norm_eps=config.rms_norm_eps,
        rope_theta=rope.rope_theta or config.rope_theta or 10_000.0,
        rope_scaling=_scaling(rope, max_position, config.original_max_position_embeddings),
        max_position=max_position,
        tied_embeddings=config.tie_word_embeddings,
        qkv_bias=family is Family.QWEN2 or (_has_bias_flag(family) and config.attention_bias),
        o_bias=_has_bias_flag(family) and config.attention_bias,
        mlp_bias=family is Family.LLAMA and config.mlp_bias,
        qk_norm=family is Family.QWEN3,
        sliding_window=_sliding_window(config, family),
        native_dtype=config.dtype or config.torch_dtype or "float32",
    )
    spec.check()
    return spec


def _family(given: _Type) -> Family:
    try:
        family = Family(given.model_type)
    except ValueError:
        name = ", ".join(given.architectures or ()) or given.model_type
        raise UnsupportedModel(f"{name} is not supported; supported are {SUPPORTED}") from None
    for architecture in given.architectures or ():
        if not architecture.endswith("ForCausalLM"):
            raise UnsupportedModel(
                f"{architecture} does not generate text; supported are {SUPPORTED}"
            )
    return family


def _has_bias_flag(family: Family) -> bool:
    return family in (Family.LLAMA, Family.QWEN3)


def _default_head_dim(config: _Config, family: Family) -> int:
    if family is Family.QWEN3:
        return 128
    return config.hidden_size // config.num_attention_heads


def _refuse_what_is_not_implemented(config: _Config) -> None:
    if config.quantization_config is not None:
        method = config.quantization_config.get("quant_method", "an unnamed method")
        raise UnsupportedModel(
            f"weights quantised by {method} in safetensors are not supported: take the unquantised "
            "model, or a GGUF file"
        )
    if config.hidden_act != "silu":
        raise UnsupportedModel(f"activation {config.hidden_act} is not supported; silu is")
    parts = (config, config.rope_parameters, config.rope_scaling)
    for part in parts:
        if part is not None and part.partial_rotary_factor not in (None, 1.0):
            raise UnsupportedModel(
                f"rotating only {part.partial_rotary_factor} of each head is not supported"
            )


def _sliding_window(config: _Config, family: Family) -> int | None:
    match family:
        case Family.LLAMA:
            return None
        case Family.MISTRAL:
            window = config.sliding_window
            return _MISTRAL_WINDOW if window is msgspec.UNSET else window
        case Family.QWEN2 | Family.QWEN3:
            window = config.sliding_window
            if not config.use_sliding_window or window is msgspec.UNSET:
                return None
            if config.layer_types is not None:
                return window if "sliding_attention" in config.layer_types else None
            first_cut = config.max_window_layers
            whole = first_cut is not None and first_cut >= config.num_hidden_layers
            return None if whole else window


def _scaling(rope: _Rope, max_position: int, top_level_original: int | None) -> RopeScaling:
    kind = rope.rope_type or rope.type or "default"
    original = top_level_original or rope.original_max_position_embeddings or max_position
    match kind:
        case "default":
            return NoScaling()
        case "linear":
            return LinearScaling(factor=_need(rope.factor, "factor", kind))
        case "dynamic":
            return DynamicScaling(factor=_need(rope.factor, "factor", kind))
        case "llama3":
            return Llama3Scaling(
                factor=_need(rope.factor, "factor", kind),
                low_freq_factor=_need(rope.low_freq_factor, "low_freq_factor", kind),
                high_freq_factor=_need(rope.high_freq_factor, "high_freq_factor", kind),
                original_max_position=original,
            )
        case "yarn":
            return _yarn(rope, max_position, original)
        case "longrope":
            return _longrope(rope, max_position, original)
        case _:
            raise UnsupportedModel(
                f"RoPE scaling {kind!r} is not supported; supported are default, linear, dynamic, "
                "yarn, llama3 and longrope"
            )


def _yarn(rope: _Rope, max_position: int, original: int) -> YarnScaling:
    factor = rope.factor or max_position / original
    attention_factor = rope.attention_factor
    if attention_factor is None:
        if rope.mscale and rope.mscale_all_dim:
            top = yarn_magnitude(factor, rope.mscale)
            attention_factor = top / yarn_magnitude(factor, rope.mscale_all_dim)
        else:
            attention_factor = yarn_magnitude(factor)
    return YarnScaling(
        factor=factor,
        original_max_position=original,
        attention_factor=attention_factor,
        beta_fast=rope.beta_fast or 32.0,
        beta_slow=rope.beta_slow or 1.0,
        truncate=rope.truncate is not False,
    )


def yarn_magnitude(factor: float, scale: float = 1.0) -> float:
    """The scaling of attention that YaRN recommends (arXiv 2309.00071, equation 22)."""
    return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0


def _longrope(rope: _Rope, max_position: int, original: int) -> LongRopeScaling:
    attention_factor = rope.attention_factor
    if attention_factor is None:
        factor = rope.factor or max_position / original
        grown = factor > 1
        attention_factor = math.sqrt(1 + math.log(factor) / math.log(original)) if grown else 1.0
    return LongRopeScaling(
        short_factors=_need(rope.short_factor, "short_factor", "longrope"),
        long_factors=_need(rope.long_factor, "long_factor", "longrope"),
        original_max_position=original,
        attention_factor=attention_factor,
    )


def _need(value: _T | None, name: str, kind: str) -> _T:
    if value is None:
        raise UnsupportedModel(f"config.json: RoPE scaling {kind!r} needs {name!r}")
    return value
