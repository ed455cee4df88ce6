"""Workers that die, come back or forget, and what of a request survives them."""

import pytest
from msgspec import structs

from common.errors import Overloaded
from common.messages import (
    End,
    FailureKind,
    Heartbeat,
    PeerLost,
    Phase,
    Resume,
    Tokens,
)
from common.params import TokenLogprob
from launch.gateway.attempts import GatewayOptions
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
    run,
    tokens,
)

FOUR = (P, P2, D, D2)
TRANSFER = FailureKind.TRANSFER


def handed(bench: Bench, *had: int) -> None:
    """Admitted, and decode has the prompt; the client has these tokens."""
    bench.admitted()
    bench.hear(tokens(run(0, *had)))


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


def test_workers_keep_a_place_for_what_was_accepted() -> None:
    bench = Bench(P, P2, D)
    bench.submit()
    assert not (bench.prefill.recovering or bench.expect.recovering)
    bench.hear(accepted())
    bench.hear(accepted(), sender=P)
    bench.down(P)
    assert bench.prefill.recovering
    assert bench.expect.recovering


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
