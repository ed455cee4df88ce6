"""What a failure costs: another attempt with what the client has, never a token twice."""

from dataclasses import replace

import pytest
from msgspec import structs

from common.errors import Overloaded, TimedOut
from common.ids import TransferId
from common.messages import (
    End,
    Expect,
    FailureKind,
    Prefill,
    Resume,
)
from launch.gateway.attempts import GatewayOptions
from tests.unit.gateway.builders import (
    D2,
    FOUR,
    LENGTH,
    P2,
    Bench,
    D,
    P,
    T,
    accepted,
    failed,
    generate,
    gone,
    handed,
    refused,
    run,
    tokens,
)

TRANSFER, PREFILL_LOST = FailureKind.TRANSFER, FailureKind.PREFILL_LOST


# --- the next attempt ------------------------------------------------------------------------


def test_the_next_attempt_carries_what_the_client_has() -> None:
    bench = Bench()
    handed(bench, 50, 51)
    bench.hear(failed())
    ends = [End(transfer=T, attempt=1)]
    assert bench.said(End, P) == bench.said(End, D) == ends
    assert bench.opened == [(T, 2, P, D)]
    assert bench.prefill.samples == bench.expect.samples == (Resume(0, (50, 51)),)
    assert bench.prefill.prompt == (1, 2, 3, 4, 5, 6)
    assert not bench.is_admitted


def test_older_attempts_are_dropped_from_then_on() -> None:
    bench = Bench()
    handed(bench, 50)
    bench.hear(failed())
    bench.hear(tokens(run(1, 51)), failed(), gone(), accepted())
    assert bench.actions == ()
    assert bench.core.stale_messages == 4
    bench.hear(tokens(run(1, 52, attempt=2)))
    assert bench.given == [(0, 1, (52,), None)]


def test_an_offer_that_is_repeated_is_what_the_attempt_began_with() -> None:
    bench = Bench()
    bench.submit()
    bench.hear(tokens(run(0, 50)), sender=P)
    bench.hear(gone())  # decode has not got its Expect
    assert bench.opened == [(T, 1, P, D)]
    assert bench.expect.samples == (Resume(0),)


def test_a_lost_offer_is_repeated_to_whom_it_was_lost() -> None:
    bench = Bench()
    bench.submit()
    bench.hear(accepted())
    bench.hear(gone(), sender=P)
    assert len(bench.said(Prefill, P)) == 1
    assert not bench.said(Expect)


def test_attempts_that_fail_without_progress_come_ever_more_slowly() -> None:
    bench = Bench()
    handed(bench, 50)
    times: list[float] = []
    for attempt in range(1, 8):
        bench.hear(failed(attempt, TRANSFER))
        while not bench.opened:
            assert bench.wake_at is not None
            assert bench.wake_at > bench.now
            bench.now = bench.wake_at
            bench.take()
        times.append(bench.now)
    assert times == pytest.approx([0.0, 0.05, 0.25, 0.75, 1.75, 2.75, 3.75])


def test_progress_makes_it_quick_again() -> None:
    bench = Bench()
    handed(bench, 50)
    bench.hear(failed(1, TRANSFER))
    bench.hear(failed(2, TRANSFER))
    assert bench.opened == []
    bench.tick(0.1)
    bench.hear(tokens(run(1, 51, attempt=3)))
    bench.hear(failed(3, TRANSFER))
    assert bench.opened == [(T, 4, P, D)]


# --- samples ---------------------------------------------------------------------------------


def test_samples_without_outputs_stay_together() -> None:
    bench = Bench()
    bench.submit(generate(n=3))
    bench.hear(failed())
    assert bench.opened == [(T, 2, P, D)]
    assert bench.expect.samples == (Resume(0), Resume(1), Resume(2))


def test_samples_with_outputs_go_on_by_themselves() -> None:
    bench = Bench()
    bench.admitted(generate(n=4))
    bench.hear(tokens(run(0, 50), run(0, 60, 61, sample=1), run(0, 70, sample=2, finish=LENGTH)))
    bench.hear(failed())
    assert [(transfer, attempt) for transfer, attempt, *_ in bench.opened] == [
        (T, 2),
        ("t2", 2),
        ("t3", 2),
    ]
    assert [e.samples for e in bench.said(Expect)] == [
        (Resume(0, (50,)),),
        (Resume(1, (60, 61)),),
        (Resume(3),),
    ]
    bench.hear(tokens(run(2, 62, transfer="t2", attempt=2, sample=1, finish=LENGTH)))
    assert bench.given == [(1, 2, (62,), LENGTH)]
    bench.hear(tokens(run(1, 51, attempt=2, finish=LENGTH)))
    assert not bench.core.idle
    bench.hear(tokens(run(0, 80, transfer="t3", attempt=2, sample=3, finish=LENGTH)))
    assert bench.core.idle
    assert bench.notes[-1] == "finished"


def test_a_stopped_sample_is_not_taken_along() -> None:
    bench = Bench()
    bench.admitted(generate(n=2))
    bench.hear(tokens(run(0, 50), run(0, 60, sample=1)))
    bench.stop(sample=0)
    bench.hear(failed())
    assert bench.expect.samples == (Resume(1, (60,)),)


def test_one_transfer_that_is_given_up_ends_the_whole_request() -> None:
    bench = Bench()
    bench.admitted(generate(n=2))
    bench.hear(tokens(run(0, 50), run(0, 60, sample=1)))
    bench.hear(failed())
    bench.hear(refused(attempt=2, retry_after_s=None))
    assert bench.error is not None
    assert {end.transfer for end in bench.said(End, D)} == {T, "t2"}
    assert bench.core.idle


# --- refusals --------------------------------------------------------------------------------


def test_a_refused_request_is_taken_elsewhere_once_a_role() -> None:
    bench = Bench(*FOUR)
    bench.submit()
    bench.hear(refused(1), sender=P)
    assert bench.opened == [(T, 2, P2, D)]
    bench.hear(refused(2), sender=D)
    bench.tick(0.1)
    assert bench.opened == [(T, 3, P2, D2)]
    bench.hear(refused(3), sender=D2)
    assert isinstance(bench.error, Overloaded)
    assert bench.error.retry_after_s == 2.0
    assert bench.core.idle


def test_one_whose_answer_has_begun_is_refused_nowhere() -> None:
    """It comes after others of its answer, and there may be no room at first."""
    bench = Bench(options=GatewayOptions(max_requests=1))
    bench.submit(generate("first"))
    bench.submit(generate("other"))
    assert isinstance(bench.error, Overloaded)
    bench.submit(replace(generate(timeout_s=9.0), promised=True, waited_s=5.0))
    for attempt in range(1, 4):
        bench.hear(structs.replace(refused(attempt), transfer=TransferId("t2")))
        opened = bench.opened
        bench.tick(1.0)
        assert [one[:2] for one in (*opened, *bench.opened)] == [("t2", attempt + 1)]
    bench.tick(1.0)
    assert isinstance(bench.error, TimedOut)


def test_recoveries_are_offered_until_time_is_up() -> None:
    bench = Bench(options=GatewayOptions(recovery_s=5.0))
    handed(bench, 50)
    bench.hear(failed())
    attempt = 2
    while bench.error is None:
        if bench.opened:
            attempt = bench.opened[0][1]
            bench.hear(refused(attempt))
        else:
            assert bench.wake_at is not None
            bench.now = bench.wake_at
            bench.take()
    assert bench.now == pytest.approx(5.0, abs=1.0)
    assert str(bench.error) == "no worker could take the request in 5 s: refused: full"
