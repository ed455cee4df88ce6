"""A model as its text is concerned, from its directory or GGUF file: for gateways and workers.

Reads no tensor, and imports neither torch nor transformers.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from common.errors import SetupError
from common.model.gguf_file import GgufFile
from common.model.hf_config import spec_from_config
from common.text.gguf_tokenizer import Metadata, get, gguf_tokenizer
from common.text.hf_tokenizer import hf_tokenizer, tokenizer_config
from common.text.json_files import JsonObject, read_json
from common.text.model_defaults import (
    GenerationDefaults,
    gguf_end_token_ids,
    hf_end_token_ids,
    hf_generation_defaults,
)
from common.text.template import ChatTemplate
from common.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class TextModel:
    """A model as its text is concerned. Immutable, all of it; any thread may use it."""

    name: str  # the file's, or the directory's
    tokenizer: Tokenizer
    template: ChatTemplate | None  # None: it has none, so it cannot chat
    end_token_ids: frozenset[int]
    generation_defaults: GenerationDefaults
    context_length: int  # tokens the model is meant for, by its own files
    vocab_size: int  # rows of the model: valid token ids are below this


def load_text_model(path: Path, *, chat_template: Path | None = None) -> TextModel:
    """Raises `SetupError`: files are missing or broken, or (`UnsupportedModel`) foreign.

    chat_template  a jinja2 file that takes the place of the model's own
    """
    if path.is_dir():
        model = _from_directory(path)
    elif path.suffix == ".gguf":
        model = _from_gguf(path)
    else:
        raise SetupError(f"{path} is neither a model directory nor a .gguf file")
    if chat_template is None:
        return model
    source = read_template(chat_template)
    return replace(model, template=_template({"default": source}, model.tokenizer))


def read_template(path: Path) -> str:
    """Its source. Raises SetupError."""
    try:
        return path.read_text("utf-8")
    except OSError as error:
        raise SetupError(f"--chat-template {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SetupError(f"--chat-template {path}: {error}") from error


def _from_gguf(path: Path) -> TextModel:
    metadata = GgufFile(path).metadata
    tokenizer = gguf_tokenizer(metadata)
    architecture = get(metadata, "general.architecture", str)
    return TextModel(
        name=path.stem,
        tokenizer=tokenizer,
        template=_template(_gguf_templates(metadata), tokenizer),
        end_token_ids=gguf_end_token_ids(metadata),
        generation_defaults=GenerationDefaults(),
        context_length=get(metadata, f"{architecture}.context_length", int),
        vocab_size=tokenizer.vocab_size,
    )


def _from_directory(path: Path) -> TextModel:
    config_path = path / "config.json"
    if not config_path.is_file():
        raise SetupError(f"{path} has no config.json, so it is not a model's directory")
    spec = spec_from_config(config_path.read_bytes())
    config = tokenizer_config(path)
    tokenizer = hf_tokenizer(path, config)
    return TextModel(
        name=path.resolve().name,
        tokenizer=tokenizer,
        template=_template(_hf_templates(path, config), tokenizer),
        end_token_ids=hf_end_token_ids(path, tokenizer.special_token_id("eos_token")),
        generation_defaults=hf_generation_defaults(path),
        context_length=spec.context_tokens,
        vocab_size=spec.vocab_size,
    )


def _template(sources: Mapping[str, str], tokenizer: Tokenizer) -> ChatTemplate | None:
    return ChatTemplate(sources, tokenizer.vocabulary.special_tokens) if sources else None


def _gguf_templates(metadata: Metadata) -> dict[str, str]:
    key = "tokenizer.chat_template"
    names = [str(name) for name in get(metadata, "tokenizer.chat_templates", list, [])]
    found = {"default": metadata.get(key)} | {name: metadata.get(f"{key}.{name}") for name in names}
    return {name: source for name, source in found.items() if isinstance(source, str)}


def _hf_templates(directory: Path, config: JsonObject) -> dict[str, str]:
    """Files of their own come before `tokenizer_config.json`'s key, as in transformers."""
    files = {"default": directory / "chat_template.jinja"} | {
        file.stem: file for file in (directory / "additional_chat_templates").glob("*.jinja")
    }
    sources = {name: file.read_text("utf-8") for name, file in files.items() if file.is_file()}
    if sources:
        return sources
    legacy = read_json(directory / "chat_template.json", {})
    return _named_templates(legacy.get("chat_template") or config.get("chat_template"))


def _named_templates(value: object) -> dict[str, str]:
    """One template, or a list of {"name": ..., "template": ...}."""
    if isinstance(value, str):
        return {"default": value}
    if not isinstance(value, list):
        return {}
    return {
        item["name"]: item["template"]
        for item in value
        if isinstance(item, Mapping) and isinstance(item.get("template"), str)
    }
