"""The weights of one transformer block, by what a pass does with them. No arithmetic."""

from dataclasses import dataclass

from torch import Tensor

# H hidden  I intermediate  N query heads  G KV heads  D head dim


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """A product's matrix (one row an output) and its bias, if it has one."""

    weight_OI: Tensor
    bias_O: Tensor | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Attention and the gated feed-forward network of one layer."""

    attn_norm_H: Tensor
    qkv: Linear  # [(N + 2G) * D, H]: q, then k, then v
    q_norm_D: Tensor | None
    k_norm_D: Tensor | None
    o: Linear  # [H, N * D]
    mlp_norm_H: Tensor
    gate_up: Linear  # [2I, H]: gate, then up
    down: Linear  # [H, I]


def block(tensors: dict[str, Tensor], layer: int) -> Block:
    """The block's weights among the packed tensors (names of `packing.packed_layout`)."""

    def linear(name: str) -> Linear:
        key = f"layers.{layer}.{name}"
        return Linear(weight_OI=tensors[f"{key}.weight"], bias_O=tensors.get(f"{key}.bias"))

    prefix = f"layers.{layer}"
    return Block(
        attn_norm_H=tensors[f"{prefix}.attn_norm"],
        qkv=linear("qkv"),
        q_norm_D=tensors.get(f"{prefix}.q_norm"),
        k_norm_D=tensors.get(f"{prefix}.k_norm"),
        o=linear("o"),
        mlp_norm_H=tensors[f"{prefix}.mlp_norm"],
        gate_up=linear("gate_up"),
        down=linear("down"),
    )
