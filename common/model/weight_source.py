"""What a weights file must offer to be packed, whatever its format."""

from typing import Protocol

from torch import Tensor


class WeightSource(Protocol):
    """Tensors under Hugging Face's names (`model.layers.0.self_attn.q_proj.weight`, ...)."""

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Every tensor of the model; what is not needed for inference may be left out."""
        ...

    def read_into(self, name: str, out: Tensor) -> None:
        """Write the tensor to `out` (of its shape, contiguous), rounded to `out`'s dtype."""
        ...
