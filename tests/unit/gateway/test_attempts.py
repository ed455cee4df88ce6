"""What a failure costs: another attempt with what the client has, never a token twice."""

from dataclasses import replace

import pytest
from msgspec import structs

from common.engine.events import PeerDown, PeerUp
from common.errors import Overloaded, PeerError, TimedOut
from common.ids import InstanceId, TransferId
from common.messages import (
    End,
    Expect,
    FailureKind,
    Prefill,
    Resume,
)
from launch.gateway.attempts import GatewayOptions
from launch.gateway.events import Crashed, GatewayEvent, Rejected
from launch.gateway.fleet import BAR_S
from launch.gateway.transfers import CLEARED_AFTER_TOKENS
from tests.unit.gateway.builders import (
    D2,
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
    hello,
    refused,
    run,
    tokens,
)

FOUR = (P, P2, D, D2)
TRANSFER, PREFILL_LOST = FailureKind.TRANSFER, FailureKind.PREFILL_LOST


def handed(bench: Bench, *had: int) -> None:
    """Admitted, and decode has the prompt; the client has these tokens."""
    bench.admitted()
    bench.hear(tokens(run(0, *had)))


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


# --- failures --------------------------------------------------------------------------------


def test_who_fails_alone_twice_after_two_failures_is_to_blame() -> None:
    bench = Bench()
    bench.submit()
    bench.hear(failed(1))
    assert not bench.expect.alone
    assert not bench.prefill.alone
    bench.hear(failed(2))
    bench.tick(1.0)
    assert bench.expect.alone
    assert bench.prefill.alone
    bench.hear(failed(3))
    assert bench.error is None  # that may have been by chance
    bench.tick(2.0)
    assert bench.expect.alone
    bench.hear(failed(4))
    assert isinstance(bench.error, PeerError)
    assert str(bench.error) == "the model's pass failed: why"
    assert bench.notes == ["failed"]
    assert bench.core.idle


def test_who_fails_beside_others_is_not_to_blame() -> None:
    bench = Bench()
    bench.submit()
    for attempt in range(1, 6):
        bench.hear(structs.replace(failed(attempt), alone=False))
        assert bench.error is None
        bench.tick(1.0)


def test_whoever_was_there_when_workers_died_is_suspect_until_it_has_been_well() -> None:
    bench = Bench()
    handed(bench, 50)
    for attempt, alone in ((2, False), (3, True)):
        bench.down(D)
        bench.tick(1.0)
        bench.up(D)
        assert (bench.expect.attempt, bench.expect.alone) == (attempt, alone)
    bench.hear(tokens(run(1, *range(60, 60 + CLEARED_AFTER_TOKENS), attempt=3)))
    bench.down(D)
    bench.tick(1.0)
    bench.up(D)
    assert (bench.expect.attempt, bench.expect.alone) == (4, False)


def again(bench: Bench, *events: GatewayEvent) -> None:
    """Decode's worker dies, and another comes."""
    bench.take(*events, PeerDown(D))
    bench.tick(1.0)
    bench.up(D)


def test_a_crash_is_its_only_suspect_s_fault() -> None:
    bench = Bench()
    handed(bench, 50)
    again(bench, Crashed(D))
    again(bench, Crashed(D))
    assert bench.error is None
    again(bench)  # killed: nobody's fault
    assert bench.expect.alone
    bench.take(Crashed(D), PeerDown(D))
    assert isinstance(bench.error, PeerError)
    assert bench.core.idle


def test_of_several_suspects_one_at_a_time_is_let_in_until_it_is_known_who_it_was() -> None:
    bench = Bench()
    for name in "abc":
        bench.submit(generate(name))
    for _ in range(3):
        again(bench, Crashed(D))
        assert not bench.did(Rejected)
    assert len(bench.said(Expect)) == 1
    bench.take(Crashed(D), PeerDown(D))
    assert len(bench.did(Rejected)) == 1
    bench.tick(1.0)
    bench.up(D)
    assert len(bench.said(Expect)) == 1  # of the two that are left


def test_killed_and_silent_workers_make_nobody_wait_for_others_of_its_own() -> None:
    bench = Bench()
    bench.submit()
    bench.submit(generate("x"))
    for attempt in range(2, 9):
        again(bench)
        assert bench.opened == [(T, attempt, P, D), ("t2", attempt, P, D)]


def crashed_often(bench: Bench) -> None:
    """T and x were there three times; y has come since. T has its workers now, for itself."""
    bench.submit()
    bench.submit(generate("x"))
    for _ in range(3):
        again(bench, Crashed(D))
    assert bench.opened == [(T, 4, P, D)]
    bench.submit(generate("y"))
    assert bench.opened == []  # there is but one way, and T is on it


def test_whoever_must_have_workers_for_itself_is_not_passed_by() -> None:
    bench = Bench()
    crashed_often(bench)
    bench.hear(tokens(run(0, 50, attempt=4, finish=LENGTH)))
    bench.tick(1.0)
    assert bench.opened == [("t2", 4, P, D)]
    bench.hear(tokens(run(0, 50, transfer="t2", attempt=4, finish=LENGTH)))
    bench.tick(1.0)
    assert bench.opened == [("t3", 1, P, D)]


def test_others_go_elsewhere_meanwhile() -> None:
    bench = Bench()
    crashed_often(bench)
    bench.up(P2)
    bench.take(PeerUp(hello(D2)))
    assert bench.opened == [("t2", 4, P2, D2)]
    bench.up(InstanceId("prefill-3"))
    bench.take(PeerUp(hello(InstanceId("decode-3"))))
    assert bench.opened == [("t3", 1, "prefill-3", "decode-3")]


def test_who_has_been_well_shares_its_workers_again() -> None:
    bench = Bench()
    crashed_often(bench)
    bench.quit("x")
    bench.hear(tokens(run(0, *range(60, 59 + CLEARED_AFTER_TOKENS), attempt=4)))
    bench.tick(1.0)
    assert bench.opened == []
    bench.hear(tokens(run(CLEARED_AFTER_TOKENS - 1, 80, attempt=4)))
    bench.tick(1.0)
    assert bench.opened == [("t3", 1, P, D)]


def test_whoever_leaves_keeps_no_worker_from_others() -> None:
    bench = Bench()
    crashed_often(bench)
    bench.quit()
    bench.quit("x")
    bench.tick(1.0)
    assert bench.opened == [("t3", 1, P, D)]


def test_only_passes_that_raise_count_to_that_bound() -> None:
    bench = Bench()
    handed(bench, 50)
    for attempt in range(1, 6):
        bench.hear(failed(attempt, TRANSFER))
        bench.tick(1.0)
    bench.hear(failed(6))
    assert bench.error is None


def test_progress_forgives_passes_that_raised() -> None:
    bench = Bench()
    handed(bench, 50)
    for n in range(1, 6):
        bench.hear(failed(n))
        bench.tick(1.0)
        bench.hear(tokens(run(n, 50 + n, attempt=n + 1)))
    assert bench.error is None


def test_the_worker_whose_pass_raised_is_avoided_once() -> None:
    bench = Bench(*FOUR)
    bench.submit()
    assert bench.opened == [(T, 1, P, D)]
    bench.hear(failed(1), sender=P)
    assert bench.opened == [(T, 2, P2, D)]
    bench.hear(failed(2), sender=D)
    bench.tick(1.0)
    assert bench.opened == [(T, 3, P, D2)]


def test_a_pair_between_which_pages_do_not_pass_is_barred_for_a_while() -> None:
    bench = Bench()
    bench.submit()
    bench.hear(failed(1, TRANSFER, prefill=P))
    assert bench.opened == [(T, 2, None, D)]
    bench.now = BAR_S
    bench.submit(generate("later"))
    assert bench.opened == [("t2", 1, P, D)]


def test_a_prefill_side_that_forgot_is_not_barred() -> None:
    bench = Bench()
    bench.submit()
    bench.hear(failed(1, PREFILL_LOST, prefill=P))
    assert bench.opened == [(T, 2, P, D)]


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
