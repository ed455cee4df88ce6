"""Text that comes in pieces is the text that comes at once, however it is cut."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders

from common.text.detokenize import Detokenizer
from common.text.gguf_tokenizer import gguf_tokenizer
from common.text.stops import StopAutomaton, StopStrings
from common.text.stream import TextStream
from common.text.tokenizer import Tokenizer
from tests.unit.text.llama_cpp import byte_level_metadata, sentencepiece_metadata

BPE_TOKENS: list[str] = byte_level_metadata()["tokenizer.ggml.tokens"]
TOKENIZERS = {
    "byte-level": gguf_tokenizer(byte_level_metadata()),
    "sentencepiece": gguf_tokenizer(sentencepiece_metadata()),
}
every_tokenizer = pytest.mark.parametrize("tokenizer", TOKENIZERS.values(), ids=TOKENIZERS.keys())
# Few letters, so that stop strings are found, overlap, and nearly match.
letters = st.text("ab\N{EURO SIGN}", max_size=40)
stop_lists = st.lists(st.text("ab\N{EURO SIGN}", min_size=1, max_size=5), max_size=4)


def ids_in(tokenizer: Tokenizer) -> st.SearchStrategy[list[int]]:
    """Any ids, bytes that rarely make characters among them."""
    token = st.integers(0, tokenizer.vocab_size - 1)
    return st.lists(st.one_of(token, st.integers(0, 300)), max_size=30)


def detokenized(detokenizer: Detokenizer, ids: Sequence[int]) -> str:
    return "".join(map(detokenizer.push, ids)) + detokenizer.finish()


@every_tokenizer
@given(data=st.data(), skip=st.booleans())
def test_the_pieces_are_the_decoded_whole(
    tokenizer: Tokenizer, data: st.DataObject, *, skip: bool
) -> None:
    ids = data.draw(ids_in(tokenizer))
    detokenizer = Detokenizer(tokenizer, skip_special_tokens=skip)
    whole = tokenizer.decode(ids, skip_special_tokens=skip)
    assert detokenized(detokenizer, ids) == whole


@given(ids=ids_in(TOKENIZERS["byte-level"]))
def test_the_decoded_whole_is_the_librarys(ids: list[int]) -> None:
    text = TOKENIZERS["byte-level"].decode(ids, skip_special_tokens=False)
    assert text == decoders.ByteLevel().decode([BPE_TOKENS[n] for n in ids])


@every_tokenizer
@given(data=st.data())
def test_an_output_continues_its_prompt(tokenizer: Tokenizer, data: st.DataObject) -> None:
    ids = data.draw(ids_in(tokenizer))
    cut = data.draw(st.integers(0, len(ids)))
    prompt = tokenizer.decode(ids[:cut], skip_special_tokens=True)
    whole = tokenizer.decode(ids, skip_special_tokens=True)
    output = detokenized(Detokenizer(tokenizer, prompt_ids=ids[:cut]), ids[cut:])
    if prompt.endswith("\ufffd"):  # a character begun, perhaps, that the output completes
        assert whole.endswith(output)
    else:
        assert whole == prompt + output


@every_tokenizer
@given(
    text=st.text(st.characters(codec="utf-8", exclude_characters="\u2581"), max_size=60)
)  # spells a space
def test_text_survives_but_for_bytes_that_have_no_token(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text, add_special_tokens=False)
    lost = b"\x04\xc0\xc1" if tokenizer is TOKENIZERS["byte-level"] else b""
    kept = text.encode().translate(None, lost).decode("utf-8", "replace")
    assert tokenizer.decode(ids, skip_special_tokens=False) == kept


def naive(text: str, stops: Sequence[str], *, include: bool) -> tuple[str, str | None, int]:
    """The text, what ended it, and how many characters it took to know."""
    for n_read in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:n_read].endswith(stop)]
        if complete:
            stop = max(complete, key=len)
            return text[: n_read - (0 if include else len(stop))], stop, n_read
    return text, None, len(text)


@given(text=letters, stops=stop_lists, cuts=st.lists(st.integers(0, 40)), include=st.booleans())
@settings(max_examples=300)
def test_stop_strings_are_found_where_a_search_of_the_whole_finds_them(
    text: str, stops: list[str], cuts: list[int], *, include: bool
) -> None:
    search = StopStrings(StopAutomaton(stops), include_in_output=include)
    bounds = [0, *sorted(cut for cut in cuts if cut < len(text)), len(text)]
    shown, stopped_on = "", None
    for start, end in pairwise(bounds):
        safe, stopped_on = search.push(text[start:end])
        shown += safe
        if stopped_on is not None:
            break
    expected, stop, _ = naive(text, stops, include=include)
    assert (shown + search.flush(), stopped_on) == (expected, stop)


@given(text=letters, stops=stop_lists, cuts=st.lists(st.integers(0, 120)))
@settings(max_examples=300)
def test_a_stream_of_tokens_shows_and_counts_what_the_whole_would(
    text: str, stops: list[str], cuts: list[int]
) -> None:
    tokenizer = TOKENIZERS["sentencepiece"]
    ids = [3 + value for value in text.encode()]  # a token a byte: characters are split
    stream = TextStream(
        Detokenizer(tokenizer, prompt_ids=[3 + ord("x")]), StopStrings(StopAutomaton(stops))
    )
    bounds = [0, *sorted(cut for cut in cuts if cut < len(ids)), len(ids)]
    deltas = [stream.push(ids[a:b]) for a, b in pairwise(bounds)]
    last = stream.finish()
    expected, stop, n_chars = naive(text, stops, include=False)
    assert "".join(delta.text for delta in [*deltas, last]) == expected
    assert last.stopped_on == stop
    assert stream.n_tokens == sum(d.n_tokens for d in deltas) == len(text[:n_chars].encode())
