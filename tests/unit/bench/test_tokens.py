from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from bench.client import CountedBy, Outcome
from bench.tokens import FileTokenizer, count_again


@pytest.fixture
def file(tmp_path: Path) -> Path:
    tokenizer = Tokenizer(WordLevel({"one": 0, "two": 1, "three": 2, "?": 3}, unk_token="?"))
    tokenizer.pre_tokenizer = Whitespace()
    path = tmp_path / "tokenizer.json"
    tokenizer.save(str(path))
    return path


def answer(counted_by: CountedBy, text: str, n_out: int) -> Outcome:
    return Outcome(
        index=0, scheduled_s=0, sent_s=0, text=text, counted_by=counted_by, output_tokens=n_out
    )


def test_a_tokenizer_is_a_file_or_its_directory(file: Path) -> None:
    for place in (file, file.parent):
        tokenizer = FileTokenizer(str(place))
        assert tokenizer.encode("two one") == [1, 0]
        assert tokenizer.decode([2, 0]) == "three one"


def test_no_tokenizer_there_is_said(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match="--tokenizer"):
        FileTokenizer(str(tmp_path))


def test_only_what_the_server_did_not_count_is_counted_again(file: Path) -> None:
    outcomes = [
        answer("chunks", "one two three", 1),
        answer("usage", "one two", 7),
        answer("chunks", "", 0),
    ]
    count_again(outcomes, FileTokenizer(str(file)))
    assert [(o.output_tokens, o.counted_by) for o in outcomes] == [
        (3, "tokenizer"),
        (7, "usage"),
        (0, "chunks"),
    ]
