"""docs/api.md is what the types say today."""

from pathlib import Path

from launch.gateway.api.decoding import INSTEAD
from launch.gateway.api.docs import POSTS
from launch.gateway.api.reference import reference

FILE = Path(__file__).resolve().parents[4] / "docs" / "api.md"


def test_the_page_is_current() -> None:
    assert FILE.read_text() == reference(), (
        "write it anew: python -m launch.gateway.api.reference > docs/api.md"
    )


def test_it_tells_types_bounds_and_defaults() -> None:
    lines = reference().splitlines()
    for row in (
        "| `n` | integer from 1 to 128 | answers to each prompt; 1024 choices in all, at most "
        "[1] |",
        "| `top_p` | number over 0 to 1 | draw among the likeliest tokens that make up this share "
        "[1] |",
        "| `stop` | string (at least 1, at most 1000 characters) or list of string (at least 1, at "
        "most 1000 characters) (at most 16 items) | texts that end an answer |",
        "| `ignore_eos` | boolean | the model's end tokens do not end an answer [false] |",
        "| `slo` | [SloBody](#slobody) | what the answer is owed |",
        '| `suffix` | this model cannot infill | `""` |',
        '| `modalities` | answers are text | `null`, `["text"]` |',
    ):
        assert row in lines
    assert any(line.startswith("Accepted, though they change nothing: `user`") for line in lines)


def test_it_leaves_out_no_endpoint_and_no_refusal() -> None:
    text = reference()
    assert all(f"## POST {path}\n" in text for path in POSTS)
    assert all(f"| `{name}` | {why} |\n" in text for name, why in INSTEAD.items())
