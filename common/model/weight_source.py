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

    def stored_format(self, name: str) -> str:
        """How the file stores the tensor: GGUF's or safetensors' name, such as Q4_1 or BF16."""
        ...

    def stored_rows(self, name: str) -> Tensor:
        """The rows as the file stores them: uint8 [rows, bytes of a row]."""
        ...
