import argparse
import json
from pathlib import Path

import numpy as np
import pytest

from bench import workloads
from bench.client import Request


class Characters:
    """A tokenizer: a token is a character."""

    def encode(self, text: str) -> list[int]:
        return [ord(c) for c in text]

    def decode(self, ids: list[int]) -> str:
        return "".join(map(chr, ids))


class Pieces(Characters):
    """Some ids stand for two characters, which come back as two ids."""

    def decode(self, ids: list[int]) -> str:
        return "".join(chr(token) if token < 20_000 else 2 * chr(token - 15_000) for token in ids)


def options(*argv: str, prompt_form: str = "ids") -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    workloads.add_flags(parser)
    return parser.parse_args([*argv, "--prompt-form", prompt_form])


def load(*argv: str, seed: int = 0, text: bool = False) -> list[Request]:
    told = options(*argv, prompt_form="text" if text else "ids")
    rng = np.random.default_rng(seed)
    return workloads.load(told.dataset_name, told, rng, Characters() if text else None)


def ids(request: Request) -> list[int]:
    assert isinstance(request.prompt, list)
    return request.prompt


def shared(a: Request, b: Request) -> int:
    """Tokens that both begin with."""
    pairs = zip(ids(a), ids(b), strict=False)
    return next((n for n, (x, y) in enumerate(pairs) if x != y), min(len(ids(a)), len(ids(b))))


def test_random_prompts_have_their_lengths_and_share_nothing() -> None:
    requests = load("--num-prompts", "20", "--random-input-len", "50", "--random-output-len", "7")
    assert [(len(ids(r)), r.prompt_tokens, r.max_tokens) for r in requests] == [(50, 50, 7)] * 20
    assert shared(*requests[:2]) < 5
    assert all(1000 <= token < 30_000 for r in requests for token in ids(r))


def test_the_seed_decides() -> None:
    assert load("--num-prompts", "3", seed=1) == load("--num-prompts", "3", seed=1)
    assert load("--num-prompts", "3", seed=1) != load("--num-prompts", "3", seed=2)


def test_random_lengths_are_uniform_in_their_range() -> None:
    requests = load(
        *("--num-prompts", "2000", "--input-len", "10", "--output-len", "20"),
        *("--random-range-ratio", "0.25"),
    )
    assert {len(ids(r)) for r in requests} == set(range(7, 14))
    assert {r.max_tokens for r in requests} == set(range(15, 26))
    counts = np.bincount([len(ids(r)) for r in requests])[7:]
    assert counts.min() > 0.8 * counts.max()


def test_a_random_prefix_is_common_and_additional() -> None:
    a, b = load("--num-prompts", "2", "--random-prefix-len", "30", "--random-input-len", "20")
    assert (len(ids(a)), len(ids(b))) == (50, 50)
    assert 30 <= shared(a, b) < 35


def test_every_prefix_is_repeated_as_often() -> None:
    requests = load(
        *("--dataset-name", "prefix_repetition", "--num-prompts", "12"),
        *("--prefix-repetition-num-prefixes", "4", "--prefix-repetition-prefix-len", "16"),
        *("--prefix-repetition-suffix-len", "8", "--prefix-repetition-output-len", "3"),
    )
    starts: dict[tuple[int, ...], int] = {}
    for request in requests:
        start = tuple(ids(request)[:16])
        starts[start] = starts.get(start, 0) + 1
    assert sorted(starts.values()) == [3, 3, 3, 3]
    assert len({tuple(ids(r)) for r in requests}) == 12
    assert [r.prefix for r in requests] != sorted(r.prefix or 0 for r in requests)
    assert {(len(ids(r)), r.max_tokens) for r in requests} == {(24, 3)}


def test_text_is_counted_by_the_tokenizer() -> None:
    (request,) = load("--num-prompts", "1", "--random-input-len", "40", text=True)
    assert isinstance(request.prompt, str)
    assert len(request.prompt) == request.prompt_tokens == 40


def test_text_that_became_longer_is_cut_back() -> None:
    told = options("--num-prompts", "30", "--random-input-len", "40", prompt_form="text")
    for request in workloads.load("random", told, np.random.default_rng(0), Pieces()):
        assert len(request.prompt) == request.prompt_tokens == 40


def test_text_without_a_tokenizer_is_refused() -> None:
    told = options(prompt_form="text")
    with pytest.raises(ValueError, match="tokenizer"):
        workloads.load("random", told, np.random.default_rng(0), None)


def test_sharegpt_takes_first_turns_of_usual_length(tmp_path: Path) -> None:
    def dialogue(asked: int, answered: int) -> dict[str, object]:
        turns = [{"from": "human", "value": "q" * asked}, {"from": "gpt", "value": "a" * answered}]
        return {"conversations": turns}

    path = tmp_path / "s.json"
    unusual = [dialogue(3, 50), dialogue(50, 3), dialogue(1025, 9), dialogue(1000, 1100)]
    usual = [dialogue(10, 20), dialogue(1024, 1024)]
    path.write_text(json.dumps([*unusual, *usual, {"conversations": [{"value": "alone"}]}, {}]))
    flags = ("--dataset-name", "sharegpt", "--dataset-path", str(path))
    requests = load(*flags, text=True)
    assert {(r.prompt, r.max_tokens) for r in requests} == {("q" * 10, 20), ("q" * 1024, 1024)}
    fixed = load(*flags, "--sharegpt-output-len", "5", "--num-prompts", "1", text=True)
    assert [r.max_tokens for r in fixed] == [5]


def test_what_is_no_sharegpt_is_named(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    path.write_text('{"conversations": []}')
    with pytest.raises(ValueError, match=r"s\.json: Expected `array`"):
        load("--dataset-name", "sharegpt", "--dataset-path", str(path), text=True)


def test_custom_lines_are_taken_in_order(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    path.write_text(
        '{"prompt": "one", "output_tokens": 4}\n\n{"prompt": [1, 2]}\n{"prompt": "x"}\n'
    )
    flags = ("--dataset-name", "custom", "--dataset-path", str(path))
    assert load(*flags, "--num-prompts", "2") == [
        Request(prompt="one", max_tokens=4),
        Request(prompt=[1, 2], max_tokens=256, prompt_tokens=2),
    ]
    assert [r.max_tokens for r in load(*flags, "--custom-output-len", "9")] == [9, 9, 9]


@pytest.mark.parametrize("line", ['{"text": "two"}', '{"prompt": 3}', "two", '{"prompt": [1.5]}'])
def test_a_custom_line_of_another_form_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "c.jsonl"
    path.write_text(f'{{"prompt": "one"}}\n{line}\n')
    with pytest.raises(ValueError, match=r"c\.jsonl:2"):
        load("--dataset-name", "custom", "--dataset-path", str(path))


TRACE = [
    {"timestamp": 0, "input_length": 1200, "output_length": 8, "hash_ids": [0, 1, 2]},
    {"timestamp": 1000, "input_length": 1100, "output_length": 9, "hash_ids": [0, 1, 3]},
    {"timestamp": 3000, "input_length": 600, "output_length": 5, "hash_ids": [4, 5]},
    {"timestamp": 4000, "input_length": 1536, "output_length": 5, "hash_ids": [0, 1, 2]},
]


def trace(tmp_path: Path, *argv: str) -> list[Request]:
    path = tmp_path / "t.jsonl"
    path.write_text("\n".join(map(json.dumps, TRACE)))
    return load("--dataset-name", "timed_trace", "--dataset-path", str(path), *argv)


def test_equal_blocks_of_a_trace_are_equal_tokens(tmp_path: Path) -> None:
    a, b, c, d = trace(tmp_path)
    assert [len(ids(r)) for r in (a, b, c, d)] == [1200, 1100, 600, 1536]
    assert 1024 <= shared(a, b) < 1030
    assert shared(a, c) < 5
    assert shared(a, d) == 1200
    assert [r.at_s for r in (a, b, c, d)] == [0.0, 1.0, 3.0, 4.0]
    assert [r.max_tokens for r in (a, b, c, d)] == [8, 9, 5, 5]


def test_they_share_the_same_part_when_scaled_to_the_context(tmp_path: Path) -> None:
    a, b, _, d = trace(tmp_path, "--max-model-len", "160")
    assert len(ids(d)) + d.max_tokens <= 160
    assert shared(a, b) / len(ids(a)) == pytest.approx(1024 / 1200, rel=0.05)
    assert shared(a, d) == len(ids(a))


def test_a_trace_is_stretched_and_cut_off(tmp_path: Path) -> None:
    assert [r.at_s for r in trace(tmp_path, "--time-scale", "0.5")] == [0.0, 0.5, 1.5, 2.0]
    assert len(trace(tmp_path, "--max-requests", "2")) == 2
    assert len(trace(tmp_path, "--num-prompts", "3")) == 3


def test_files_must_be_named_and_hold_something(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="needs --dataset-path"):
        load("--dataset-name", "custom")
    path = tmp_path / "none.jsonl"
    path.write_text("")
    with pytest.raises(ValueError, match="no request"):
        load("--dataset-name", "custom", "--dataset-path", str(path))


def test_some_clients_hang_up() -> None:
    requests = load("--num-prompts", "1000", "--input-len", "1")
    made = workloads.with_cancels(requests, 0.2, 0.5, np.random.default_rng(0))
    delays_s = [request.cancel_after_s for request in made]
    assert set(delays_s) == {None, 0.5}
    assert 160 < delays_s.count(0.5) < 240
    assert workloads.with_cancels(requests, 0.0, 0.5, np.random.default_rng(0)) == requests


@pytest.mark.parametrize(
    "argv", [("--num-prompts", "0"), ("--random-range-ratio", "1"), ("--dataset-name", "x")]
)
def test_senseless_flags_are_refused(argv: tuple[str, str]) -> None:
    with pytest.raises(SystemExit):
        options(*argv)
