"""Rules of single tokens: those that an answer is made of, and words that it never says.

They travel with a request's parameters as a text, in the place of its grammar, which they hold
(`TokenRules.grammar`). What they allow is a function of them and of the outputs so far, as it is of
a grammar; meaning and order are vLLM's (`allowed_token_ids`, `bad_words`). Must hold no request.
"""

from collections.abc import Sequence
from functools import lru_cache

import msgspec
import numpy as np
from numpy.typing import NDArray

from common.text.tokenizer import Tokenizer

PREFIX = '{"token_rules":'
_KEPT_RULES = 64  # texts that are read once: a byte a token of the vocabulary each


class TokenRules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """As they travel."""

    vocab_size: int
    allowed_bits: bytes | None = None  # a bit for each token of the vocabulary; None: all of them
    bad_words: tuple[tuple[int, ...], ...] = ()  # none of them empty
    grammar: str = ""  # that holds beside them

    def to_text(self) -> str:
        return f"{PREFIX}{msgspec.json.encode(self).decode()}}}"


def allowed_bits(token_ids: Sequence[int], vocab_size: int) -> bytes:
    """`TokenRules.allowed_bits` of ids below `vocab_size`."""
    allowed_V = np.zeros(vocab_size, np.bool_)
    allowed_V[np.array(token_ids, np.int64)] = True
    return np.packbits(allowed_V).tobytes()


def spellings(word: str, tokenizer: Tokenizer) -> list[tuple[int, ...]]:
    """How a word that must not be said is spelt: as it begins a text, and as it goes on within one,
    behind a space, where that is one other token in the place of the first. Empty: by no token."""
    bare = word.lstrip()
    first = tuple(tokenizer.encode(bare, add_special_tokens=False))
    if not first:
        return []
    spaced = tuple(tokenizer.encode(f" {bare}", add_special_tokens=False))
    is_other = spaced and spaced[0] != first[0] and len(spaced) == len(first)
    return [first, spaced] if is_other else [first]


class ReadRules:
    """Rules, ready to be asked. Immutable."""

    def __init__(self, rules: TokenRules) -> None:
        self.grammar = rules.grammar
        n_vocab = rules.vocab_size
        if rules.allowed_bits is None:
            self._allowed_V = np.ones(n_vocab, np.bool_)
        else:
            bits = np.unpackbits(np.frombuffer(rules.allowed_bits, np.uint8), count=n_vocab)
            self._allowed_V = bits.view(np.bool_)
        self._has_bad_words = bool(rules.bad_words)
        bare = [word[0] for word in rules.bad_words if len(word) == 1]
        self._bad_ids = np.array(bare, np.int64)
        self._longer: dict[int, list[tuple[int, ...]]] = {}  # by the token before the last
        for word in rules.bad_words:
            if len(word) > 1:
                self._longer.setdefault(word[-2], []).append(word)

    @property
    def follow_outputs(self) -> bool:
        """Whether what may be drawn depends on what was."""
        return bool(self.grammar or self._longer)

    def allowed(self, by_grammar_V: NDArray[np.bool_] | None) -> NDArray[np.bool_]:
        """[V] of what may be drawn but for bad words. All False: the two leave nothing."""
        return self._allowed_V if by_grammar_V is None else self._allowed_V & by_grammar_V

    def without_bad_words(
        self, allowed_V: NDArray[np.bool_], outputs: tuple[int, ...], unless: Sequence[int]
    ) -> NDArray[np.bool_]:
        """The same but for tokens that would end a bad word. Where nothing else is left, or nothing
        but `unless`, which cannot be drawn either, bad words give way."""
        if not self._has_bad_words:
            return allowed_V
        left_V = allowed_V.copy()
        left_V[self._bad_ids] = False
        for word in self._longer.get(outputs[-1], ()) if outputs else ():
            if outputs[1 - len(word) :] == word[:-1]:
                left_V[word[-1]] = False
        others_V = left_V
        if unless:
            others_V = left_V.copy()
            others_V[list(unless)] = False
        return left_V if others_V.any() else allowed_V


@lru_cache(_KEPT_RULES)
def read_rules(text: str) -> ReadRules | None:
    """None: the text is a grammar and nothing else."""
    if not text.startswith(PREFIX):
        return None
    return ReadRules(msgspec.json.decode(text[len(PREFIX) : -1], type=TokenRules))


def follows_outputs(text: str) -> bool:
    """Whether what a request's grammar, or rules, or neither, allow depends on its outputs."""
    rules = read_rules(text)
    return bool(text) if rules is None else rules.follow_outputs
