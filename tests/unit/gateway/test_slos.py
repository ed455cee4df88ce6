"""What a request is owed: deadlines that travel, refusals that come early, time that is up."""

import pytest

from common.errors import Overloaded, SloHopeless, SloMissed, TimedOut
from common.messages import End, Refused
from launch.gateway.events import Admitted
from launch.gateway.transfers import Slo
from tests.unit.gateway.builders import (
    D2,
    P2,
    Bench,
    D,
    P,
    R,
    T,
    accepted,
    failed,
    generate,
    refused,
    run,
    snapshot,
    tokens,
)

SLO = Slo(ttft_s=0.2, tpot_s=0.05)
OWED = generate(slo=SLO)


def late(attempt: int = 1, predicted_s: float = 1.3) -> Refused:
    return refused(attempt, retry_after_s=1.1, predicted_ttft_s=predicted_s)


def test_workers_are_told_what_is_owed() -> None:
    bench = Bench()
    bench.submit(OWED)
    assert (bench.prefill.deadline_s, bench.prefill.refuse_if_late) == (0.2, True)
    assert (bench.expect.deadline_s, bench.expect.refuse_if_late) == (0.2, True)
    assert bench.expect.tpot_s == 0.05


def test_where_nothing_is_stated_nothing_is_owed() -> None:
    bench = Bench()
    bench.submit()
    assert (bench.prefill.deadline_s, bench.expect.deadline_s, bench.expect.tpot_s) == (
        None,
        None,
        None,
    )


def test_a_later_attempts_deadline_counts_from_the_requests_arrival() -> None:
    bench = Bench()
    bench.admitted(OWED)
    bench.now = 0.15
    bench.hear(failed())
    assert bench.prefill.deadline_s == pytest.approx(0.05)
    assert not bench.prefill.refuse_if_late  # its client was promised an answer
    bench.now = 0.5
    bench.hear(failed(attempt=2))
    bench.tick(0.05)
    assert bench.prefill.attempt == 3
    assert bench.prefill.deadline_s == pytest.approx(-0.35)


# --- early rejection -------------------------------------------------------------------------


def test_a_request_that_would_be_late_is_rejected_and_says_how_late() -> None:
    bench = Bench()
    bench.submit(OWED)
    bench.now = 0.01
    bench.hear(late(), sender=P)
    assert isinstance(bench.error, SloMissed)
    assert str(bench.error) == (
        "the first token is predicted after 1300 ms, and is owed after 200 ms "
        "(slo.ttft_ms, or the server's --slo-ttft); come again later, state a longer time, or "
        "shorten the prompt"
    )
    assert (bench.error.status, bench.error.retry_after_s) == (429, 1.1)
    assert bench.said(End, D) == bench.said(End, P) == [End(transfer=T, attempt=1)]
    assert bench.core.idle


def test_who_would_be_late_on_an_idle_server_is_told_so() -> None:
    bench = Bench()
    bench.submit(OWED)
    bench.hear(refused(retry_after_s=None, predicted_ttft_s=32.0), sender=P)
    assert isinstance(bench.error, SloHopeless)
    assert str(bench.error) == (
        "even an idle server would take 32000 ms for this prompt, and its first token is owed "
        "after 200 ms (slo.ttft_ms, or the server's --slo-ttft); state a longer time, or shorten "
        "the prompt"
    )
    assert (bench.error.status, bench.error.retry_after_s) == (429, None)
    assert bench.core.idle


def test_who_lost_its_time_before_the_attempt_may_come_again() -> None:
    bench = Bench(P, P2, D)
    bench.submit(OWED)
    bench.now = 0.1
    bench.hear(refused(), sender=P)
    bench.hear(refused(2, retry_after_s=None, predicted_ttft_s=0.15), sender=P2)
    assert isinstance(bench.error, SloMissed)
    assert "is predicted after 250 ms" in str(bench.error)
    assert bench.error.retry_after_s == 1.0


def test_the_time_before_the_attempt_is_part_of_what_is_predicted() -> None:
    bench = Bench(P, P2, D)
    bench.submit(OWED)
    bench.now = 0.1
    bench.hear(refused(), sender=P)  # it is full, and the other is tried
    assert bench.prefill.deadline_s == pytest.approx(0.1)
    bench.hear(late(attempt=2), sender=P2)
    assert "is predicted after 1400 ms" in str(bench.error)


def test_another_worker_is_tried_if_it_should_be_in_time() -> None:
    bench = Bench(P, P2, D)
    bench.submit(OWED)
    bench.hear(late(), sender=P)
    assert bench.error is None
    assert bench.opened == [(T, 2, P2, D)]
    assert bench.prefill.refuse_if_late
    bench.hear(late(attempt=2), sender=P2)  # nobody is left
    assert isinstance(bench.error, SloMissed)


def test_another_worker_is_not_tried_if_it_should_be_late_too() -> None:
    bench = Bench(P, P2, D)
    bench.hear(snapshot(2, queued_tokens=300), sender=P2)
    bench.submit(OWED)
    bench.hear(late(), sender=P)
    assert isinstance(bench.error, SloMissed)


def test_the_same_of_decode_workers_that_compute_prompts() -> None:
    bench = Bench(D, D2)
    bench.submit(OWED)
    bench.hear(late(), sender=D)
    assert bench.opened == [(T, 2, None, D2)]
    bench.hear(late(attempt=2), sender=D2)
    assert isinstance(bench.error, SloMissed)


def test_whoever_was_promised_an_answer_is_not_rejected() -> None:
    bench = Bench()
    bench.admitted(OWED)
    bench.hear(late(), sender=P)
    assert bench.error is None
    assert bench.opened == [(T, 2, P, D)]


def test_a_refusal_of_something_else_keeps_its_reason() -> None:
    bench = Bench()
    bench.submit(OWED)
    bench.hear(refused(), sender=P)
    bench.hear(refused(2), sender=P)
    assert isinstance(bench.error, Overloaded)
    assert not isinstance(bench.error, SloMissed)
    assert str(bench.error) == "full"


# --- time that is up -------------------------------------------------------------------------


def test_a_request_ends_everywhere_when_its_time_is_up() -> None:
    bench = Bench()
    bench.admitted(generate(timeout_s=2.0))
    assert bench.wake_at is not None
    assert bench.wake_at <= 2.0
    bench.hear(tokens(run(0, 50)))
    bench.now = 1.999
    bench.take()
    assert bench.error is None
    bench.now = 2.0
    bench.take()
    assert isinstance(bench.error, TimedOut)
    assert str(bench.error) == (
        "timeout_s is 2, and the answer is not complete; state a longer time, or ask for fewer "
        "tokens"
    )
    assert bench.said(End, D) == bench.said(End, P) == [End(transfer=T, attempt=1)]
    assert bench.core.idle


def test_the_core_asks_to_be_woken_for_it() -> None:
    bench = Bench(alone=True)
    bench.submit(generate(timeout_s=0.3))
    assert bench.wake_at == 0.3


def test_time_is_up_for_every_sample_and_every_transfer() -> None:
    bench = Bench()
    bench.admitted(generate(n=2, timeout_s=1.0))
    bench.hear(tokens(run(0, 50), run(0, 60, sample=1)))
    bench.hear(failed())  # each goes on by itself
    assert len(bench.opened) == 2
    bench.tick(1.0)
    assert isinstance(bench.error, TimedOut)
    assert len(bench.said(End, D)) == 2
    assert bench.core.idle


def test_what_ends_in_time_is_forgotten() -> None:
    bench = Bench()
    bench.admitted(generate(timeout_s=1.0))
    bench.quit(R)
    assert bench.core.idle
    bench.tick(2.0)
    assert bench.error is None


def test_a_request_may_time_out_before_anybody_takes_it() -> None:
    bench = Bench()
    bench.submit(generate(timeout_s=0.5))
    bench.tick(0.5)
    assert isinstance(bench.error, TimedOut)
    bench.hear(accepted(), sender=P)
    bench.hear(accepted())
    assert not bench.did(Admitted)
