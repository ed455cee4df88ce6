import hashlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from common.errors import ClientError, UnsupportedModel
from common.text.gguf_tokenizer import gguf_tokenizer
from common.text.load import TextModel
from common.text.pre_types import pre_type
from common.text.tokenizer import Tokenizer, check_prompt_ids
from tests.unit.text.llama_cpp import (
    LLAMA_CPP,
    TEXTS,
    byte_level_metadata,
    sentencepiece_metadata,
)

GPL3 = Path("/usr/share/common-licenses/GPL-3")


def encoded(tokenizer: Tokenizer) -> list[list[int]]:
    return [tokenizer.encode(text, add_special_tokens=True) for text in TEXTS]


def test_the_default_model_has_llama_cpps_ids(smollm2: TextModel) -> None:
    assert encoded(smollm2.tokenizer) == LLAMA_CPP["expected_smollm2"]


def test_the_default_model_splits_digits_in_a_long_text(smollm2: TextModel) -> None:
    expected = LLAMA_CPP["gpl3_smollm2"]
    if (
        not GPL3.is_file()
        or hashlib.sha256(GPL3.read_bytes()).hexdigest() != expected["text_sha256"]
    ):
        pytest.skip("this machine has no GPL-3 text, or another edition of it")
    ids = smollm2.tokenizer.encode(GPL3.read_text("utf-8"), add_special_tokens=True)
    assert len(ids) == expected["n"] == 7639
    assert hashlib.sha256(" ".join(map(str, ids)).encode()).hexdigest() == expected["sha256"]


@pytest.mark.parametrize("pre", LLAMA_CPP["expected_bpe"])
def test_every_pre_tokenizer_has_llama_cpps_ids(pre: str) -> None:
    tokenizer = gguf_tokenizer(byte_level_metadata(pre=pre))
    assert encoded(tokenizer) == LLAMA_CPP["expected_bpe"][pre]


def test_no_two_pre_tokenizers_agree_on_the_texts() -> None:
    assert len({str(ids) for ids in LLAMA_CPP["expected_bpe"].values()}) == 10


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("llama3", "llama-bpe"),
        ("deepseek-r1-qwen", "qwen2"),
        ("phi-2", "gpt-2"),
        ("refact", "smollm"),
    ],
)
def test_other_names_of_a_pre_tokenizer(alias: str, name: str) -> None:
    assert pre_type(alias) == pre_type(name)


def test_sentencepiece_has_llama_cpps_ids() -> None:
    assert encoded(gguf_tokenizer(sentencepiece_metadata())) == LLAMA_CPP["expected_sentencepiece"]


def test_sentencepiece_without_a_space_before_the_text() -> None:
    with_space = gguf_tokenizer(sentencepiece_metadata())
    without = gguf_tokenizer(sentencepiece_metadata(add_space_prefix=False))
    ids = without.encode(" the end", add_special_tokens=False)
    assert with_space.encode("the end", add_special_tokens=False) == ids
    assert without.decode(ids, skip_special_tokens=True) == " the end"
    assert with_space.decode(ids, skip_special_tokens=True) == "the end"
    assert with_space.decode(ids, skip_special_tokens=True, continues_text=True) == " the end"


def test_a_special_token_in_the_text_is_that_token(smollm2: TextModel) -> None:
    ids = smollm2.tokenizer.encode("a<|im_end|>b", add_special_tokens=False)
    assert ids.count(2) == 1
    assert smollm2.tokenizer.decode(ids, skip_special_tokens=True) == "ab"
    assert smollm2.tokenizer.decode(ids, skip_special_tokens=False) == "a<|im_end|>b"


@pytest.mark.parametrize("bos", [False, True])
@pytest.mark.parametrize("eos", [False, True])
def test_bos_and_eos_are_added_where_the_file_says_so(*, bos: bool, eos: bool) -> None:
    metadata = byte_level_metadata(pre="llama-bpe", add_bos_token=bos, add_eos_token=eos)
    tokenizer = gguf_tokenizer(metadata)
    bare = tokenizer.encode("the", add_special_tokens=False)
    first = [metadata["tokenizer.ggml.bos_token_id"]] * bos
    last = [metadata["tokenizer.ggml.eos_token_id"]] * eos
    assert tokenizer.encode("the", add_special_tokens=True) == first + bare + last


def test_what_tokens_stand_for() -> None:
    spm = gguf_tokenizer(sentencepiece_metadata())
    assert spm.bytes_of(3 + 0x0A) == b"\n"
    assert spm.bytes_of(1) == b"<s>"
    bpe = gguf_tokenizer(byte_level_metadata())
    ids = bpe.encode("\N{EURO SIGN}", add_special_tokens=False)
    assert b"".join(map(bpe.bytes_of, ids)) == "\N{EURO SIGN}".encode()
    assert bpe.text_of(ids[0]) == "\N{REPLACEMENT CHARACTER}"
    assert bpe.bytes_of(bpe.vocab_size) == b""  # a row of the model without a token
    with pytest.raises(ValueError, match="-1 is negative"):
        bpe.bytes_of(-1)


def test_an_unused_token_is_no_text() -> None:
    metadata = byte_level_metadata()
    types = list(metadata["tokenizer.ggml.token_type"])
    types[300] = 5
    tokenizer = gguf_tokenizer(metadata | {"tokenizer.ggml.token_type": types})
    assert tokenizer.bytes_of(300) == b""


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pre": "kimi-k2"}, "'kimi-k2'; supported are .*llama-bpe.*qwen2.*smollm"),
        ({"model": "bert"}, "'bert'; supported are gpt2, llama"),
        ({"tokens": ["a", "b", "a"]}, "1 tokens are listed twice"),
        ({"merges": ["a zz\u0120"]}, "merge 'a zz\u0120' is not of known tokens"),
        ({"merges": None}, "merges is missing; expected list"),
        ({"token_type": [1]}, "1 token types"),
        ({"bos_token_id": 10**6, "add_bos_token": True}, "bos is to be added, but names no token"),
    ],
)
def test_what_cannot_be_right_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        gguf_tokenizer(byte_level_metadata(**changes))


def test_text_that_is_not_unicode_is_the_clients_error(smollm2: TextModel) -> None:
    with pytest.raises(ClientError, match="not valid Unicode"):
        smollm2.tokenizer.encode("a\ud800", add_special_tokens=False)


def test_prompt_ids_must_be_rows_of_the_model() -> None:
    check_prompt_ids([], vocab_size=10)
    check_prompt_ids([0, 9], vocab_size=10)
    with pytest.raises(ClientError, match=r"id 10 at position 1 .* 0 to 9") as caught:
        check_prompt_ids([0, 10], vocab_size=10)
    assert caught.value.param == "prompt"
    with pytest.raises(ClientError, match="id -1 at position 0"):
        check_prompt_ids([-1], vocab_size=10)


def test_no_text_has_fewer_tokens_than_said(smollm2: TextModel) -> None:
    tokenizer = smollm2.tokenizer
    for text in [*TEXTS, "-" * 1000, " " * 1000]:
        n_tokens = len(tokenizer.encode(text, add_special_tokens=False))
        assert tokenizer.fewest_tokens(text) <= n_tokens
    assert tokenizer.fewest_tokens("x" * 100_000) > 500


def test_threads_may_share_a_tokenizer(smollm2: TextModel) -> None:
    with ThreadPoolExecutor(4) as pool:
        encode = smollm2.tokenizer.encode
        ids = list(pool.map(lambda text: encode(text, add_special_tokens=True), TEXTS * 20))
    assert ids == LLAMA_CPP["expected_smollm2"] * 20
