"""What a model's files say of it, read without its weights. Must not import torch."""

from pathlib import Path

from common.model.gguf_file import GgufFile
from common.model.gguf_spec import spec_from_gguf
from common.model.hf_config import spec_from_config
from common.model.hf_files import read_file
from common.model.spec import ModelSpec


def read_spec(model_path: Path) -> ModelSpec:
    """The spec alone, in milliseconds. `model_path`: a `.gguf` file or a Hugging Face directory.

    Raises `UnsupportedModel` for what cannot be run here, `SetupError` for what cannot be read.
    """
    if model_path.is_dir():
        return spec_from_config(read_file(model_path / "config.json"))
    return spec_from_gguf(GgufFile(model_path))
