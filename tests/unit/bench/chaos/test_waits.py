"""Which streams a fault befell, from a request log, and how long they stood still."""

import pytest

from bench.chaos.plan import Ask, Fault, Kind, Struck, Worker
from bench.chaos.record import Answer
from bench.chaos.waits import UNDISTURBED, Line, Stay, Waits, longest_gap, stays, table, waits
from bench.client import Outcome

BEGAN = 1000.0


def line(at_s: float, event: str, role: str = "gateway", attempt: int = 1, **more: str) -> Line:
    return Line(BEGAN + at_s, event, "t", attempt, role, **more)


RECEIVED = line(1, "received", attempt=0, request="cmpl-7f-0")


def test_prefill_has_a_request_until_decode_joins_it() -> None:
    log = [
        RECEIVED,
        line(1, "routed", prefill="P", decode="D"),
        line(2, "context_end", "prefill"),
        line(3, "decoding_begin", "decode"),
        line(4, "finished"),
    ]
    assert stays(log, BEGAN) == [Stay("cmpl-7f", "P", 1, 3), Stay("cmpl-7f", "D", 1, 4)]


def test_the_next_attempt_ends_the_stay_and_old_attempts_say_nothing() -> None:
    log = [
        RECEIVED,
        line(1, "routed", prefill="P", decode="D"),
        line(5, "failed"),
        line(6, "routed", attempt=2, prefill="Q", decode="E"),
        line(7, "aborted", "prefill"),  # of the worker that was stopped meanwhile
        line(7, "decoding_begin", "decode"),
        line(8, "finished", attempt=2),
    ]
    assert stays(log, BEGAN) == [
        *(Stay("cmpl-7f", one, 1, 5) for one in ("P", "D")),
        *(Stay("cmpl-7f", one, 6, 8) for one in ("Q", "E")),
    ]


def test_a_prompt_that_decode_computes_itself_is_at_one_worker() -> None:
    log = [RECEIVED, line(1, "routed", decode="D"), line(2, "decoding_begin"), line(4, "aborted")]
    assert stays(log, BEGAN) == [Stay("cmpl-7f", "D", 1, 4)]
    assert stays(log[1:], BEGAN) == []  # nobody knows whose it was


def stream(name: str, sent_s: float, *times_s: float) -> Answer:
    outcome = Outcome(index=0, scheduled_s=sent_s, sent_s=sent_s, request_id=name)
    outcome.chunk_times_s = list(times_s)
    outcome.ended_s = times_s[-1]
    ask = Ask(name, 0, stream=True, leaves_after_s=None, thinks_s=0)
    return Answer(ask, outcome)


def struck(at_s: float, lasts_s: float, instance: str, kind: Kind = Kind.STOP) -> Struck:
    return Struck(Fault(0, at_s, kind, lasts_s, 0), Worker("decode", 1, instance), at_s)


@pytest.mark.parametrize(
    ("begin_s", "end_s", "gap_s"),
    [
        (2.5, 2.6, 1),  # within the gap
        (1.5, 2.5, 1),  # two gaps of the same length
        (3.5, 9.0, 4),
        (0.0, 0.6, 1),  # before the first token, too
        (7.1, 9.0, 0),
    ],
)
def test_the_longest_gap_that_reaches_into_a_time(
    begin_s: float, end_s: float, gap_s: float
) -> None:
    assert longest_gap(stream("a", 0, 1, 2, 3, 7).outcome, begin_s, end_s) == gap_s


def test_a_fault_befalls_the_streams_that_its_worker_has_or_is_given_meanwhile() -> None:
    answers = [
        stream("had", 0, 1, 2, 6.5),
        stream("given", 5, 7.5),
        stream("before", 0, 1, 1.5),
        stream("elsewhere", 0, 1, 2, 2.2),
    ]
    there = [
        Stay("had", "D", 0, 7),
        Stay("given", "D", 5, 8),
        Stay("before", "D", 0, 1.6),
        Stay("elsewhere", "E", 0, 3),
    ]
    calm, stopped = waits([struck(2, 4, "D")], answers, there)
    assert (stopped.what, stopped.n_faults) == ("decode worker stopped for up to 10 s", 1)
    assert sorted(stopped.longest_s) == [2.5, 4.5]
    assert (calm.what, calm.n_faults, sorted(calm.longest_s)) == (UNDISTURBED, 0, [1, 1])


def test_answers_that_came_whole_or_not_at_all_tell_no_wait() -> None:
    failed = stream("a", 0, 1)
    failed.outcome.error = "truncated"
    whole = Answer(Ask("b", 0, stream=False, leaves_after_s=None, thinks_s=0),
                   stream("b", 0, 5).outcome)  # fmt: skip
    there = [Stay("a", "D", 0, 9), Stay("b", "D", 0, 9)]
    calm, killed = waits([struck(2, 0, "D", Kind.KILL)], [failed, whole], there)
    assert (killed.what, killed.n_faults, killed.longest_s) == ("decode worker killed", 1, ())
    assert calm.longest_s == ()


def test_the_table_has_a_row_a_kind() -> None:
    rows = [Waits(UNDISTURBED, 0, (0.25,)), Waits("decode worker killed", 2, ())]
    assert table(rows).splitlines()[2:] == [
        "| none | 0 | 1 | 0.25 s | 0.25 s |",
        "| decode worker killed | 2 | 0 |  |  |",
    ]


def test_long_and_short_faults_are_told_apart() -> None:
    rows = waits([struck(1, 12, "D"), struck(1, 2, "D"), struck(1, 3, "D", Kind.CUT)], [], [])
    assert [(row.what, row.n_faults) for row in rows[1:]] == [
        ("decode worker cut off for up to 10 s", 1),
        ("decode worker stopped for longer", 1),
        ("decode worker stopped for up to 10 s", 1),
    ]
