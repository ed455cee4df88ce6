"""The weights of one transformer block, by what a pass does with them. No arithmetic."""

from dataclasses import dataclass

from torch import Tensor

from common.kernels.matrix import Matrix, plain

# H hidden  I intermediate  N query heads  G KV heads  D head dim


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """A product's matrix (one row an output) and its bias, if it has one."""

    weight_OI: Matrix
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


def block(tensors: dict[str, Matrix], layer: int) -> Block:
    """The block's weights among the packed tensors (names of `packing.packed_layout`)."""

    prefix = f"layers.{layer}"

    def vector(name: str) -> Tensor:
        return plain(tensors[f"{prefix}.{name}"])

    def optional(name: str) -> Tensor | None:
        return vector(name) if f"{prefix}.{name}" in tensors else None

    def linear(name: str) -> Linear:
        weight_OI = tensors[f"{prefix}.{name}.weight"]
        return Linear(weight_OI=weight_OI, bias_O=optional(f"{name}.bias"))

    return Block(
        attn_norm_H=vector("attn_norm"),
        qkv=linear("qkv"),
        q_norm_D=optional("q_norm"),
        k_norm_D=optional("k_norm"),
        o=linear("o"),
        mlp_norm_H=vector("mlp_norm"),
        gate_up=linear("gate_up"),
        down=linear("down"),
    )
