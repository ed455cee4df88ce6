from collections.abc import Sequence

from common.text.detokenize import Detokenizer
from common.text.gguf_tokenizer import gguf_tokenizer
from common.text.stops import StopAutomaton, StopStrings
from common.text.stream import TextDelta, TextStream
from tests.unit.text.llama_cpp import byte_level_metadata

TOKENIZER = gguf_tokenizer(byte_level_metadata())


def ids_of(text: str) -> list[int]:
    """One id for every byte."""
    alphabet = {TOKENIZER.bytes_of(n): n for n in range(TOKENIZER.vocab_size)}
    return [alphabet[bytes([value])] for value in text.encode()]


def stream(stops: Sequence[str] = (), *, min_tokens: int = 0, include: bool = False) -> TextStream:
    search = StopStrings(StopAutomaton(stops), include_in_output=include)
    return TextStream(Detokenizer(TOKENIZER), search, min_tokens=min_tokens)


def test_text_and_offsets_of_a_step() -> None:
    s = stream()
    assert s.push(ids_of("ab")) == TextDelta("ab", 2, (0, 1))
    assert s.push(ids_of("\u00e9c")) == TextDelta("\u00e9c", 3, (2, 2, 3))
    assert s.finish() == TextDelta("", 0, ())
    assert s.n_tokens == 5


def test_a_stop_string_ends_the_count_at_the_token_that_completes_it() -> None:
    s = stream(["\nX"])
    assert s.push(ids_of("ab\n")) == TextDelta("ab", 3, (0, 1, 2))
    assert s.push(ids_of("Xcd")) == TextDelta("", 1, (3,), "\nX")
    assert s.n_tokens == 4


def test_tokens_that_ran_ahead_are_not_the_samples() -> None:
    s = stream(["b"])
    assert s.push(ids_of("abc")) == TextDelta("a", 2, (0, 1), "b")
    assert s.push(ids_of("d")) == TextDelta("", 0, (), "b")
    assert s.finish() == TextDelta("", 0, (), "b")
    assert s.n_tokens == 2


def test_what_was_held_back_comes_with_the_end() -> None:
    s = stream(["END"])
    assert s.push(ids_of("xEN")).text == "x"
    assert s.finish() == TextDelta("EN", 0, ())


def test_an_unfinished_character_comes_with_the_end_and_may_even_stop() -> None:
    begun = ids_of("\N{EURO SIGN}")[:2]
    s = stream()
    s.push(begun)
    assert s.finish() == TextDelta("\ufffd", 0, ())
    s = stream(["\ufffd"])
    s.push(begun)
    assert s.finish() == TextDelta("", 0, (), "\ufffd")


def test_a_stop_token_counts_but_is_no_text() -> None:
    s = stream(["ab"])
    assert s.push(ids_of("xab"), last_is_stop_token=True) == TextDelta("x", 3, (0, 1, 2))
    assert s.finish() == TextDelta("a", 0, ())
    assert s.n_tokens == 3


def test_a_stop_string_within_the_least_number_of_tokens_is_text() -> None:
    s = stream(["b"], min_tokens=2)
    assert s.push(ids_of("ab")) == TextDelta("a", 2, (0, 1))
    assert s.push(ids_of("b")) == TextDelta("b", 1, (2,), "b")


def test_a_stop_string_that_is_to_be_shown() -> None:
    s = stream(["bc"], include=True)
    assert s.push(ids_of("abcd")) == TextDelta("abc", 3, (0, 1, 2), "bc")
