"""What a failure costs: another attempt with what the client has, never a token twice."""

import pytest
from msgspec import structs

from common.errors import Overloaded, PeerError
from common.messages import (
    End,
    Expect,
    FailureKind,
    Heartbeat,
    PeerLost,
    Phase,
    Prefill,
    Resume,
    Tokens,
)
from common.params import TokenLogprob
from launch.gateway.attempts import GatewayOptions
from launch.gateway.core import MAX_COMPUTE_FAILURES
from launch.gateway.fleet import BAR_S
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
    listing,
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


def test_passes_that_raise_again_and_again_end_the_request() -> None:
    bench = Bench()
    bench.submit()
    for attempt in range(1, MAX_COMPUTE_FAILURES):
        bench.hear(failed(attempt))
        assert bench.error is None
        bench.tick(1.0)
    bench.hear(failed(MAX_COMPUTE_FAILURES))
    assert isinstance(bench.error, PeerError)
    assert str(bench.error) == "the model's pass failed: why"
    assert bench.notes == ["failed"]
    assert bench.core.idle


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


# --- lost workers ----------------------------------------------------------------------------


def test_a_prefill_worker_lost_before_the_handoff_costs_an_attempt() -> None:
    bench = Bench(*FOUR)
    bench.admitted()
    bench.hear(tokens(run(0, 50)), sender=P)
    bench.down(P)
    assert bench.said(PeerLost, P2) == bench.said(PeerLost, D) == [PeerLost(instance=P)]
    assert bench.opened == [(T, 2, P2, D)]
    assert bench.prefill.samples == (Resume(0, (50,)),)


def test_a_prefill_worker_lost_after_the_handoff_costs_nothing() -> None:
    bench = Bench(*FOUR)
    handed(bench, 50)
    bench.down(P)
    assert bench.opened == []
    bench.hear(tokens(run(1, 51, finish=LENGTH)))
    assert bench.given == [(0, 1, (51,), LENGTH)]
    assert not bench.said(End, P)
    assert bench.core.idle


def test_decodes_digest_tells_of_the_handoff_too() -> None:
    bench = Bench(*FOUR)
    bench.admitted()
    bench.hear(listing((T, 1, Phase.HANDED)))
    bench.down(P)
    assert bench.opened == []


def test_decode_says_if_it_cannot_go_on_without_the_prefill_side() -> None:
    bench = Bench(*FOUR)
    handed(bench, 50)
    bench.down(P)
    bench.hear(failed(1, TRANSFER, prefill=P))
    assert bench.opened == [(T, 2, P2, D)]


def test_a_decode_worker_lost_costs_an_attempt() -> None:
    bench = Bench(*FOUR)
    handed(bench, 50, 51)
    bench.down(D)
    assert bench.opened == [(T, 2, P, D2)]
    assert bench.expect.samples == (Resume(0, (50, 51)),)


def test_without_workers_it_waits_for_one() -> None:
    bench = Bench()
    handed(bench, 50)
    bench.down(D)
    assert bench.opened == []
    bench.tick(7.0)
    bench.up(D2)
    assert bench.opened == [(T, 2, P, D2)]
    assert bench.error is None


def test_a_new_request_waits_a_shorter_time_for_workers() -> None:
    bench = Bench(alone=True, options=GatewayOptions(admission_s=3.0, recovery_s=50.0))
    bench.submit()
    while bench.error is None:
        assert bench.wake_at is not None
        bench.now = bench.wake_at
        bench.take()
    assert 3.0 <= bench.now <= 4.0
    assert isinstance(bench.error, Overloaded)
    assert bench.error.status == 503
    assert str(bench.error) == "no worker could take the request in 3 s: no workers are ready"


def test_patience_begins_with_the_trouble_not_with_the_request() -> None:
    """A worker is judged after ten seconds of silence; another must still be tried."""
    bench = Bench(*FOUR)
    bench.submit()
    bench.now = 10.5
    bench.down(D)
    assert bench.error is None
    assert bench.opened == [(T, 2, P, D2)]


def test_a_worker_that_comes_back_finds_its_old_attempts_over() -> None:
    bench = Bench()
    handed(bench, 50)
    bench.down(D)
    bench.up(D)
    assert bench.opened == [(T, 2, P, D)]
    bench.hear(listing((T, 1, Phase.DECODING)))
    assert bench.said(End, D) == [End(transfer=T, attempt=1)]


# --- what was forgotten ----------------------------------------------------------------------


def test_a_decode_worker_that_forgot_costs_an_attempt() -> None:
    bench = Bench()
    handed(bench, 50)
    bench.hear(gone())
    assert bench.opened == [(T, 2, P, D)]


def test_a_prefill_worker_may_forget_what_it_has_handed_over() -> None:
    bench = Bench()
    handed(bench, 50)
    bench.hear(gone(), sender=P)
    assert bench.opened == []
    bench.tick(1.0)
    assert bench.said(Heartbeat, P)[0].transfers == ()
    assert len(bench.said(Heartbeat, D)[0].transfers) == 1


def test_a_prefill_worker_that_forgot_before_the_handoff_is_found_out_by_decodes_digest() -> None:
    bench = Bench()
    bench.admitted()
    bench.hear(gone(), sender=P)
    assert bench.opened == []  # decode may have it all, and its tokens are on their way
    bench.hear(listing((T, 1, Phase.ACCEPTED)))
    assert bench.opened == [(T, 2, P, D)]


def test_a_gone_of_somebody_else_means_nothing() -> None:
    bench = Bench(*FOUR)
    handed(bench, 50)
    bench.hear(gone(), sender=D2)
    assert bench.actions == ()


# --- the prompt's log-probabilities ----------------------------------------------------------

SCORES = (None, TokenLogprob(2, -1.0, 1, (), ()))


def scored(attempt: int = 1) -> Tokens:
    return tokens(structs.replace(run(0, 50, attempt=attempt), prompt_logprobs=SCORES))


def test_an_answer_begins_with_the_prompts_logprobs() -> None:
    bench = Bench()
    bench.admitted(generate(scores=True))
    bench.hear(tokens(run(0, 50)))
    bench.hear(tokens(run(1, 51)))
    assert bench.given == []  # decode has none: only the prefill side does
    bench.hear(scored(), sender=P)
    assert bench.given == [(0, 0, (50,), None), (0, 1, (51,), None)]
    assert [delta.prompt_logprobs for delta in bench.deltas] == [SCORES, None]
    bench.hear(tokens(run(2, 52)))
    assert bench.given == [(0, 2, (52,), None)]


def test_what_is_held_back_is_not_acknowledged() -> None:
    bench = Bench()
    bench.admitted(generate(scores=True))
    bench.hear(tokens(run(0, 50, 51)))
    bench.tick(1.0)
    assert bench.said(Heartbeat, P)[0].transfers[0].next_index == ((0, 0),)


@pytest.mark.parametrize("lost", [False, True])
def test_if_they_are_lost_for_good_they_are_computed_again(*, lost: bool) -> None:
    bench = Bench()
    bench.admitted(generate(scores=True))
    bench.hear(tokens(run(0, 50)))
    if lost:
        bench.down(P)
        assert bench.opened == [(T, 2, None, D)]
    else:
        bench.hear(gone(), sender=P)
        assert bench.opened == [(T, 2, P, D)]
    bench.hear(scored(attempt=2))
    assert bench.given == [(0, 0, (50,), None)]
