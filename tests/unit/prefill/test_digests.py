"""Each pair's heartbeat lists what its sender believes they share; differences are resolved."""

from common.engine.events import PeerDown, PeerUp
from common.ids import InstanceId, TransferId
from common.messages import (
    Failed,
    FailureKind,
    Gone,
    Handoff,
    Heartbeat,
    Listed,
    Phase,
    Resume,
    Resync,
    Tokens,
)
from tests.unit.prefill.builders import (
    Bench,
    D,
    G,
    T,
    accept,
    hello,
    listing,
    params,
    prefill,
    release,
)

U = TransferId("u")
WAITING, ACCEPTED, HANDED, DONE = Phase.WAITING, Phase.ACCEPTED, Phase.HANDED, Phase.DONE


def beat(bench: Bench, to: InstanceId) -> dict[str, Phase]:
    """What the next heartbeat lists."""
    bench.tick(2.0)
    (message,) = bench.said(Heartbeat, to)
    return {row.transfer: row.phase for row in message.transfers}


# --- ours ------------------------------------------------------------------------------------


def test_every_phase_has_its_line() -> None:
    bench = Bench()
    bench.hear(prefill(3), accept())
    assert beat(bench, G) == {T: WAITING}
    bench.hear(accept(), sender=D)
    assert beat(bench, G) == beat(bench, D) == {T: ACCEPTED}
    bench.done(50)
    assert beat(bench, G) == beat(bench, D) == {T: HANDED}
    bench.hear(release(), sender=D)
    assert beat(bench, G) == beat(bench, D) == {}


def test_computed_without_an_accept_is_waiting_and_not_decodes_to_know() -> None:
    bench = Bench()
    bench.computed(prefill(3), 50)
    assert beat(bench, G) == {T: WAITING}
    assert beat(bench, D) == {}


def test_an_answered_or_failed_one_is_done() -> None:
    bench = Bench()
    bench.computed(prefill(3, sampling=params(max_tokens=1)), 50)
    bench.hear(prefill(3, transfer=U))
    bench.raised("no memory")
    assert beat(bench, G) == {T: DONE, U: DONE}


def test_each_gateway_hears_of_its_own() -> None:
    other = InstanceId("gateway-2")
    bench = Bench(peers=(G, other, D))
    bench.hear(prefill(3))
    bench.hear(prefill(3, transfer=U), sender=other)
    bench.tick(2.0)
    lists = [
        [row.transfer for message in bench.said(Heartbeat, to) for row in message.transfers]
        for to in (G, other)
    ]
    assert lists == [[T], [U]]


def test_a_gateway_is_told_which_snapshot_was_its_last() -> None:
    bench = Bench()
    for number in (1, 2):
        bench.tick(1.0)
        bench.tick(1.0)
        assert [beat.snapshots for beat in bench.said(Heartbeat, G)] == [number]
        assert [beat.snapshots for beat in bench.said(Heartbeat, D)] == [None]
        bench.hear(Resync())


def test_heartbeats_come_four_times_a_second_while_something_is_shared() -> None:
    bench = Bench()
    bench.hear(prefill(3))
    bench.tick(1.0)
    assert len(bench.said(Heartbeat, G)) == len(bench.said(Heartbeat, D)) == 1
    bench.tick(0.25)
    assert (len(bench.said(Heartbeat, G)), len(bench.said(Heartbeat, D))) == (1, 0)
    bench.tick(0.75)
    assert (len(bench.said(Heartbeat, G)), len(bench.said(Heartbeat, D))) == (1, 1)


# --- the gateway's ---------------------------------------------------------------------------


def test_what_the_gateway_does_not_list_is_over() -> None:
    bench = Bench()
    bench.hear(prefill(3), prefill(3, transfer=U))
    bench.hear(listing((U, 1, WAITING)))
    bench.done(50, 51)
    assert {run.transfer for run in bench.runs} == {U}


def test_what_the_gateway_lists_and_is_not_here_is_gone() -> None:
    bench = Bench()
    bench.hear(listing((T, 3, WAITING)))
    assert bench.told(G)[0] == Gone(transfer=T, attempt=3)


def test_a_lost_prefill_of_the_next_attempt_ends_this_one_and_is_told() -> None:
    bench = Bench()
    bench.computed(prefill(3), 50)
    bench.hear(listing((T, 2, WAITING)))
    assert bench.said(Gone, G) == [Gone(transfer=T, attempt=2)]
    assert bench.core.idle


def test_lost_first_tokens_are_sent_again_at_the_second_complaint() -> None:
    bench = Bench()
    bench.computed(prefill(3, samples=(Resume(0, (9,)),)), 50)
    (first,) = bench.said(Tokens, G)
    row = (T, 1, WAITING)
    bench.hear(listing(row, had=1))
    assert not bench.said(Tokens)  # they may have been on their way
    bench.hear(listing(row, had=2))
    bench.hear(listing(row, had=1))
    assert not bench.said(Tokens)
    bench.hear(listing(row, had=1))
    assert bench.said(Tokens, G) == [first]


def test_a_failure_is_told_again_until_the_end() -> None:
    bench = Bench()
    bench.hear(prefill(3))
    bench.raised("no memory")
    failed = Failed(transfer=T, attempt=1, kind=FailureKind.COMPUTE, detail="no memory", alone=True)
    assert bench.said(Failed, G) == [failed]
    bench.hear(listing((T, 1, WAITING)))
    assert bench.said(Failed, G) == [failed]
    bench.hear(listing())
    assert bench.core.idle


# --- decode's --------------------------------------------------------------------------------


def handed(bench: Bench) -> Handoff:
    bench.hear(prefill(6))
    bench.hear(accept(), sender=D)
    bench.done(50)
    (message,) = bench.said(Handoff, D)
    return message


def test_a_lost_handoff_is_sent_again() -> None:
    bench = Bench()
    message = handed(bench)
    bench.hear(listing((T, 1, HANDED)), sender=D)
    assert not bench.told(D)
    bench.hear(listing((T, 1, ACCEPTED)), sender=D)
    assert bench.told(D) == [message]


def test_nothing_is_handed_over_before_it_is_computed() -> None:
    bench = Bench(chunk_tokens=4)
    bench.hear(prefill(6))
    bench.hear(accept(), sender=D)
    bench.hear(listing((T, 1, ACCEPTED)), sender=D)
    assert not bench.told(D)


def test_what_decode_does_not_list_has_been_released() -> None:
    bench = Bench()
    handed(bench)
    bench.hear(listing(), sender=D)
    assert bench.core.idle
    assert bench.pool.n_held == 0


def test_a_lease_that_lapses_before_the_end_leaves_the_prompt() -> None:
    bench = Bench(chunk_tokens=4)
    bench.hear(prefill(6))
    bench.hear(accept(), sender=D)
    bench.hear(listing(), sender=D)
    bench.done()
    assert not bench.told(D)
    bench.done(50)
    assert len(bench.runs) == 1


def test_what_decode_lists_and_is_not_here_is_gone() -> None:
    bench = Bench()
    bench.hear(listing((T, 1, ACCEPTED)), sender=D)
    assert bench.told(D) == [Gone(transfer=T, attempt=1)]


def test_a_lease_that_was_lost_on_this_side_alone_is_gone() -> None:
    """Decode was silent for us, and never knew."""
    bench = Bench(chunk_tokens=4)
    bench.hear(prefill(6))
    bench.hear(accept(), sender=D)
    bench.take(PeerDown(D), PeerUp(hello()))
    bench.hear(listing((T, 1, ACCEPTED)), sender=D)
    assert bench.told(D)[-1] == Gone(transfer=T, attempt=1)


def test_an_accept_that_was_lost_is_gone_until_it_is_repeated() -> None:
    bench = Bench()
    bench.hear(prefill(6))
    bench.hear(listing((T, 1, ACCEPTED)), sender=D)
    assert bench.said(Gone, D) == [Gone(transfer=T, attempt=1)]
    bench.hear(accept(), sender=D)
    bench.hear(listing((T, 1, ACCEPTED)), sender=D)
    assert not bench.said(Gone)


def test_what_is_answered_or_failed_is_the_gateways_to_end() -> None:
    bench = Bench()
    bench.hear(prefill(3, sampling=params(max_tokens=1)))
    bench.hear(accept(), sender=D)
    bench.done(50)
    bench.hear(listing((T, 1, ACCEPTED)), sender=D)
    assert not bench.told(D)


def test_a_stranger_is_told_nothing() -> None:
    bench = Bench()
    bench.hear(Heartbeat(transfers=(Listed(T, 1, ACCEPTED),)), sender=InstanceId("decode-2"))
    assert bench.actions == ()
