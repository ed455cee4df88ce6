"""A `Tokenizer` from a Hugging Face directory, as transformers' fast tokenizers have it.

What goes around a prompt (BOS, EOS) is `tokenizer.json`'s post-processor alone: where there is that
file, transformers 5 does not read `add_bos_token` and its like. The file also rules over the class
that `tokenizer_config.json` names, where transformers 5 rebuilds some (LlamaTokenizer) by rules of
its own: the file is what the model was published with.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken

from common.errors import SetupError, UnsupportedModel
from common.text import byte_fallback, byte_level
from common.text.json_files import JsonObject, read_json
from common.text.tokenizer import Tokenizer, Vocabulary

_SPACE_AGAIN = {"type": "Replace", "pattern": {"String": byte_fallback.SPACE}, "content": " "}
_WITHOUT_FIRST_SPACE = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
_FLAGS = frozenset(("content", "lstrip", "rstrip", "single_word", "normalized", "special"))
_SENTENCEPIECE = [_SPACE_AGAIN, {"type": "ByteFallback"}, {"type": "Fuse"}]


def tokenizer_config(directory: Path) -> JsonObject:
    """`tokenizer_config.json`, completed from `special_tokens_map.json` where it is an old one."""
    config = read_json(directory / "tokenizer_config.json", {})
    if "added_tokens_decoder" not in config:
        config = config | read_json(directory / "special_tokens_map.json", {})
    return config


def hf_tokenizer(directory: Path, config: JsonObject) -> Tokenizer:
    """Raises `SetupError` where files are missing or odd, `UnsupportedModel` for odd decoders."""
    path = directory / "tokenizer.json"
    if not path.is_file():
        raise SetupError(
            f"{directory} has no tokenizer.json; save its tokenizer with transformers' "
            "AutoTokenizer.from_pretrained(...).save_pretrained(...) to get one"
        )
    decoder = read_json(path).get("decoder")
    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower
        raise SetupError(f"{path}: {error}") from error
    special_tokens = _special_tokens(config)
    _add_tokens(backend, config, special_tokens)
    return Tokenizer(backend, _vocabulary(backend, decoder, special_tokens))


def _special_tokens(config: JsonObject) -> dict[str, str]:
    """Role -> spelling: every `..._token` of the configuration."""
    return {
        key: spelling
        for key, value in config.items()
        if key.endswith("_token") and (spelling := _spelling(value)) is not None
    }


def _spelling(token: object) -> str | None:
    """A token is given by its text, or as an object with flags."""
    if isinstance(token, Mapping):
        token = token.get("content")
    return token if isinstance(token, str) else None


def _add_tokens(
    backend: tokenizers.Tokenizer, config: JsonObject, special_tokens: Mapping[str, str]
) -> None:
    """Tokens that `tokenizer.json` may not know of. Those with a role are special."""
    listed: Mapping[str, Mapping[str, Any]] = config.get("added_tokens_decoder") or {}
    backend.add_tokens(
        [
            AddedToken(**{key: value for key, value in flags.items() if key in _FLAGS})
            for _, flags in sorted(listed.items(), key=lambda item: int(item[0]))
        ]
    )
    known = {token.content: token for token in backend.get_added_tokens_decoder().values()}
    for name in special_tokens.values():
        token = known.setdefault(name, AddedToken(name, normalized=False))
        token.special = True
        backend.add_special_tokens([token])
    extra = config.get("extra_special_tokens") or config.get("additional_special_tokens") or []
    backend.add_special_tokens(
        [AddedToken(name, normalized=False) for name in _spellings(extra) if name not in known]
    )


def _spellings(tokens: Iterable[object]) -> list[str]:
    values = tokens.values() if isinstance(tokens, Mapping) else tokens
    return [spelling for token in values if (spelling := _spelling(token)) is not None]


def _vocabulary(
    backend: tokenizers.Tokenizer, decoder: object, special_tokens: Mapping[str, str]
) -> Vocabulary:
    bytes_of, first_space_is_added = _meaning(decoder)
    added = backend.get_added_tokens_decoder()
    spellings = backend.get_vocab(with_added_tokens=True)
    token_bytes = [b""] * (1 + max(spellings.values(), default=-1))
    for token, token_id in spellings.items():
        is_plain = token_id in added and bytes_of is byte_level.bytes_of
        token_bytes[token_id] = token.encode() if is_plain else bytes_of(token)
    return Vocabulary(
        token_bytes=tuple(token_bytes),
        special_ids=frozenset(token_id for token_id, token in added.items() if token.special),
        first_space_is_added=first_space_is_added,
        special_tokens=special_tokens,
    )


def _meaning(decoder: object) -> tuple[Callable[[str], bytes], bool]:
    """How a token's spelling becomes bytes, and whether a text's first space is not its own."""
    steps = _steps(decoder)
    kinds = [step.get("type") for step in steps]
    if kinds == ["ByteLevel"]:
        return byte_level.bytes_of, False
    if steps == _SENTENCEPIECE:
        return byte_fallback.bytes_of, False
    if steps == [*_SENTENCEPIECE, _WITHOUT_FIRST_SPACE]:
        return byte_fallback.bytes_of, True
    raise UnsupportedModel(
        f"the decoder of tokenizer.json is {json.dumps(decoder, ensure_ascii=False)}; supported "
        "are ByteLevel, and SentencePiece's Replace, ByteFallback, Fuse with or without Strip"
    )


def _steps(decoder: object) -> list[Mapping[str, object]]:
    if not isinstance(decoder, Mapping):
        return []
    if decoder.get("type") == "Sequence":
        return [step for part in decoder.get("decoders", ()) for step in _steps(part)]
    return [decoder]
