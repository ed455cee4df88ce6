"""Who is to blame for a failure, and who must have workers to itself until that is known."""

import pytest
from msgspec import structs

from common.engine.events import PeerDown, PeerUp
from common.errors import PeerError
from common.ids import InstanceId
from common.messages import Expect, FailureKind, Heartbeat, Progress
from launch.gateway.events import Crashed, GatewayEvent, Rejected
from launch.gateway.fleet import BAR_S
from launch.gateway.transfers import CLEARED_AFTER_TOKENS
from tests.unit.gateway.builders import (
    D2,
    FOUR,
    LENGTH,
    P2,
    Bench,
    D,
    P,
    T,
    failed,
    generate,
    handed,
    hello,
    run,
    tokens,
)

TRANSFER, PREFILL_LOST = FailureKind.TRANSFER, FailureKind.PREFILL_LOST


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


@pytest.mark.parametrize(("n_since", "blamed"), [(1, False), (2, True)])
def test_what_has_ended_there_may_still_be_computed_for_two_passes(
    n_since: int, *, blamed: bool
) -> None:
    bench = Bench()
    handed(bench, 50)
    again(bench, Crashed(D))
    again(bench, Crashed(D))
    bench.submit(generate("x"))
    bench.quit("x")
    for n_done in (7, 7 + n_since):
        bench.hear(Heartbeat(transfers=(), progress=Progress(n_done, 0.1, 0.2)))
    bench.take(Crashed(D), PeerDown(D))
    assert (bench.error is not None) == blamed


def test_what_a_prefill_worker_has_handed_over_does_not_crash_it() -> None:
    bench = Bench()
    handed(bench, 50)
    again(bench, Crashed(D))
    again(bench, Crashed(D))
    bench.hear(tokens(run(1, 51, attempt=3)))
    bench.take(Crashed(P), PeerDown(P))
    assert bench.error is None
    assert not bench.opened  # nor is it missed


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
