"""Stages of requests, from lines as a server's processes write them."""

import json
from pathlib import Path

import pytest

from bench.request_log import Life, Line, lives, read_log

T0 = 1_790_000_000.0


def lines(*events: tuple[float, str, str], transfer: str = "t1", attempt: int = 1) -> list[Line]:
    """(ms after T0, role, event): as `--request-log` has them, the role being no part of it."""
    return [Line(T0 + ms / 1000, event, transfer, attempt) for ms, _, event in events]


RECEIVED = Line(T0, "received", "t1", 0)
WHOLE = [
    RECEIVED,
    *lines(
        (1, "prefill", "queued"),
        (1, "decode", "queued"),
        (5, "prefill", "context_begin"),
        (20, "prefill", "pages_ready"),
        (21, "decode", "migration_begin"),
        (22, "decode", "pages_pulled"),
        (40, "prefill", "context_end"),
        (41, "gateway", "first_token"),
        (43, "decode", "migration_end"),
        (43, "decode", "decoding_begin"),
        (90, "decode", "decoding_end"),
        (91, "gateway", "finished"),
    ),
]


def ms(life: Life) -> list[tuple[str, int, int]]:
    spans = ((s.stage.value, s.begin - T0, s.end - T0) for s in life.spans)
    return [(stage, round(1000 * begin), round(1000 * end)) for stage, begin, end in spans]


def test_the_stages_of_a_handed_over_request() -> None:
    (life,) = lives(WHOLE)
    assert ms(life) == [
        ("queue", 0, 5),
        ("prefill", 5, 40),
        ("transfer", 21, 43),
        ("decode", 43, 90),
    ]
    assert (life.begin, life.end) == (T0, T0 + 0.091)
    assert life.first_token == T0 + 0.041


def test_a_request_that_decode_computes_itself_has_no_transfer() -> None:
    own = lines(
        (1, "decode", "queued"),
        (2, "decode", "context_begin"),
        (10, "decode", "context_end"),
        (10, "decode", "decoding_begin"),
        (30, "decode", "decoding_end"),
    )
    (life,) = lives([RECEIVED, *own])
    assert ms(life) == [("queue", 0, 2), ("prefill", 2, 10), ("decode", 10, 30)]


def test_an_attempt_that_was_given_up_ends_where_the_next_begins() -> None:
    first = lines((1, "prefill", "queued"), (2, "prefill", "context_begin"))
    late = lines((9, "decode", "aborted"))
    second = lines(
        (8, "prefill", "queued"),
        (10, "prefill", "context_begin"),
        (15, "prefill", "context_end"),
        attempt=2,
    )
    (life,) = lives([RECEIVED, *first, *late, *second])
    assert ms(life) == [
        ("queue", 0, 2),
        ("prefill", 2, 8),
        ("queue", 8, 10),
        ("prefill", 10, 15),
    ]


def test_what_has_not_ended_ends_with_the_last_line() -> None:
    (life,) = lives(WHOLE[:5])
    assert ms(life) == [("queue", 0, 5), ("prefill", 5, 20)]


def test_a_queued_line_that_comes_late_opens_no_second_queue() -> None:
    late = lines((1, "prefill", "queued"), (2, "prefill", "context_begin"), (3, "decode", "queued"))
    (life,) = lives([RECEIVED, *late, *lines((9, "prefill", "context_end"))])
    assert ms(life) == [("queue", 0, 2), ("prefill", 2, 9)]


def test_requests_by_arrival_within_a_window() -> None:
    all_lines = [Line(T0 + n, "received", f"t{n}", 0) for n in (3, 1, 2, 0)]
    assert [life.transfer for life in lives(all_lines, begin=T0 + 1, end=T0 + 2)] == ["t1", "t2"]


def test_a_log_as_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    entry = {
        "t": T0,
        "mono": 12.5,
        "event": "received",
        "transfer": "t1",
        "attempt": 0,
        "role": "gateway",
        "instance": "9f",
        "request": "cmpl-1",
    }
    path.write_text(json.dumps(entry) + '\n{"t": 1790000000.1, "mono": 12')
    assert read_log(path) == [RECEIVED]
    path.write_text(json.dumps(entry) + "\nsomething else\n")
    with pytest.raises(ValueError, match="line 2"):
        read_log(path)


def test_a_request_that_was_refused_was_only_ever_queued() -> None:
    aborted = [Line(T0 - 1, "received", "t0", 0), Line(T0, "aborted", "t0", 1)]
    assert [life.was_computed for life in lives([*aborted, *WHOLE])] == [False, True]
