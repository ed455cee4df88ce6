import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from common.errors import SetupError, UnsupportedModel
from common.text.gguf_tokenizer import gguf_tokenizer
from common.text.load import TextModel, load_text_model
from common.text.model_defaults import (
    GenerationDefaults,
    gguf_end_token_ids,
    hf_end_token_ids,
)
from tests.unit.text.hf_directory import CONFIG, byte_level_backend, write_directory
from tests.unit.text.llama_cpp import byte_level_metadata, sentencepiece_metadata

MESSAGES = [{"role": "user", "content": "hi"}]
NAMES = {"bos_token": "<s>", "eos_token": "</s>"}


def load(path: Path, **files: dict[str, Any]) -> TextModel:
    return load_text_model(write_directory(path, byte_level_backend(), **files))


def test_the_default_model(smollm2: TextModel) -> None:
    assert smollm2.name == "SmolLM2-135M-Instruct.Q4_1"
    assert (smollm2.vocab_size, smollm2.context_length) == (49_152, 8_192)
    assert smollm2.end_token_ids == {2}
    assert smollm2.generation_defaults == GenerationDefaults()
    assert smollm2.tokenizer.special_token_id("bos_token") == 1


def test_neither_torch_nor_transformers_is_imported(default_model: Path) -> None:
    program = (
        "import sys; from pathlib import Path\n"
        "import common.text.stream\n"
        "from common.text.load import load_text_model\n"
        f"model = load_text_model(Path({str(default_model)!r}))\n"
        "assert model.tokenizer.encode('hello', add_special_tokens=True)\n"
        "print(sorted({'torch', 'transformers'} & sys.modules.keys()))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_a_directory(tmp_path: Path) -> None:
    path = tmp_path / "tiny-llama"
    path.mkdir()
    model = load(
        path,
        tokenizer_config=NAMES | {"chat_template": "{{ messages[0].content }}{{ eos_token }}"},
        generation_config={"eos_token_id": [7, 8], "temperature": 0.6, "top_p": 0.9, "x": None},
    )
    assert model.name == "tiny-llama"
    assert (model.vocab_size, model.context_length) == (2048, 512)
    eos = model.tokenizer.special_token_id("eos_token")
    assert model.end_token_ids == {5, 7, 8, eos}
    assert model.generation_defaults == GenerationDefaults(temperature=0.6, top_p=0.9)
    assert model.template is not None
    assert model.template.render(MESSAGES) == "hi</s>"


def test_a_model_without_a_template_cannot_chat(tmp_path: Path) -> None:
    assert load(tmp_path).template is None


NAMED = [{"name": "default", "template": "listed"}, {"name": "tool_use", "template": "with tools"}]


@pytest.mark.parametrize(
    ("files", "plain", "with_tools"),
    [
        ({"tokenizer_config.json": {"chat_template": "key"}}, "key", "key"),
        ({"tokenizer_config.json": {"chat_template": NAMED}}, "listed", "with tools"),
        ({"chat_template.json": {"chat_template": "old file"}}, "old file", "old file"),
        (
            {"tokenizer_config.json": {"chat_template": NAMED}, "chat_template.jinja": "file"},
            "file",
            "file",
        ),
        (
            {
                "chat_template.jinja": "file",
                "additional_chat_templates/tool_use.jinja": "tool file",
            },
            "file",
            "tool file",
        ),
    ],
)
def test_where_templates_may_lie(
    tmp_path: Path, files: dict[str, object], plain: str, with_tools: str
) -> None:
    for name, content in files.items():
        target = tmp_path / name
        target.parent.mkdir(exist_ok=True)
        target.write_text(content if isinstance(content, str) else json.dumps(content))
    template = load(tmp_path).template
    assert template is not None
    assert template.render(MESSAGES) == plain
    assert template.render(MESSAGES, tools=[{}]) == with_tools


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"temperature": -1}, r">= 0.*temperature"),
        ({"top_k": "many"}, r"top_k"),
        ({"max_new_tokens": 0}, r">= 1.*max_new_tokens"),
    ],
)
def test_defaults_that_cannot_be_meant_are_refused(
    tmp_path: Path, given: dict[str, Any], message: str
) -> None:
    with pytest.raises(SetupError, match=r"generation_config\.json: .*" + message):
        load(tmp_path, generation_config=given)


def test_end_tokens_of_a_directory_are_a_union(tmp_path: Path) -> None:
    assert hf_end_token_ids(tmp_path, None) == frozenset()
    (tmp_path / "config.json").write_text('{"text_config": {"eos_token_id": 3}}')
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [1, 2]}')
    assert hf_end_token_ids(tmp_path, 0) == {0, 1, 2, 3}


def test_end_tokens_of_a_gguf_file_are_a_union() -> None:
    metadata = byte_level_metadata(eos_token_id=10, eot_token_id=11, eom_token_id=12)
    assert gguf_end_token_ids(metadata) == {10, 11, 12}
    tokens = [*metadata["tokenizer.ggml.tokens"], "<|eot_id|>"]
    types = [*metadata["tokenizer.ggml.token_type"], 1]
    changed = metadata | {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types}
    assert gguf_end_token_ids(changed) == {10, 11, 12, len(tokens) - 1}
    ids = gguf_tokenizer(changed).encode("a<|eot_id|>", add_special_tokens=False)
    assert ids[-1] == len(tokens) - 1


def test_sentencepiece_has_ids_where_the_file_names_none() -> None:
    metadata = sentencepiece_metadata()
    for role in ("bos", "eos", "unknown"):
        del metadata[f"tokenizer.ggml.{role}_token_id"]
    assert gguf_end_token_ids(metadata) == {2}
    assert gguf_tokenizer(metadata).encode("", add_special_tokens=True) == [1]


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"has no config\.json"):
        load_text_model(tmp_path)
    with pytest.raises(SetupError, match=r"neither a model directory nor a \.gguf file"):
        load_text_model(tmp_path / "nothing")
    with pytest.raises(SetupError, match="not a readable GGUF file"):
        load_text_model(tmp_path / "nothing.gguf")


def test_an_unknown_architecture_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel):
        load(tmp_path, config=CONFIG | {"model_type": "mamba", "architectures": ["Mamba"]})
