"""What unit tests share: the default model's text side, loaded once."""

from pathlib import Path

import pytest

from common.model.gguf_file import GgufFile
from common.text.load import TextModel, load_text_model


@pytest.fixture(scope="session")
def smollm2(default_model: Path) -> TextModel:
    return load_text_model(default_model)


@pytest.fixture(scope="session")
def default_model_template(default_model: Path) -> str:
    """Its chat template's source."""
    return str(GgufFile(default_model).metadata["tokenizer.chat_template"])
