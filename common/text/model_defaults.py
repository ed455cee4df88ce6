"""What a model's own files say of generation: where it ends, and how it is sampled by default.

Must not apply anything: requests and configuration override.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from common.errors import SetupError
from common.text.gguf_tokenizer import END_SPELLINGS, Metadata, get, special_id
from common.text.json_files import JsonObject, read_json


class GenerationDefaults(msgspec.Struct, frozen=True):
    """`generation_config.json`'s sampling, in the names of the API. None: the file is silent.

    The fields are those that vLLM takes from it; `do_sample` is not among them.
    """

    temperature: Annotated[float, Meta(ge=0)] | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: Annotated[float, Meta(gt=0)] | None = None
    max_tokens: Annotated[int, Meta(ge=1)] | None = msgspec.field(
        default=None, name="max_new_tokens"
    )


def hf_generation_defaults(directory: Path) -> GenerationDefaults:
    """Raises `SetupError` for a value that cannot be meant."""
    path = directory / "generation_config.json"
    try:
        return msgspec.convert(read_json(path, {}), GenerationDefaults)
    except msgspec.ValidationError as error:
        raise SetupError(f"{path}: {error}") from error


def hf_end_token_ids(directory: Path, tokenizer_eos: int | None) -> frozenset[int]:
    """The union of what `generation_config.json`, `config.json` and the tokenizer name."""
    files = (directory / "generation_config.json", directory / "config.json")
    named = [_eos_ids(read_json(path, {})) for path in files]
    own = frozenset[int]() if tokenizer_eos is None else frozenset((tokenizer_eos,))
    return own.union(*named)


def _eos_ids(config: JsonObject) -> frozenset[int]:
    """Llama 3 lists several; models of several parts keep it with the text part."""
    value = config.get("eos_token_id")
    if value is None and isinstance(text_part := config.get("text_config"), Mapping):
        value = text_part.get("eos_token_id")
    values = value if isinstance(value, list) else [value]
    return frozenset(n for n in values if isinstance(n, int))


def gguf_end_token_ids(metadata: Metadata) -> frozenset[int]:
    """End of sequence, of turn and of message; and tokens that end a text by their spelling."""
    roles = (special_id(metadata, role) for role in ("eos", "eot", "eom"))
    tokens = get(metadata, "tokenizer.ggml.tokens", list)
    return frozenset(n for n in roles if n is not None).union(
        n for n, token in enumerate(tokens) if token in END_SPELLINGS
    )
