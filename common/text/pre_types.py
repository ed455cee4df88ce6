"""How each `tokenizer.ggml.pre` cuts text into the words that BPE merges within.

The patterns are the facts that llama.cpp goes by (`llama-vocab.cpp`), which at places differ from
the model's own `tokenizer.json`: a GGUF file's ids are meant to be llama.cpp's. A pattern is
applied to every piece that the one before it left, matches and gaps alike. Must hold only types
whose ids have been compared with llama.cpp's.
"""

from dataclasses import dataclass

from common.errors import UnsupportedModel

_CONTRACTION = "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_LLAMA3 = (
    _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _SPACES
)
_QWEN2 = _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _SPACES
_CASED_WORD = (
    r"[^\r\n\p{L}\p{N}]?(?:(?=\p{L})[^a-z])*(?:(?=\p{L})[^A-Z])+{tail}"
    r"|[^\r\n\p{L}\p{N}]?(?:(?=\p{L})[^a-z])+(?:(?=\p{L})[^A-Z])*{tail}"
)
_TEKKEN = _CASED_WORD.replace("{tail}", "") + r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + _SPACES
_GPT4O = (
    _CASED_WORD.replace("{tail}", _CONTRACTION + "?")
    + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|"
    + _SPACES
)
_DEEPSEEK3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"
    r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|" + _SPACES
)


@dataclass(frozen=True, slots=True)
class PreType:
    """One way to cut text, and what llama.cpp ties to it."""

    patterns: tuple[str, ...]  # Oniguruma
    whole_words_first: bool = False  # a word that is a token is not built up by merges
    adds_bos: bool = False  # where the file does not say


_BY_GPT2 = PreType((_GPT2,))
_BY_DIGIT = PreType((r"\p{N}", _GPT2))
_BY_LLAMA3 = PreType((_LLAMA3,), whole_words_first=True, adds_bos=True)
_BY_QWEN2 = PreType((_QWEN2,))

_PRE_TYPES = {
    "default": PreType((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    "falcon": PreType((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]")),
    "tekken": PreType((_TEKKEN,), whole_words_first=True, adds_bos=True),
    "gpt-4o": PreType((_GPT4O,)),
    "llama4": PreType((_GPT4O,)),
    "deepseek-v3": PreType(
        (r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", _DEEPSEEK3)
    ),
    "dbrx": PreType((_LLAMA3,)),
    "smaug-bpe": PreType((_LLAMA3,)),
    **dict.fromkeys(("gpt-2", "phi-2", "mpt", "olmo", "exaone4", "trillion"), _BY_GPT2),
    **dict.fromkeys(
        ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"),
        _BY_DIGIT,
    ),
    **dict.fromkeys(
        ("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "lfm2", "pixtral"), _BY_LLAMA3
    ),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez", "stablelm2"), _BY_QWEN2),
}


def pre_type(name: str) -> PreType:
    """Raises `UnsupportedModel`, with the names that are supported."""
    try:
        return _PRE_TYPES[name]
    except KeyError:
        raise UnsupportedModel(
            f"tokenizer.ggml.pre is {name!r}; supported are {', '.join(sorted(_PRE_TYPES))}"
        ) from None
