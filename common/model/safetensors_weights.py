"""Models from Hugging Face directories: `config.json` and safetensors, single or sharded."""

from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from common.errors import SetupError, UnsupportedModel
from common.model.hf_config import spec_from_config
from common.model.hf_files import read_file, weight_files

_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


class SafetensorsSource:
    """A `WeightSource` over a directory. `spec` describes the model. Files are mapped, not read."""

    def __init__(self, directory: Path) -> None:
        self.spec = spec_from_config(read_file(directory / "config.json"))
        self._file_of: dict[str, safe_open] = {}
        for path in weight_files(directory):
            try:
                file = safe_open(path, framework="pt")
                self._file_of.update((name, file) for name in file.keys())  # noqa: SIM118
            except (OSError, SafetensorError) as error:
                raise SetupError(f"{path}: not a readable safetensors file: {error}") from error

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {
            name: tuple(file.get_slice(name).get_shape())
            for name, file in self._file_of.items()
            if not name.endswith(".rotary_emb.inv_freq")  # kept by old checkpoints; recomputed
        }

    def read_into(self, name: str, out: Tensor) -> None:
        stored = self._file_of[name].get_tensor(name)
        if stored.dtype not in _DTYPES:
            raise UnsupportedModel(f"tensor {name} is {stored.dtype}: quantised weights need GGUF")
        out.copy_(stored)

    def stored_format(self, name: str) -> str:
        return str(self._file_of[name].get_slice(name).get_dtype())

    def stored_rows(self, name: str) -> Tensor:
        stored = self._file_of[name].get_tensor(name)
        return stored.reshape(len(stored), -1).view(torch.uint8)
