"""A `Tokenizer` from a GGUF file's metadata, equal to llama.cpp's id for id.

Two kinds: byte-level BPE (`tokenizer.ggml.model` = gpt2) and SentencePiece (llama). Known
differences, all rare: where two special tokens overlap in a text, llama.cpp takes the longer,
`tokenizers` the earlier; characters that Unicode has had only since 2023 may be cut otherwise by
some pre-tokenizers; `_CONTROL_SPELLINGS` is shorter than llama.cpp's list. Must read no tensor.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import tokenizers
from gguf.constants import TokenType
from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers
from tokenizers.processors import TemplateProcessing

from common.errors import UnsupportedModel
from common.model.gguf_file import Value
from common.text import byte_fallback, byte_level
from common.text.merges import listed_merges, merges_by_score
from common.text.pre_types import pre_type
from common.text.tokenizer import Tokenizer, Vocabulary

Metadata = Mapping[str, Value]
_T = TypeVar("_T")

END_SPELLINGS = frozenset(
    ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<end_of_turn>")
)
"""Tokens that end a text whatever the file says of them: files forget some. As in llama.cpp."""

_CONTROL_SPELLINGS = END_SPELLINGS | {"<|endoftext|>", "<|end|>"}
# llama.cpp adds "</s>" and more, which in some vocabularies are plain text that a user may write
# (HTML has a tag of that name): what the file calls text stays text.

_SPECIAL = (TokenType.CONTROL, TokenType.UNKNOWN)
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


@dataclass(frozen=True, slots=True)
class _Listed:
    """The file's list of tokens."""

    spellings: list[str]  # by id
    kinds: list[int]  # by id: `TokenType`
    ids: dict[str, int]


def _listed(metadata: Metadata) -> _Listed:
    spellings = [
        str(token) or f"[EMPTY_{n}]"  # llama.cpp's name for it
        for n, token in enumerate(get(metadata, "tokenizer.ggml.tokens", list))
    ]
    ids = {spelling: n for n, spelling in enumerate(spellings)}
    if len(ids) != len(spellings):
        raise UnsupportedModel(
            f"GGUF metadata: {len(spellings) - len(ids)} tokens are listed twice"
        )
    plain = [int(TokenType.NORMAL)] * len(spellings)
    kinds = get(metadata, "tokenizer.ggml.token_type", list, plain)
    if len(kinds) != len(spellings):
        raise UnsupportedModel(f"GGUF metadata: {len(spellings)} tokens, {len(kinds)} token types")
    kinds = [int(kind) for kind in kinds]
    for spelling in _CONTROL_SPELLINGS & ids.keys():
        kinds[ids[spelling]] = TokenType.CONTROL
    return _Listed(spellings, kinds, ids)


def _byte_level_bpe(metadata: Metadata) -> Tokenizer:
    listed = _listed(metadata)
    cut = pre_type(get(metadata, "tokenizer.ggml.pre", str, "default"))
    merges = listed_merges(get(metadata, "tokenizer.ggml.merges", list), listed.ids)
    backend = tokenizers.Tokenizer(
        models.BPE(vocab=listed.ids, merges=merges, ignore_merges=cut.whole_words_first)
    )
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            *(pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in cut.patterns),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            *_without_unknown_bytes(listed.ids),
        ]
    )
    _put_around(backend, metadata, listed, adds_bos=cut.adds_bos)
    _add_special_tokens(backend, listed)
    return Tokenizer(
        backend,
        Vocabulary(
            token_bytes=_token_bytes(listed, byte_level.bytes_of),
            special_ids=_special_ids(listed),
            first_space_is_added=False,
            special_tokens=_special_tokens(metadata, listed),
        ),
    )


def _without_unknown_bytes(ids: Mapping[str, int]) -> list[pre_tokenizers.PreTokenizer]:
    """A byte that the vocabulary lacks is dropped, but nothing merges across its place."""
    unknown = "".join(re.escape(char) for char in byte_level.BYTE_OF if char not in ids)
    return [pre_tokenizers.Split(Regex(f"[{unknown}]"), "removed")] if unknown else []


def _sentencepiece(metadata: Metadata) -> Tokenizer:
    listed = _listed(metadata)
    scores = [float(score) for score in get(metadata, "tokenizer.ggml.scores", list)]
    unknown = special_id(metadata, "unknown")
    backend = tokenizers.Tokenizer(
        models.BPE(
            vocab=listed.ids,
            merges=merges_by_score(listed.spellings, scores),
            byte_fallback=True,
            unk_token=None if unknown is None else listed.spellings[unknown],
        )
    )
    adds_space = get(metadata, "tokenizer.ggml.add_space_prefix", bool, default=True)
    # A normalizer sees every stretch of text between two special tokens by itself, as llama.cpp's
    # prefix does.
    prefix = [normalizers.Prepend(byte_fallback.SPACE)] if adds_space else []
    backend.normalizer = normalizers.Sequence(
        [*prefix, normalizers.Replace(" ", byte_fallback.SPACE)]
    )
    _put_around(backend, metadata, listed, adds_bos=True)
    _add_special_tokens(backend, listed)
    return Tokenizer(
        backend,
        Vocabulary(
            token_bytes=_token_bytes(listed, byte_fallback.bytes_of),
            special_ids=_special_ids(listed),
            first_space_is_added=adds_space,
            special_tokens=_special_tokens(metadata, listed),
        ),
    )


def _put_around(
    backend: tokenizers.Tokenizer, metadata: Metadata, listed: _Listed, *, adds_bos: bool
) -> None:
    """Have BOS and EOS added where the file (or, without its word, its kind) wants them."""
    single = "$A:0"
    named: list[dict[str, object]] = []
    for role, form, default in (("bos", "bos:0 {}", adds_bos), ("eos", "{} eos:0", False)):
        if not get(metadata, f"tokenizer.ggml.add_{role}_token", bool, default):
            continue
        token_id = special_id(metadata, role)
        if token_id is None:
            raise UnsupportedModel(f"GGUF metadata: {role} is to be added, but names no token")
        single = form.format(single)
        named.append({"id": role, "ids": [token_id], "tokens": [listed.spellings[token_id]]})
    backend.post_processor = TemplateProcessing(single=single, special_tokens=named)


def _add_special_tokens(backend: tokenizers.Tokenizer, listed: _Listed) -> None:
    """Have these found in text before anything else is done to it."""
    found_first = (*_SPECIAL, TokenType.USER_DEFINED)
    backend.add_tokens(
        [
            AddedToken(spelling, special=kind in _SPECIAL, normalized=False)
            for spelling, kind in zip(listed.spellings, listed.kinds, strict=True)
            if kind in found_first
        ]
    )


def _token_bytes(listed: _Listed, bytes_of: Callable[[str], bytes]) -> tuple[bytes, ...]:
    def meaning(spelling: str, kind: int) -> bytes:
        match kind:
            case TokenType.CONTROL | TokenType.UNKNOWN | TokenType.USER_DEFINED:
                return spelling.encode()
            case TokenType.BYTE:
                return byte_fallback.bytes_of(spelling)
            case TokenType.NORMAL:
                return bytes_of(spelling)
            case _:
                return b""  # unused: llama.cpp shows nothing for it

    return tuple(map(meaning, listed.spellings, listed.kinds))


def _special_ids(listed: _Listed) -> frozenset[int]:
    return frozenset(n for n, kind in enumerate(listed.kinds) if kind in _SPECIAL)


def _special_tokens(metadata: Metadata, listed: _Listed) -> dict[str, str]:
    roles = {role: special_id(metadata, role) for role in _TEMPLATE_NAMES}
    return {
        _TEMPLATE_NAMES[role]: listed.spellings[n] for role, n in roles.items() if n is not None
    }
