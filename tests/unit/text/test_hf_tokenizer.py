"""A directory's tokenizer, held against transformers' own."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import decoders
from transformers import PreTrainedTokenizerFast

from common.errors import SetupError, UnsupportedModel
from common.text.hf_tokenizer import hf_tokenizer, tokenizer_config
from common.text.tokenizer import Tokenizer
from tests.unit.text.hf_directory import (
    byte_level_backend,
    sentencepiece_backend,
    write_directory,
)
from tests.unit.text.llama_cpp import TEXTS

BACKENDS = {"byte-level": byte_level_backend, "sentencepiece": sentencepiece_backend}
NEW = {"content": "<new>", "lstrip": False, "rstrip": True, "single_word": False,
       "normalized": False, "special": False}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "names": {"bos_token": "<s>", "eos_token": "</s>"},
    "no bos": {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": False},
    "bos and eos": {
        "bos_token": "<s>",
        "eos_token": {"content": "</s>", "__type": "AddedToken"},
        "add_bos_token": True,
        "add_eos_token": True,
    },
    "a token more": {"added_tokens_decoder": {"5000": NEW}, "bos_token": "<s>"},
    "special by name": {"extra_special_tokens": ["<user>"], "pad_token": "<pad>"},
    "special by its old name": {"additional_special_tokens": ["<user>"]},
    "special by a name of its own": {"image_token": "<user>"},
}


def load(directory: Path) -> Tokenizer:
    return hf_tokenizer(directory, tokenizer_config(directory))


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())
@pytest.mark.parametrize("backend", BACKENDS.values(), ids=BACKENDS.keys())
def test_ids_and_texts_are_those_of_transformers(
    tmp_path: Path, backend: Callable[[], tokenizers.Tokenizer], config: dict[str, Any]
) -> None:
    write_directory(tmp_path, backend(), tokenizer_config=config)
    ours, theirs = load(tmp_path), PreTrainedTokenizerFast.from_pretrained(tmp_path)
    for text in [*TEXTS, "a <new>  b <user> c", "<pad></s><s>"]:
        for add in (False, True):
            ids = ours.encode(text, add_special_tokens=add)
            assert ids == theirs.encode(text, add_special_tokens=add), text
            for skip in (False, True):
                expected = theirs.decode(ids, skip_special_tokens=skip)
                assert ours.decode(ids, skip_special_tokens=skip) == expected
    assert ours.vocab_size == len(theirs)


def test_what_templates_know_is_what_transformers_tells_them(tmp_path: Path) -> None:
    config = CONFIGS["bos and eos"] | {"image_token": "<user>", "pad_token": None}
    write_directory(tmp_path, byte_level_backend(), tokenizer_config=config)
    theirs = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    assert load(tmp_path).vocabulary.special_tokens == theirs.special_tokens_map


def test_an_older_directory_names_its_special_tokens_elsewhere(tmp_path: Path) -> None:
    names = {"bos_token": {"content": "<s>"}, "eos_token": "</s>"}
    write_directory(tmp_path, byte_level_backend(), special_tokens_map=names)
    tokenizer = load(tmp_path)
    assert tokenizer.vocabulary.special_tokens == {"bos_token": "<s>", "eos_token": "</s>"}
    eos = tokenizer.special_token_id("eos_token")
    assert tokenizer.encode("</s>", add_special_tokens=False) == [eos]
    assert tokenizer.special_token_id("pad_token") is None


def test_truncation_and_padding_in_the_file_are_not_applied(tmp_path: Path) -> None:
    backend = byte_level_backend()
    backend.enable_truncation(4)
    backend.enable_padding(length=64)
    tokenizer = load(write_directory(tmp_path, backend))
    text = "far more than four tokens"
    ids = tokenizer.encode(text, add_special_tokens=True)
    assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert 4 < len(ids) < 64


def test_an_added_token_may_hold_any_letter(tmp_path: Path) -> None:
    """The `tokenizers` library reads such a letter as a byte, and shows U+FFFD."""
    backend = byte_level_backend()
    backend.add_tokens(["caf\u00e9"])
    tokenizer = load(write_directory(tmp_path, backend))
    ids = tokenizer.encode("a caf\u00e9", add_special_tokens=False)
    assert tokenizer.decode(ids, skip_special_tokens=True) == "a caf\u00e9"


def test_a_directory_without_tokenizer_json_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"has no tokenizer\.json; save"):
        load(tmp_path)


@pytest.mark.parametrize("content", ["{", "[]", json.dumps({"model": {"type": "Nothing"}})])
def test_a_broken_file_is_refused_by_name(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(SetupError, match=r"tokenizer\.json: "):
        load(tmp_path)


@pytest.mark.parametrize("decoder", [decoders.WordPiece(), decoders.Metaspace(), None])
def test_a_decoder_of_another_kind_is_refused(
    tmp_path: Path, decoder: decoders.Decoder | None
) -> None:
    backend: tokenizers.Tokenizer = byte_level_backend()
    backend.decoder = decoder
    with pytest.raises(UnsupportedModel, match="supported are ByteLevel"):
        load(write_directory(tmp_path, backend))
