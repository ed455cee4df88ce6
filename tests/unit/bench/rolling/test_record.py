"""What a run of rolling restarts comes to."""

from bench.client import Outcome
from bench.rolling.record import Mark, Record, gaps, in_flight, result, spans, wrong

WANTED = {0: (0, 3), 1: (0, 3), 2: (1, 2)}


def answered(index: int, sent_s: float, *chunks_s: float, text: str = "abc") -> Outcome:
    return Outcome(
        index=index,
        scheduled_s=sent_s,
        sent_s=sent_s,
        ended_s=chunks_s[-1],
        chunk_times_s=list(chunks_s),
        output_tokens=len(chunks_s),
        text=text,
    )


def test_nothing_is_broken_where_all_are_answered_alike() -> None:
    outcomes = [
        answered(0, 0.0, 1.0, 2.0, 3.0),
        answered(1, 1.0, 2.0, 3.0, 4.0),
        answered(2, 2.0, 3.0, 4.0, text="xy"),
    ]
    assert wrong(outcomes, WANTED) == []


def test_what_is_broken_is_said_by_request() -> None:
    failed = answered(2, 2.0, 3.0, 4.0)
    failed.error, failed.message = "http_503", "no worker"
    short = answered(0, 0.0, 1.0, 2.0)
    assert wrong([short, failed], WANTED) == [
        "request 0 got 2 tokens of 3",
        "request 2 failed: http_503: no worker",
    ]
    first, other = answered(0, 0.0, 1.0, 2.0, 3.0), answered(1, 1.0, 2.0, 3.0, 4.0, text="xyz")
    assert wrong([first, other], WANTED) == [
        "request 1 was answered otherwise than the first with its prompt"
    ]


def test_figures_are_told_by_what_was_done_meanwhile() -> None:
    record = Record(
        calm_s=5.0,
        outcomes=[answered(0, 0.0, 1.0, 2.0, 4.0), answered(1, 5.0, 5.5, 9.5, 10.0)],
        marks=[Mark(5.04, "decode-0 restarting"), Mark(9.6, "decode-0 restarted")],
    )
    told = result(record, [])
    assert (told["requests"], told["failed"], told["tokens"], told["seconds"]) == (2, 0, 6, 10.0)
    assert told["calm"]["max_ttft_ms"] == 1000.0
    assert told["calm"]["max_itl_ms"] == 2000.0
    assert told["restarts"]["p50_ttft_ms"] == 500.0
    assert told["restarts"]["max_itl_ms"] == 4000.0
    assert told["joins_and_leaves"]["requests"] == 0
    assert told["joins_and_leaves"]["max_ttft_ms"] is None
    assert told["joins_and_leaves"]["max_itl_ms"] == 500.0
    assert told["marks"] == [[5.0, "decode-0 restarting"], [9.6, "decode-0 restarted"]]


def test_a_restart_lasts_from_its_begin_to_its_end() -> None:
    marks = [
        Mark(1.0, "decode-0 restarting"),
        Mark(3.0, "decode-0 restarted"),
        Mark(3.0, "decode-1 restarting"),
        Mark(5.0, "it is told to leave"),
        Mark(6.0, "it has left"),
    ]
    assert spans(marks) == [
        ("decode-0 restarts", 1.0, 3.0),
        ("decode-1 restarts", 3.0, 3.0),  # it did not come up again
        ("and leaves", 5.0, 6.0),
    ]


def test_requests_in_flight_change_as_they_are_sent_and_end() -> None:
    outcomes = [answered(0, 0.0, 1.0, 4.0), answered(1, 2.0, 3.0)]
    assert in_flight(outcomes) == [(0.0, 1), (2.0, 2), (3.0, 1), (4.0, 0)]
    assert gaps([outcomes[0]]) == [(4.0, 3.0)]
