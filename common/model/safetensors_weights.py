"""Models from Hugging Face directories: `config.json` and safetensors, single or sharded."""

from pathlib import Path

import msgspec
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from common.errors import SetupError, UnsupportedModel
from common.model.hf_config import spec_from_config

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


class _Index(msgspec.Struct, frozen=True):
    weight_map: dict[str, str]  # tensor -> file name


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


def weight_files(directory: Path) -> list[Path]:
    """The safetensors files that hold the model, by name; all exist."""
    index = directory / _INDEX
    if index.is_file():
        try:
            names = msgspec.json.decode(read_file(index), type=_Index).weight_map.values()
        except msgspec.MsgspecError as error:
            raise SetupError(f"{index}: {error}") from error
    else:
        names = [_SINGLE]
    files = [directory / name for name in sorted(set(names))]
    for path in files:
        if path.name not in names:
            raise SetupError(f"{index}: {path} is not a file name")
        if not path.is_file():
            raise SetupError(f"{path} does not exist; weights load from safetensors and GGUF only")
    return files


def read_file(path: Path) -> bytes:
    """Raises `SetupError` where the file cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise SetupError(f"{path}: {error.strerror}") from error
