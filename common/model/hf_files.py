"""The files of a Hugging Face directory that are read here. Must not import torch."""

from pathlib import Path

import msgspec

from common.errors import SetupError

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"


class _Index(msgspec.Struct, frozen=True):
    weight_map: dict[str, str]  # tensor -> file name


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
