from collections.abc import Sequence

import pytest

from common.text.detokenize import Detokenizer
from common.text.gguf_tokenizer import gguf_tokenizer
from common.text.tokenizer import Tokenizer
from tests.unit.text.llama_cpp import byte_level_metadata, sentencepiece_metadata

BPE = gguf_tokenizer(byte_level_metadata())
SPM = gguf_tokenizer(sentencepiece_metadata())
EMOJI = "\N{ROCKET}"
BAD = "\N{REPLACEMENT CHARACTER}"


def id_of(tokenizer: Tokenizer, text: str) -> int:
    [token_id] = tokenizer.encode(text, add_special_tokens=False)
    return token_id


def byte_id(value: int) -> int:
    """SentencePiece's token for one byte."""
    return 3 + value


def deltas(
    tokenizer: Tokenizer, ids: Sequence[int], *, skip: bool = True, prompt_ids: Sequence[int] = ()
) -> list[str]:
    detokenizer = Detokenizer(tokenizer, skip_special_tokens=skip, prompt_ids=prompt_ids)
    return [*map(detokenizer.push, ids), detokenizer.finish()]


@pytest.mark.parametrize("tokenizer", [BPE, SPM], ids=["byte-level", "sentencepiece"])
def test_a_character_comes_with_the_token_that_completes_it(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(f"a{EMOJI}", add_special_tokens=False)
    parts = deltas(tokenizer, ids)
    assert len(ids) > 2
    assert "".join(parts[:-2]) == "a"
    assert parts[-2:] == [EMOJI, ""]  # with the last token; nothing is left for the end


def test_a_character_cut_short_becomes_one_replacement_at_the_end() -> None:
    begun = [byte_id(value) for value in EMOJI.encode()[:3]]
    assert deltas(SPM, begun) == ["", "", "", BAD]


def test_bytes_that_no_token_can_complete_are_replaced_at_once() -> None:
    ids = [byte_id(0xF0), byte_id(0x9F), byte_id(ord("x")), byte_id(0xFF), byte_id(ord("y"))]
    assert deltas(SPM, ids) == ["", "", f"{BAD}x", BAD, "y", ""]


def test_a_hidden_token_does_not_break_a_character() -> None:
    first, *rest = [byte_id(value) for value in EMOJI.encode()]
    ids = [first, SPM.special_token_id("eos_token") or 0, *rest]
    assert deltas(SPM, ids) == ["", "", "", "", EMOJI, ""]
    assert "".join(deltas(SPM, ids, skip=False)) == f"{BAD}</s>{BAD * 3}"


def test_only_a_text_that_begins_here_loses_the_space_that_encoding_adds() -> None:
    ids = [id_of(SPM, "the"), id_of(SPM, "the")]
    assert deltas(SPM, ids) == ["the", " the", ""]
    assert deltas(SPM, ids, prompt_ids=ids) == [" the", " the", ""]


def test_a_prompt_of_special_tokens_alone_is_no_text_before() -> None:
    bos = SPM.special_token_id("bos_token") or 0
    the = id_of(SPM, "the")
    assert deltas(SPM, [the], prompt_ids=[bos]) == ["the", ""]
    assert deltas(SPM, [the], prompt_ids=[bos], skip=False) == [" the", ""]


@pytest.mark.parametrize("n_bytes", [1, 2, 3])
def test_a_character_that_the_prompt_began_is_completed(n_bytes: int) -> None:
    ids = [byte_id(value) for value in EMOJI.encode()]
    prompt_ids = [byte_id(ord("a")), *ids[:n_bytes]]
    parts = deltas(SPM, ids[n_bytes:], prompt_ids=prompt_ids)
    assert parts[-2:] == [EMOJI, ""]
    assert "".join(parts) == EMOJI


def test_a_prompt_that_ends_in_whole_or_broken_characters_leaves_nothing_behind() -> None:
    for tail in (EMOJI.encode(), b"\xff", b"\x80\x80", b"a"):
        prompt_ids = [byte_id(value) for value in tail]
        assert deltas(SPM, [byte_id(ord("b"))], prompt_ids=prompt_ids) == ["b", ""]


def test_a_row_of_the_model_without_a_token_is_no_text() -> None:
    assert deltas(BPE, [id_of(BPE, "a"), BPE.vocab_size + 7]) == ["a", "", ""]
