"""A `Tokenizer` from a GGUF file's metadata, equal to llama.cpp's id for id.

Two kinds: byte-level BPE (`tokenizer.ggml.model` = gpt2) and SentencePiece (llama). One known
difference: where two special tokens overlap in a text, llama.cpp takes the longer, `tokenizers`
the earlier; no model in use has such spellings. Must read no tensor.
"""

import re
from collections.abc import Callable, Mapping
from typing import TypeVar

import tokenizers
from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers
from tokenizers.processors import TemplateProcessing

from common.errors import UnsupportedModel
from common.model.gguf_file import Value
from launch.gateway.text import byte_fallback, byte_level
from launch.gateway.text.merges import listed_merges, merges_by_score
from launch.gateway.text.pre_types import pre_type
from launch.gateway.text.tokenizer import Tokenizer, Vocabulary

Metadata = Mapping[str, Value]
_T = TypeVar("_T")

TURN_ENDS = frozenset(("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<end_of_turn>"))
"""Tokens that end a turn whatever a file says of them, as in llama.cpp."""

_ALWAYS_CONTROL = TURN_ENDS | {"<|endoftext|>", "<|end_of_text|>", "<|end|>"}
# llama.cpp adds "</s>" and more, which in some vocabularies are plain text that a user may write
# (HTML has a tag of that name): what the file calls text stays text.

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 1, 2, 3, 4, 6  # 5: unused
_SENTENCEPIECE_IDS = {"bos": 1, "eos": 2, "unknown": 0}  # where a file names none
_TEMPLATE_NAMES = {
    "bos": "bos_token",
    "eos": "eos_token",
    "unknown": "unk_token",
    "padding": "pad_token",
    "seperator": "sep_token",  # GGUF's own spelling
    "mask": "mask_token",
}


def gguf_tokenizer(metadata: Metadata) -> Tokenizer:
    """Raises `UnsupportedModel` for a tokenizer whose ids would not be llama.cpp's."""
    match get(metadata, "tokenizer.ggml.model", str):
        case "gpt2":
            return _byte_level_bpe(metadata)
        case "llama":
            return _sentencepiece(metadata)
        case other:
            raise UnsupportedModel(f"tokenizer.ggml.model is {other!r}; supported are gpt2, llama")


def special_id(metadata: Metadata, role: str) -> int | None:
    """The id of a role (bos, eos, eot, ...), if it has one."""
    is_sentencepiece = metadata.get("tokenizer.ggml.model") == "llama"
    default = _SENTENCEPIECE_IDS.get(role) if is_sentencepiece else None
    token_id = metadata.get(f"tokenizer.ggml.{role}_token_id", default)
    n_tokens = len(get(metadata, "tokenizer.ggml.tokens", list))
    return token_id if isinstance(token_id, int) and 0 <= token_id < n_tokens else None


def get(metadata: Metadata, key: str, kind: type[_T], default: _T | None = None) -> _T:
    """A value of the kind expected, or `UnsupportedModel`."""
    value = metadata.get(key, default)
    if not isinstance(value, kind):
        found = "missing" if value is None else f"a {type(value).__name__}"
        raise UnsupportedModel(f"GGUF metadata: {key} is {found}; expected {kind.__name__}")
    return value


def _byte_level_bpe(metadata: Metadata) -> Tokenizer:
    tokens = _tokens(metadata)
    ids = _ids(tokens)
    cut = pre_type(get(metadata, "tokenizer.ggml.pre", str, "default"))
    merges = listed_merges(get(metadata, "tokenizer.ggml.merges", list), ids)
    backend = tokenizers.Tokenizer(
        models.BPE(vocab=ids, merges=merges, ignore_merges=cut.whole_words_first)
    )
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            *(pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in cut.patterns),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            *_without_bytes_unknown(ids),
        ]
    )
    _put_around(backend, metadata, adds_bos=cut.adds_bos)
    return _finish(backend, metadata, byte_level.bytes_of, first_space_is_added=False)


def _without_bytes_unknown(ids: Mapping[str, int]) -> list[pre_tokenizers.PreTokenizer]:
    """A byte that the vocabulary lacks is dropped, but nothing merges across its place."""
    unknown = "".join(re.escape(char) for char in byte_level.BYTE_OF if char not in ids)
    return [pre_tokenizers.Split(Regex(f"[{unknown}]"), "removed")] if unknown else []


def _sentencepiece(metadata: Metadata) -> Tokenizer:
    tokens = _tokens(metadata)
    ids = _ids(tokens)
    scores = [float(score) for score in get(metadata, "tokenizer.ggml.scores", list)]
    unknown = special_id(metadata, "unknown")
    backend = tokenizers.Tokenizer(
        models.BPE(
            vocab=ids,
            merges=merges_by_score(tokens, scores),
            byte_fallback=True,
            unk_token=None if unknown is None else tokens[unknown],
        )
    )
    adds_space = get(metadata, "tokenizer.ggml.add_space_prefix", bool, default=True)
    # A normalizer sees every stretch of text between two special tokens by itself, as llama.cpp's
    # prefix does.
    backend.normalizer = normalizers.Sequence(
        [
            *([normalizers.Prepend(byte_fallback.SPACE)] if adds_space else []),
            normalizers.Replace(" ", byte_fallback.SPACE),
        ]
    )
    _put_around(backend, metadata, adds_bos=True)
    return _finish(backend, metadata, byte_fallback.bytes_of, first_space_is_added=adds_space)


def _tokens(metadata: Metadata) -> list[str]:
    tokens = get(metadata, "tokenizer.ggml.tokens", list)
    return [str(token) or f"[EMPTY_{n}]" for n, token in enumerate(tokens)]  # llama.cpp's names


def _ids(tokens: list[str]) -> dict[str, int]:
    ids = {token: n for n, token in enumerate(tokens)}
    if len(ids) != len(tokens):
        raise UnsupportedModel(f"GGUF metadata: {len(tokens) - len(ids)} tokens are listed twice")
    return ids


def _types(metadata: Metadata, tokens: list[str]) -> list[int]:
    types = get(metadata, "tokenizer.ggml.token_type", list, [_NORMAL] * len(tokens))
    if len(types) != len(tokens):
        raise UnsupportedModel(f"GGUF metadata: {len(tokens)} tokens, {len(types)} token types")
    return [
        _CONTROL if token in _ALWAYS_CONTROL else int(kind)
        for token, kind in zip(tokens, types, strict=True)
    ]


def _put_around(backend: tokenizers.Tokenizer, metadata: Metadata, *, adds_bos: bool) -> None:
    """Have BOS and EOS added where the file (or, without its word, its kind) wants them."""
    tokens = _tokens(metadata)
    before = after = ""
    named: list[dict[str, object]] = []
    for role, default in (("bos", adds_bos), ("eos", False)):
        if not get(metadata, f"tokenizer.ggml.add_{role}_token", bool, default):
            continue
        token_id = special_id(metadata, role)
        if token_id is None:
            raise UnsupportedModel(f"GGUF metadata: {role} is to be added, but names no token")
        named.append({"id": role, "ids": [token_id], "tokens": [tokens[token_id]]})
        before, after = ("bos:0 ", after) if role == "bos" else (before, " eos:0")
    if named:
        backend.post_processor = TemplateProcessing(
            single=f"{before}$A:0{after}", special_tokens=named
        )


def _finish(
    backend: tokenizers.Tokenizer,
    metadata: Metadata,
    bytes_of: Callable[[str], bytes],
    *,
    first_space_is_added: bool,
) -> Tokenizer:
    tokens = _tokens(metadata)
    types = _types(metadata, tokens)
    special = frozenset(n for n, kind in enumerate(types) if kind in (_CONTROL, _UNKNOWN))
    backend.add_tokens(
        [
            AddedToken(token, special=n in special, normalized=False)
            for n, (token, kind) in enumerate(zip(tokens, types, strict=True))
            if n in special or kind == _USER_DEFINED
        ]
    )

    def meaning(token: str, kind: int) -> bytes:
        match kind:
            case _ if kind in (_CONTROL, _UNKNOWN, _USER_DEFINED):
                return token.encode()
            case _ if kind == _BYTE:
                return byte_fallback.bytes_of(token)
            case _ if kind == _NORMAL:
                return bytes_of(token)
            case _:
                return b""  # unused: llama.cpp shows nothing for it

    roles = {role: special_id(metadata, role) for role in _TEMPLATE_NAMES}
    return Tokenizer(
        backend,
        Vocabulary(
            token_bytes=tuple(map(meaning, tokens, types)),
            special_ids=special,
            first_space_is_added=first_space_is_added,
            special_tokens={
                _TEMPLATE_NAMES[role]: tokens[n] for role, n in roles.items() if n is not None
            },
        ),
    )
