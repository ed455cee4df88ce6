"""Grammars that answers are held to: which tokens may come next. Over `llguidance`.

A grammar is a text that travels with a request's parameters, made by one of the `of_...` functions.
Which tokens it allows is a function of it and of the outputs so far; a `Matcher` only saves reading
these anew for each token. Must hold no request.
"""

import json
from collections.abc import Sequence
from typing import Any

import llguidance
import llguidance.numpy
import numpy as np
from llguidance import LLMatcher, LLTokenizer
from numpy.typing import NDArray

from common.errors import ClientError
from common.text.load import TextModel

Schema = dict[str, Any] | bool
"""JSON schema."""


def of_json_schema(schema: Schema) -> str:
    """Of the JSON texts that a schema allows, on one line: small models that may write any white
    space write nothing else."""
    return LLMatcher.grammar_from_json_schema(
        json.dumps(schema),
        defaults={"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "},
    )


def of_regex(pattern: str) -> str:
    """Of the texts that a regular expression (Rust's) matches as a whole."""
    return LLMatcher.grammar_from_regex(pattern)


def of_choice(choices: Sequence[str]) -> str:
    """Of these texts alone."""
    return LLMatcher.grammar_from_lark("start: " + " | ".join(map(json.dumps, choices)))


def of_ebnf(grammar: str) -> str:
    """Of a grammar in Lark's form, or in GBNF (`root ::= ...`)."""
    return llguidance.grammar_from("grammar", grammar)


class GrammarTokenizer:
    """A model's tokens as `llguidance` wants them. Immutable; takes 0.3 s to make."""

    def __init__(self, model: TextModel) -> None:
        self.vocab_size = model.vocab_size
        vocabulary = model.tokenizer.vocabulary
        known = len(vocabulary.token_bytes)
        self.tokens = [*vocabulary.token_bytes, *[b""] * (self.vocab_size - known)]
        self.special_token_ids = sorted(vocabulary.special_ids)
        self.bos_token_id = None
        self.end_token_ids = sorted(model.end_token_ids)
        self.eos_token_id = self.end_token_ids[0] if self.end_token_ids else 0
        self._encode = model.tokenizer.encode
        self._tokenizer = LLTokenizer(
            llguidance.TokenizerWrapper(self),
            n_vocab=self.vocab_size,
            eos_token=self.end_token_ids or None,
        )

    def __call__(self, text: str | bytes) -> list[int]:
        """How the model writes a text that a grammar leaves no choice about."""
        if isinstance(text, bytes):
            text = text.decode()
        return self._encode(text, add_special_tokens=False)

    def check(self, grammar: str, *, param: str) -> None:
        """Raises ClientError where it is none, or one that is too large to be followed."""
        failed, why = LLMatcher.validate_grammar_with_warnings(grammar, self._tokenizer)
        if failed:
            reason = " ".join(why).strip().splitlines()[0] if why else "it is not valid"
            raise ClientError(f"{param} cannot be followed: {reason}", param=param)

    def matcher(self, grammar: str) -> "Matcher":
        return Matcher(LLMatcher(self._tokenizer, grammar), self.vocab_size, self.end_token_ids)


class Matcher:
    """How far one answer is in its grammar. Belongs to one thread."""

    def __init__(self, matcher: LLMatcher, vocab_size: int, end_token_ids: Sequence[int]) -> None:
        self._matcher = matcher
        self._bits = llguidance.numpy.allocate_token_bitmask(1, vocab_size)
        self._vocab_size = vocab_size
        self._end_token_ids = end_token_ids
        self._read: tuple[int, ...] = ()

    def allowed(self, outputs: tuple[int, ...]) -> NDArray[np.bool_] | None:
        """[V] of what may follow `outputs`; None: they are not a continuation of those before.

        Where the answer is complete, or the grammar has become too complex, only ends are.
        """
        n_read = len(self._read)
        if outputs[:n_read] != self._read:
            return None
        if n_read < len(outputs) and not self._is_over():
            self._matcher.consume_tokens(list(outputs[n_read:]))
        self._read = outputs
        if self._is_over():
            return self._ends()
        llguidance.numpy.fill_next_token_bitmask(self._matcher, self._bits)
        if self._is_over():
            return self._ends()
        bits = np.unpackbits(self._bits[0].view(np.uint8), bitorder="little")
        return bits[: self._vocab_size].view(np.bool_)

    def _is_over(self) -> bool:
        return self._matcher.is_error() or self._matcher.is_stopped()

    def _ends(self) -> NDArray[np.bool_]:
        allowed_V = np.zeros(self._vocab_size, np.bool_)
        allowed_V[list(self._end_token_ids)] = True
        return allowed_V
