"""A request from the client's prompt to the workers' last word, when nothing goes wrong."""

from dataclasses import replace

import pytest

from common.engine.events import Note, PeerDown, PeerUp
from common.errors import ClientError, ContextOverflow, Overloaded
from common.ids import Role
from common.messages import (
    Ack,
    End,
    Heartbeat,
    Limits,
    Listed,
    Phase,
    Resume,
    Resync,
    TokensAck,
)
from launch.gateway.acks import ACK_EVERY_S
from launch.gateway.attempts import GatewayOptions
from launch.gateway.transfers import Fields
from tests.unit.gateway.builders import (
    D2,
    LENGTH,
    P2,
    Bench,
    D,
    P,
    R,
    T,
    accepted,
    generate,
    hello,
    limits,
    listing,
    peer,
    refused,
    run,
    snapshot,
    tokens,
)


def test_a_prompt_is_sent_to_both_sides_at_once() -> None:
    bench = Bench()
    bench.submit(generate(n_prompt=3, n=2))
    samples = (Resume(0), Resume(1))
    prefill, expect = bench.prefill, bench.expect
    assert (prefill.transfer, prefill.attempt, prefill.prompt) == (T, 1, (1, 2, 3))
    assert (prefill.samples, prefill.decode) == (samples, D)
    assert (expect.transfer, expect.attempt, expect.prompt) == (T, 1, (1, 2, 3))
    assert (expect.samples, expect.prefill) == (samples, peer(P))
    route = {"decision": "remote", "reason": "flag"}
    assert bench.did(Note) == [
        Note(T, 0, "received", {"request": R}),
        Note(T, 1, "routed", {"request": R, **route, "prefill": P, "decode": D}),
    ]


def test_it_is_admitted_when_both_have_accepted() -> None:
    bench = Bench()
    bench.submit()
    bench.hear(accepted(), sender=P)
    bench.hear(accepted(), sender=P)
    assert not bench.is_admitted
    bench.hear(accepted())
    assert bench.is_admitted
    bench.hear(accepted())
    assert not bench.is_admitted


def test_a_local_prompt_is_admitted_by_decode_alone() -> None:
    bench = Bench(D)
    bench.submit()
    assert bench.opened == [(T, 1, None, D)]
    bench.hear(accepted())
    assert bench.is_admitted


def test_a_token_says_as_much_as_an_accepted() -> None:
    bench = Bench()
    bench.submit()
    bench.hear(tokens(run(0, 50)), sender=P)
    assert bench.is_admitted
    bench = Bench()
    bench.submit()
    bench.hear(tokens(run(0, 50)))
    assert bench.is_admitted


def test_so_does_a_line_of_the_workers_digest() -> None:
    bench = Bench()
    bench.submit()
    bench.hear(listing((T, 1, Phase.WAITING)), sender=P)
    bench.hear(listing((T, 1, Phase.WAITING)))
    assert bench.is_admitted


# --- tokens ----------------------------------------------------------------------------------


def test_tokens_reach_the_client_once_and_in_order() -> None:
    bench = Bench()
    bench.admitted()
    bench.hear(tokens(run(0, 50, cached=4)), sender=P)
    assert bench.given == [(0, 0, (50,), None)]
    assert bench.deltas[0].cached_tokens == 4
    assert bench.notes == ["first_token"]
    bench.hear(tokens(run(0, 50, cached=4), run(1, 51)))
    assert bench.given == [(0, 1, (51,), None)]
    bench.hear(tokens(run(0, 50, 51, 52), run(1, 51, 52), run(3, 53, finish=LENGTH)))
    assert bench.given == [(0, 2, (52,), None), (0, 3, (53,), LENGTH)]
    bench.hear(tokens(run(0, 50)))
    assert bench.given == []


def test_whichever_copy_of_the_first_token_comes_first_counts() -> None:
    bench = Bench()
    bench.admitted()
    bench.hear(tokens(run(0, 50, 51, cached=4)))
    assert bench.given == [(0, 0, (50, 51), None)]
    bench.hear(tokens(run(0, 50, cached=4)), sender=P)
    assert bench.given == []


def test_a_gap_is_not_filled_with_what_follows() -> None:
    bench = Bench()
    bench.admitted()
    bench.hear(tokens(run(1, 51)))
    assert bench.given == []
    bench.hear(tokens(run(0, 50, 51)))
    assert bench.given == [(0, 0, (50, 51), None)]


def test_samples_are_counted_by_themselves() -> None:
    bench = Bench()
    bench.admitted(generate(n=2))
    bench.hear(tokens(run(0, 50), run(0, 60, sample=1)), sender=P)
    bench.hear(tokens(run(1, 61, sample=1), run(1, 51)))
    assert bench.given == [(1, 1, (61,), None), (0, 1, (51,), None)]


def test_tokens_of_an_older_attempt_of_no_worker_or_of_no_sample_are_dropped() -> None:
    bench = Bench()
    bench.admitted()
    bench.hear(tokens(run(0, 50, attempt=0), run(0, 50, transfer="?"), run(0, 50, sample=7)))
    assert bench.given == []
    assert bench.core.stale_messages == 3
    bench.hear(tokens(run(0, 50)), sender=D2)
    assert bench.given == []


def test_the_last_token_ends_it_everywhere() -> None:
    bench = Bench()
    bench.admitted(generate(n=2))
    bench.hear(tokens(run(0, 50, finish=LENGTH), run(0, 60, sample=1)))
    assert not bench.said(End)
    bench.hear(tokens(run(1, 61, sample=1, finish=LENGTH)))
    end = End(transfer=T, attempt=1)
    assert bench.said(End, P) == bench.said(End, D) == [end]
    assert bench.core.idle
    assert bench.notes == ["finished"]


def test_a_request_may_end_with_the_prefill_sides_token() -> None:
    bench = Bench()
    bench.submit()
    bench.hear(tokens(run(0, 50, finish=LENGTH)), sender=P)
    assert bench.given == [(0, 0, (50,), LENGTH)]
    assert len(bench.said(End, D)) == 1
    assert bench.core.idle


# --- acknowledgements ------------------------------------------------------------------------


def test_tokens_are_acknowledged_together_after_a_moment() -> None:
    bench = Bench()
    bench.admitted(generate(n=2))
    bench.hear(tokens(run(0, 50, 51), run(0, 60, sample=1)))
    bench.hear(tokens(run(2, 52)))
    assert not bench.said(TokensAck)
    assert bench.wake_at == ACK_EVERY_S
    bench.tick(ACK_EVERY_S)
    acks = (Ack(T, 1, 0, 3), Ack(T, 1, 1, 1))
    assert bench.said(TokensAck, D) == [TokensAck(acks=acks)]
    bench.tick(ACK_EVERY_S)
    assert not bench.said(TokensAck)


def test_what_comes_beyond_a_gap_is_not_acknowledged() -> None:
    bench = Bench()
    bench.admitted()
    bench.hear(tokens(run(1, 51)))
    bench.tick(ACK_EVERY_S)
    assert bench.said(TokensAck, D) == [TokensAck(acks=(Ack(T, 1, 0, 0),))]


def test_tokens_of_a_stopped_sample_are_acknowledged_and_not_given() -> None:
    bench = Bench()
    bench.admitted(generate(n=2))
    bench.hear(tokens(run(0, 50), run(0, 60, sample=1)))
    bench.stop(sample=0)
    bench.hear(tokens(run(1, 51), run(1, 61, sample=1)))
    bench.hear(tokens(run(2, 52)))
    assert bench.given == []
    bench.tick(1.0)
    assert bench.said(TokensAck, D) == [TokensAck(acks=(Ack(T, 1, 0, 3), Ack(T, 1, 1, 2)))]
    (beat,) = bench.said(Heartbeat, D)
    assert beat.transfers[0].next_index == ((0, 3), (1, 2))


# --- clients ---------------------------------------------------------------------------------


def test_a_client_that_leaves_ends_its_request() -> None:
    bench = Bench()
    bench.admitted()
    bench.quit()
    assert (len(bench.said(End, P)), len(bench.said(End, D))) == (1, 1)
    assert bench.notes == ["aborted"]
    assert bench.core.idle
    bench.quit()
    assert bench.actions == ()


def test_when_every_sample_is_stopped_or_over_the_request_ends() -> None:
    bench = Bench()
    bench.admitted(generate(n=3))
    bench.hear(tokens(run(0, 50, finish=LENGTH)))
    bench.stop(sample=1)
    assert not bench.said(End)
    bench.stop(sample=2)
    assert len(bench.said(End, D)) == 1
    assert bench.notes == ["finished"]


def test_beyond_the_bound_a_request_is_refused_before_anything_is_done() -> None:
    bench = Bench(options=GatewayOptions(max_requests=1))
    bench.submit()
    bench.submit(generate("second"))
    assert bench.opened == []
    assert isinstance(bench.error, Overloaded)
    assert bench.error.retry_after_s == 1.0
    assert bench.core.n_requests == 1


def test_what_never_fits_is_the_clients_fault() -> None:
    bench = Bench()
    bench.submit()
    bench.hear(refused(retry_after_s=None))
    assert isinstance(bench.error, ClientError)
    assert str(bench.error) == "The request does not fit: full."
    assert bench.error.param == "prompt"
    assert len(bench.said(End, P)) == 1
    assert bench.core.idle


@pytest.mark.parametrize(
    ("bounds", "most", "param"),
    [
        (limits(max_model_len=14), 14, "max_completion_tokens"),
        (limits(max_model_len=10), 10, "messages"),
        (limits(n_pages=3), 13, "max_completion_tokens"),  # KV of 12, and one more
        (limits(n_pages=2), 9, "messages"),
    ],
)
def test_it_is_told_which_field_its_value_and_the_limit(
    bounds: Limits, most: int, param: str
) -> None:
    bench = Bench(alone=True)
    for worker in (P, D):
        bench.up(worker, bounds)
    asked = generate(n_prompt=10, max_tokens=5)
    fields = Fields(prompt="messages", max_tokens="max_completion_tokens")
    bench.submit(replace(asked, fields=fields))
    bench.hear(refused(retry_after_s=None))
    assert isinstance(bench.error, ContextOverflow)
    assert bench.error.param == param
    for value in (f"{most} tokens", "10 tokens of prompt", "5 of output"):
        assert value in str(bench.error)


# --- digests and snapshots -------------------------------------------------------------------


def test_what_is_in_flight_is_listed_to_whom_it_concerns() -> None:
    bench = Bench(P, P2, D)
    bench.admitted()
    bench.hear(tokens(run(0, 50)), sender=P)
    bench.tick(1.0)
    lines = {to: bench.said(Heartbeat, to)[0].transfers for to in (P, P2, D)}
    line = Listed(T, 1, Phase.WAITING, ((0, 1),))
    assert lines == {P: (line,), P2: (), D: (line,)}
    bench.hear(listing((T, 1, Phase.DECODING)))
    bench.tick(1.0)
    assert bench.said(Heartbeat, D)[0].transfers == (Listed(T, 1, Phase.HANDED, ((0, 1),)),)


def test_credit_is_granted_with_every_heartbeat() -> None:
    bench = Bench(options=GatewayOptions(credit_tokens=77))
    bench.tick(1.0)
    assert [beat.credit_tokens for beat in bench.said(Heartbeat)] == [77, 77]


def test_what_a_worker_lists_in_vain_is_ended() -> None:
    bench = Bench(P, P2, D)
    bench.admitted()
    bench.hear(listing((T, 1, Phase.WAITING), ("?", 4, Phase.WAITING)), sender=P2)
    assert bench.said(End, P2) == [
        End(transfer=T, attempt=1),
        End(transfer=listing(("?", 4, Phase.WAITING)).transfers[0].transfer, attempt=4),
    ]
    bench.hear(listing((T, 0, Phase.DECODING)))
    assert bench.said(End, D) == [End(transfer=T, attempt=0)]


def test_a_missed_snapshot_is_asked_for() -> None:
    bench = Bench()
    bench.hear(snapshot(2, whole=False))
    assert not bench.said(Resync)
    bench.hear(snapshot(4, whole=False))
    assert bench.said(Resync, D) == [Resync()]


def test_a_last_snapshot_that_was_missed_is_asked_for_until_it_comes() -> None:
    """Nothing follows it that would show a gap."""
    bench = Bench()
    bench.hear(Heartbeat(transfers=(), snapshots=1))
    assert not bench.said(Resync)
    for _ in range(2):
        bench.hear(Heartbeat(transfers=(), snapshots=2))
        assert bench.said(Resync, D) == [Resync()]
    bench.hear(snapshot(3), Heartbeat(transfers=(), snapshots=3))
    assert not bench.said(Resync)


def test_a_first_snapshot_that_was_missed_is_asked_for() -> None:
    bench = Bench()
    bench.take(PeerDown(D), PeerUp(hello(D)))
    bench.hear(Heartbeat(transfers=(), snapshots=0))
    assert not bench.said(Resync)
    bench.hear(Heartbeat(transfers=(), snapshots=4))
    assert bench.said(Resync, D) == [Resync()]


def test_workers_are_counted_by_role() -> None:
    assert Bench(P, P2, D).core.ready() == {Role.PREFILL: 2, Role.DECODE: 1}


def test_a_prompt_that_is_computed_weighs_on_its_prefill_worker_no_more() -> None:
    bench = Bench(P, P2, D)
    bench.submit(generate("long", n_prompt=300))
    bench.submit(generate("b"))
    assert bench.opened[0][2] == P2
    bench.hear(tokens(run(0, 50)), sender=P)
    bench.submit(generate("c"))
    assert bench.opened[0][2] == P  # P2 still has 6 tokens to compute, P none
