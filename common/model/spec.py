"""What a model is: everything that decides its shape and its arithmetic, and no weight.

Pure: imports no torch and reads no file, so any process can hold one.
"""

from enum import StrEnum, auto

import msgspec

from common.errors import UnsupportedModel


class Family(StrEnum):
    """The architectures that `common.model.llama` computes. Values are Hugging Face model types."""

    LLAMA = auto()  # Llama 1 to 3, SmolLM2 and whatever else is saved as LlamaForCausalLM
    MISTRAL = auto()
    QWEN2 = auto()
    QWEN3 = auto()


SUPPORTED = "Llama 2/3 and SmolLM2 (llama), Mistral (mistral), Qwen2 (qwen2), Qwen3 (qwen3)"


class _Scaling(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag=True):
    """Base: how rotary frequencies are bent so that a model reaches past its first training."""


class NoScaling(_Scaling, frozen=True, kw_only=True):
    """Frequencies as trained."""


class LinearScaling(_Scaling, frozen=True, kw_only=True):
    """Position interpolation: every frequency divided by `factor`."""

    factor: float


class DynamicScaling(_Scaling, frozen=True, kw_only=True):
    """NTK-aware: the base grows with the context; here with max-model-len, once, at load."""

    factor: float


class YarnScaling(_Scaling, frozen=True, kw_only=True):
    """YaRN: low frequencies interpolated, high ones kept, a ramp between.

    `attention_factor` multiplies cos and sin.
    """

    factor: float
    original_max_position: int
    attention_factor: float
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True  # the ramp's ends are rounded outwards to whole dimensions


class Llama3Scaling(_Scaling, frozen=True, kw_only=True):
    """Llama 3.1: wavelengths beyond a limit divided by `factor`, with a smooth middle."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position: int


class LongRopeScaling(_Scaling, frozen=True, kw_only=True):
    """A divisor per frequency: `long_factors` if max-model-len exceeds the original context."""

    short_factors: tuple[float, ...]  # head_dim / 2
    long_factors: tuple[float, ...]
    original_max_position: int
    attention_factor: float  # multiplies cos and sin


class DivisorScaling(_Scaling, frozen=True, kw_only=True):
    """A fixed divisor per frequency: GGUF's `rope_freqs` tensor, its form of Llama 3.1's."""

    divisors: tuple[float, ...]  # head_dim / 2


RopeScaling = (
    NoScaling
    | LinearScaling
    | DynamicScaling
    | YarnScaling
    | Llama3Scaling
    | LongRopeScaling
    | DivisorScaling
)


class ModelSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A decoder-only transformer with RMSNorm, rotary positions and gated SiLU blocks."""

    family: Family
    hidden_size: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling
    max_position: int  # context in tokens as the model's file states it, before any scaling
    tied_embeddings: bool  # the output matrix is the embedding matrix
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    qk_norm: bool  # RMSNorm over each head of q and k, before rotation
    sliding_window: int | None  # tokens some layer's attention is cut to; None: never cut
    native_dtype: str  # what the file's weights are meant to be computed in

    @property
    def context_tokens(self) -> int:
        """The longest sequence the model is meant for, and that is computed exactly here.

        Attention is never cut to a window, so a model with one is served up to its window.
        """
        tokens = _scaled_context(self.max_position, self.rope_scaling)
        return tokens if self.sliding_window is None else min(tokens, self.sliding_window)

    def check(self) -> None:
        """Raise `UnsupportedModel` where sizes contradict each other or no kernel can follow."""
        for name in ("hidden_size", "n_layers", "n_heads", "n_kv_heads", "head_dim", "vocab_size",
                     "intermediate_size", "max_position"):  # fmt: skip
            if getattr(self, name) < 1:
                raise UnsupportedModel(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.n_heads % self.n_kv_heads:
            raise UnsupportedModel(
                f"{self.n_heads} query heads are not a multiple of {self.n_kv_heads} KV heads"
            )
        if self.head_dim % 2:
            raise UnsupportedModel(f"head_dim {self.head_dim} is odd; rotation needs pairs")
        expected = self.head_dim // 2
        for n in _divisor_counts(self.rope_scaling):
            if n != expected:
                raise UnsupportedModel(f"RoPE scaling lists {n} factors; the head has {expected}")


def _scaled_context(max_position: int, scaling: RopeScaling) -> int:
    match scaling:
        case LinearScaling() | DynamicScaling():
            return int(max_position * scaling.factor)
        case YarnScaling():
            return max(max_position, int(scaling.original_max_position * scaling.factor))
        case _:  # the file's max_position already includes the scaling
            return max_position


def _divisor_counts(scaling: RopeScaling) -> tuple[int, ...]:
    match scaling:
        case DivisorScaling():
            return (len(scaling.divisors),)
        case LongRopeScaling():
            return (len(scaling.short_factors), len(scaling.long_factors))
        case _:
            return ()


def check_max_model_len(spec: ModelSpec, max_model_len: int) -> None:
    """Refuse lengths whose attention would have to be cut to a sliding window."""
    if spec.sliding_window is not None and max_model_len > spec.sliding_window:
        raise UnsupportedModel(
            f"this {spec.family} model attends to the last {spec.sliding_window} tokens only, "
            f"which is not implemented: lower max-model-len from {max_model_len} to "
            f"{spec.sliding_window} or less, where the window makes no difference"
        )
