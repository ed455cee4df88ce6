"""Grammars that answers are held to: which tokens may come next. Over `llguidance`.

A grammar is a text that travels with a request's parameters, made by one of the `of_...` functions.
Which tokens it allows is a function of it and of the outputs so far; a `Matcher` only saves reading
these anew for each token. Must hold no request.
"""

import json
import re
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from threading import Lock, Thread
from typing import Any, TypeVar

import llguidance
import llguidance.numpy
import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from llguidance.gbnf_to_lark import gbnf_to_lark
from numpy.typing import NDArray

from common.errors import ClientError, SetupError
from common.text.digits import JsonDigits, begins_with_digit
from common.text.load import TextModel
from common.text.schemas import closed
from common.text.token_rules import PREFIX

_Result = TypeVar("_Result")
Schema = dict[str, Any] | bool
"""JSON schema."""

MAX_GBNF_CHARS = 2**14  # it is read in Python, in time that grows with rules times length
MAX_GBNF_RULES = 512
_MAX_REASON_CHARS = 500
MAX_GRAMMAR_CHARS = 2**17
_STACK_BYTES = 2**29  # `llguidance` recurses, up to once for every few characters: 16 kB each time
_stack_bytes = Lock()
_TRIED_TOKENS = 4  # of an answer, before a grammar is taken
MAX_TRIED_S = 1.0  # of computing; a worker's pass would wait nearly as long
_LARK = re.compile(r"^[^\S\n]*(?:%llguidance\b|start\s*:(?!:=))", re.MULTILINE)
LIMITS = LLParserLimits(  # a token's mask holds up all of a pass: tenths of a second at most
    initial_lexer_fuel=100_000,
    step_lexer_fuel=50_000,
    max_lexer_states=100_000,  # 1 to 2 kB each
    verbose_errors=False,
)


_OF_JSON = '{"grammars":[{"name":"json_schema"'  # what `of_json_schema` gives begins so
_MAY_BE_EMPTY = (
    '{"grammars":[{"name":"regex"',
    "start: CHOICE\n",
)  # of `of_regex` and `of_choice`: as it was asked


def of_json_schema(schema: Schema, *, param: str | None = None) -> str:
    """Of the JSON texts that a schema allows, on one line: small models that may write any white
    space write nothing else, and with no endless numbers (`JsonDigits`). Raises ClientError, of
    `param`, where it cannot be read."""
    if isinstance(schema, bool):
        schema = {} if schema else {"enum": []}
    try:
        n_chars = len(json.dumps(schema, ensure_ascii=False, separators=(",", ":")))
        if n_chars > MAX_GRAMMAR_CHARS:  # before it is read, in time that grows with its square
            raise ClientError(
                f"{param or 'the schema'} has {n_chars} characters; at most {MAX_GRAMMAR_CHARS}",
                param=param,
            )
        return LLMatcher.grammar_from_json_schema(
            json.dumps(closed(schema)),
            defaults={"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "},
        )
    except (ValueError, RecursionError) as error:
        reason = str(error).partition(" at line ")[0]
        raise ClientError(f"the schema cannot be read: {reason}", param=param) from error


def of_regex(pattern: str) -> str:
    """Of the texts that a regular expression (Rust's) matches as a whole."""
    return LLMatcher.grammar_from_regex(pattern)


def of_choice(choices: Sequence[str]) -> str:
    """Of these texts alone. As one lexeme: of alternatives of the parser there may be few."""
    texts = " | ".join(map(json.dumps, choices))
    return LLMatcher.grammar_from_lark(f"start: CHOICE\nCHOICE: {texts}")


def of_ebnf(grammar: str) -> str:
    """Of a grammar in Lark's form, or in GBNF (`root ::= ...`). Raises ValueError."""
    if grammar.startswith(PREFIX):
        raise ValueError("it is neither in Lark's form nor GBNF")
    if _LARK.search(grammar):
        return LLMatcher.grammar_from_lark(grammar)
    n_chars, n_rules = len(grammar), grammar.count("::=")
    if n_chars > MAX_GBNF_CHARS or n_rules > MAX_GBNF_RULES:
        raise ValueError(
            f"as GBNF it has {n_chars} characters and {n_rules} rules; at most {MAX_GBNF_CHARS} "
            f"and {MAX_GBNF_RULES}"
        )
    try:
        return LLMatcher.grammar_from_lark(gbnf_to_lark(grammar))
    except Exception as error:  # it raises no type of its own
        raise ValueError(
            f"it is no GBNF, and Lark's form has a rule named start: {error}"
        ) from error


class Panic(RuntimeError):
    """A bug of the library's met a grammar."""


class GrammarTokenizer:
    """A model's tokens as `llguidance` wants them. Immutable; takes 0.3 s to make."""

    def __init__(self, model: TextModel) -> None:
        self.vocab_size = model.vocab_size
        vocabulary = model.tokenizer.vocabulary
        known = len(vocabulary.token_bytes)
        self.tokens = [*vocabulary.token_bytes, *[b""] * (self.vocab_size - known)]
        self._special = vocabulary.special_ids
        self.special_token_ids = sorted(self._special)
        self.bos_token_id = None
        self.end_token_ids = sorted(model.end_token_ids)
        self.digits_V = np.array([begins_with_digit(token) for token in self.tokens])
        self.eos_token_id = self.end_token_ids[0] if self.end_token_ids else 0
        self._encode = model.tokenizer.encode
        self._greedy: Callable[[str], list[int]] | None = None  # while the next is made
        self._tokenizer = LLTokenizer(
            llguidance.TokenizerWrapper(self),
            n_vocab=self.vocab_size,
            eos_token=self.end_token_ids or None,
        )
        self._greedy = self._tokenizer.greedy_tokenize

    def __call__(self, text: str | bytes) -> list[int]:
        """How the model writes a text that a grammar leaves no choice about."""
        if isinstance(text, bytes):
            text = text.decode()
        ids = self._encode(text, add_special_tokens=False)
        spelt = b"".join(self.tokens[token] for token in ids) == text.encode()
        if (spelt and self._special.isdisjoint(ids)) or self._greedy is None:
            return ids
        return self._greedy(text)  # text is never a special token, nor more

    def check(self, grammar: str, *, param: str) -> None:
        """Raises ClientError where it is none, where it allows nothing, and where it is too large
        to be followed, as far as an answer's first tokens tell. May take a second."""
        if not self.end_token_ids:
            raise ClientError(f"{param}: this model has no token that ends an answer", param=param)
        try:
            reason = _with_room(lambda: self._failure(grammar))
        except Panic as panic:
            reason = str(panic)
        if reason is not None:
            raise ClientError(f"{param} cannot be followed: {_in_a_line(reason)}", param=param)

    def _failure(self, grammar: str) -> str | None:
        """Why an answer comes to no end as it should; None: it begins well."""
        began = time.thread_time()
        failed, why = LLMatcher.validate_grammar_with_warnings(
            grammar, self._tokenizer, limits=LIMITS
        )
        if failed:
            return " ".join(why)
        matcher, outputs = self._matcher(grammar), ()
        for _ in range(_TRIED_TOKENS):
            may_V = matcher.allowed(outputs)
            if matcher.failure is not None or may_V is None:
                return matcher.failure
            may_V[self.end_token_ids] = False
            if not may_V.any():
                if not outputs and not grammar.startswith(_MAY_BE_EMPTY):
                    return "it allows nothing but an empty answer"
                break
            outputs += (int(may_V.argmax()),)
        return "it takes too long" if time.thread_time() - began > MAX_TRIED_S else None

    def ends(self) -> NDArray[np.bool_]:
        """[V]: an answer may end, and no more."""
        allowed_V = np.zeros(self.vocab_size, np.bool_)
        allowed_V[self.end_token_ids] = True
        return allowed_V

    def matcher(self, grammar: str) -> "Matcher":
        return _with_room(lambda: self._matcher(grammar))

    def _matcher(self, grammar: str) -> "Matcher":
        matcher = LLMatcher(self._tokenizer, grammar, log_level=0, limits=LIMITS)
        return Matcher(matcher, self, JsonDigits() if grammar.startswith(_OF_JSON) else None)


class Grammars:
    """A model's `GrammarTokenizer`: made once, when told to, else when first wanted. Any thread."""

    def __init__(self, load: Callable[[], GrammarTokenizer]) -> None:
        self._load = load
        self._loading = Lock()  # of what comes next
        self._tokenizer: GrammarTokenizer | None = None

    def prepare(self) -> None:
        """Begin to make it: nobody is to wait for it later, and it holds the GIL for 0.2 s."""
        Thread(target=self._prepare, name="grammars").start()

    def _prepare(self) -> None:
        with suppress(SetupError):  # told to whoever wants it
            self.tokenizer()

    def tokenizer(self) -> GrammarTokenizer:
        """Raises what `load` does."""
        with self._loading:
            if self._tokenizer is None:
                self._tokenizer = self._load()
            return self._tokenizer


class Matcher:
    """How far one answer is in its grammar. Belongs to one thread."""

    def __init__(
        self, matcher: LLMatcher, tokenizer: GrammarTokenizer, digits: JsonDigits | None
    ) -> None:
        self._matcher: LLMatcher | None = matcher  # None: the answer is over
        self._bits = llguidance.numpy.allocate_token_bitmask(1, tokenizer.vocab_size)
        self._tokenizer = tokenizer
        self._digits = digits  # None: no JSON
        self._read: tuple[int, ...] = ()
        self.failure: str | None = None  # why the grammar can be followed no further

    def copy(self) -> "Matcher":
        """As far as this one is, at no cost. What they learn of the grammar they share, until it is
        as much as `llguidance` allows: then either may fail where a new one would not."""
        assert self._matcher is not None, "the answer is over"
        digits = None if self._digits is None else self._digits.copy()
        copied = Matcher(self._matcher.deep_copy(), self._tokenizer, digits)
        copied._read = self._read
        return copied

    def allowed(self, outputs: tuple[int, ...]) -> NDArray[np.bool_] | None:
        """[V] of what may follow `outputs`; None: they are not a continuation of those before.

        Where the answer is complete, or the grammar has become too complex, only ends are.
        """
        n_read = len(self._read)
        if outputs[:n_read] != self._read:
            return None
        self._read = outputs
        if self._digits is not None:
            self._digits.push(b"".join(self._tokenizer.tokens[t] for t in outputs[n_read:]))
        matcher = self._matcher
        if matcher is not None and n_read < len(outputs):
            matcher.consume_tokens(list(outputs[n_read:]))
        if matcher is None or self._is_over(matcher):
            return self._tokenizer.ends()
        llguidance.numpy.fill_next_token_bitmask(matcher, self._bits)
        if self._is_over(matcher):
            return self._tokenizer.ends()
        bits = np.unpackbits(self._bits[0].view(np.uint8), bitorder="little")
        return self._without_more_digits(bits[: self._tokenizer.vocab_size].view(np.bool_))

    def _without_more_digits(self, allowed_V: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Where there are enough, and something else may come."""
        if self._digits is None or not self._digits.enough:
            return allowed_V
        other_V = allowed_V & ~self._tokenizer.digits_V
        return other_V if other_V.any() else allowed_V

    def _is_over(self, matcher: LLMatcher) -> bool:
        """If so, it is kept no longer: it may have grown large."""
        if matcher.is_error():
            self.failure = _reason(matcher)
        elif not matcher.is_stopped():
            return False
        self._matcher = None
        return True


def _with_room(work: Callable[[], _Result]) -> _Result:
    """Its result, computed in a thread whose stack is large: to overflow it ends the process."""
    result = Future[_Result]()

    def run() -> None:
        try:
            result.set_result(work())
        except Exception as error:  # noqa: BLE001 - of whoever waits
            result.set_exception(error)
        except BaseException as error:  # noqa: BLE001 - a panic is no Exception, and ends its thread
            result.set_exception(Panic(str(error)))

    with _stack_bytes:
        before = threading.stack_size(_STACK_BYTES)
        try:
            Thread(target=run, name="grammar").start()
        finally:
            threading.stack_size(before)
    return result.result()


def _reason(matcher: LLMatcher) -> str:
    error = matcher.get_error()
    return "it allows nothing" if error.startswith("NoExtension") else error


def _in_a_line(reason: str) -> str:
    """What is wrong, and where: of what a regular expression's parser says, the cause comes last,
    below a drawing."""
    first, *more = reason.strip().splitlines() or ["it is not valid"]
    causes = [text.removeprefix("error: ") for text in more if text.startswith("error: ")]
    cause = f" {causes[-1]}"[:_MAX_REASON_CHARS] if causes else ""
    return first[: _MAX_REASON_CHARS - len(cause)] + cause
