"""What the core says on its timer, what it answers to its peers' digests, and when it must wake."""

import pytest

from common.engine.events import PeerDown, PeerUp
from common.ids import InstanceId
from common.messages import (
    Accept,
    Gone,
    Heartbeat,
    Listed,
    Phase,
    PrefixCacheReset,
    Progress,
    Release,
    ResetPrefixCache,
    Resync,
    Snapshot,
)
from tests.unit.decode.builders import (
    Bench,
    G,
    P,
    T,
    U,
    ended,
    expect,
    handoff,
    hashes,
    hello,
    ready,
)

R1 = Release(transfer=T, attempt=1)


def quiet(bench: Bench) -> Bench:
    """Past the first snapshots and heartbeats."""
    bench.tick(0.5)
    bench.tick(0.5)
    return bench


def line(bench: Bench, to: InstanceId) -> list[Listed]:
    """What the next heartbeat lists."""
    for _ in range(5):
        bench.tick(0.25)
        for message in bench.said(Heartbeat, to):
            return list(message.transfers)
    raise AssertionError("no heartbeat")


# --- heartbeats ------------------------------------------------------------------------------


def test_every_peer_hears_a_heartbeat_a_second_and_four_when_something_is_shared() -> None:
    bench = quiet(Bench())
    bench.tick(1.0)
    assert len(bench.said(Heartbeat, G)) == len(bench.said(Heartbeat, P)) == 1
    assert bench.wake_at == pytest.approx(bench.now + 1.0)
    bench.hear(expect(prefill=None))
    bench.tick(1.0)
    assert len(bench.said(Heartbeat, G)) == 1
    assert bench.wake_at == pytest.approx(bench.now + 0.25)
    bench.tick(0.25)
    assert (len(bench.said(Heartbeat, G)), len(bench.said(Heartbeat, P))) == (1, 0)


def test_the_gateway_is_told_how_far_each_of_its_transfers_is() -> None:
    bench = Bench()
    bench.hear(expect(samples=2))
    assert line(bench, G) == [Listed(T, 1, Phase.ACCEPTED, ((0, 0), (1, 0)))]
    bench.hear(handoff(0, 1, tokens=(50, 51)), sender=P)
    assert line(bench, G) == [Listed(T, 1, Phase.HANDED, ((0, 1), (1, 1)))]


def test_the_gateway_is_told_of_every_phase() -> None:
    bench = Bench(n_pages=3)
    bench.hear(expect(prefill=None, max_tokens=2), expect(transfer="u"))
    assert [row.phase for row in line(bench, G)] == [Phase.DECODING, Phase.WAITING]
    bench.done(50)
    bench.done(51)
    assert line(bench, G)[0] == Listed(T, 1, Phase.DONE, ((0, 2),))


def test_the_prefill_side_is_told_what_is_accepted_and_not_released() -> None:
    bench = Bench()
    bench.hear(expect(), expect((7, 7), transfer="local", prefill=None))
    assert line(bench, P) == [Listed(T, 1, Phase.ACCEPTED)]
    bench.hear(ready(0), sender=P)
    assert len(bench.pull.copies) == 1
    assert line(bench, P) == [Listed(T, 1, Phase.ACCEPTED)]
    bench.hear(handoff(0, 1), sender=P)
    assert line(bench, P) == [Listed(T, 1, Phase.HANDED)]
    bench.hear(ended())
    assert line(bench, P) == []


def test_a_heartbeat_tells_of_the_running_step() -> None:
    bench = Bench()
    bench.hear(expect(prefill=None, max_tokens=9))
    bench.now += 0.5
    bench.done(50)
    bench.now += 2.0
    bench.take()
    (message,) = bench.said(Heartbeat, G)
    assert message.progress is not None
    assert message.progress == Progress(1, 2.0, message.progress.predicted_s)
    assert message.progress.predicted_s == pytest.approx(0.5 / 6)


def test_a_peer_that_is_down_is_told_nothing() -> None:
    bench = Bench()
    bench.take(PeerDown(P))
    bench.tick(5.0)
    assert not bench.said(Heartbeat, P)


# --- answers ---------------------------------------------------------------------------------


def test_a_gateways_transfer_that_is_not_here_is_gone() -> None:
    bench = Bench()
    bench.hear(expect())
    rows = (Listed(T, 1, Phase.WAITING), Listed(U, 3, Phase.WAITING))
    bench.hear(Heartbeat(transfers=rows))
    assert bench.said(Gone, G) == [Gone(transfer=U, attempt=3)]


def test_a_lost_expect_of_the_next_attempt_ends_this_one() -> None:
    bench = Bench()
    bench.hear(expect())
    bench.hear(Heartbeat(transfers=(Listed(T, 2, Phase.WAITING),)))
    assert bench.said(Gone, G) == [Gone(transfer=T, attempt=2)]
    assert bench.said(Release, P) == [R1]
    assert bench.core.idle


def test_a_gateway_that_has_forgotten_it_has_ended_it() -> None:
    bench = Bench()
    bench.hear(expect())
    bench.hear(Gone(transfer=T, attempt=1))
    assert bench.core.idle


def test_one_gateway_does_not_end_anothers() -> None:
    other = InstanceId("gateway-2")
    bench = Bench()
    bench.take(PeerUp(hello(other)))
    bench.hear(expect())
    bench.hear(Heartbeat(transfers=()), Gone(transfer=T, attempt=1), sender=other)
    assert not bench.core.idle


def test_what_a_prefill_side_keeps_for_nothing_is_released() -> None:
    bench = Bench()
    rows = (Listed(T, 1, Phase.ACCEPTED),)
    bench.hear(Heartbeat(transfers=rows), sender=P)
    assert bench.said(Release, P) == [R1]
    bench.decoding(expect(max_tokens=9), 0, 1)
    bench.hear(Heartbeat(transfers=rows), sender=P)  # the Release was lost
    assert bench.said(Release, P) == [R1]
    bench.hear(expect(attempt=2))
    bench.hear(Heartbeat(transfers=rows), sender=P)
    assert bench.said(Release, P) == [R1]


def test_what_is_still_wanted_is_not_released() -> None:
    bench = Bench()
    bench.hear(expect())
    bench.hear(Heartbeat(transfers=(Listed(T, 1, Phase.ACCEPTED),)), sender=P)
    bench.hear(Heartbeat(transfers=()), sender=P)
    assert bench.actions == ()


# --- snapshots -------------------------------------------------------------------------------


def test_a_new_gateway_is_told_everything() -> None:
    bench = Bench()
    bench.hear(expect(8, prefill=None, max_tokens=2))
    bench.done(50)
    bench.tick(0.05)
    bench.take(PeerUp(hello(InstanceId("gateway-2"))))
    (snapshot,) = bench.said(Snapshot, InstanceId("gateway-2"))
    assert (snapshot.sequence, snapshot.whole) == (1, True)
    assert snapshot.stored == hashes(8)
    assert (snapshot.n_pages, snapshot.free_pages) == (16, 13)
    assert (snapshot.running, snapshot.waiting, snapshot.queued_tokens) == (1, 0, 0)


def test_a_gateway_that_lost_count_is_told_everything() -> None:
    bench = quiet(Bench())
    bench.hear(Resync())
    (snapshot,) = bench.said(Snapshot, G)
    assert (snapshot.sequence, snapshot.whole) == (2, True)


def test_a_gateway_is_told_which_snapshot_was_its_last() -> None:
    bench = quiet(Bench())
    for number in (1, 2):
        bench.tick(1.0)
        assert [beat.snapshots for beat in bench.said(Heartbeat, G)] == [number]
        assert [beat.snapshots for beat in bench.said(Heartbeat, P)] == [None]
        bench.hear(Resync())


def test_what_was_computed_before_a_reset_is_found_no_more() -> None:
    bench = Bench()
    bench.hear(expect(9, prefill=None, max_tokens=1))
    bench.done(50)
    bench.hear(ended())
    bench.tick(0.5)
    bench.hear(ResetPrefixCache(number=7))
    assert bench.said(PrefixCacheReset, G) == [PrefixCacheReset(number=7)]
    bench.tick(0.5)
    (snapshot,) = bench.said(Snapshot, G)
    assert set(snapshot.removed) == set(hashes(8))
    bench.hear(expect(9, transfer="again"))
    (accept,) = bench.said(Accept, P)
    assert accept.held == ()


def test_news_are_told_at_most_every_50_ms_and_at_once_when_work_begins() -> None:
    bench = quiet(Bench())
    bench.hear(expect(8, prefill=None, max_tokens=9))
    (snapshot,) = bench.said(Snapshot, G)
    assert (snapshot.running, snapshot.whole, snapshot.queued_tokens) == (1, False, 7)
    bench.done(50)
    assert not bench.said(Snapshot)
    assert bench.wake_at == pytest.approx(bench.now + 0.05)
    bench.done(51)
    bench.tick(0.05)
    (snapshot,) = bench.said(Snapshot, G)
    assert (snapshot.stored, snapshot.removed, snapshot.free_pages) == (hashes(8), (), 13)
    bench.tick(0.05)
    assert not bench.said(Snapshot)


def test_load_counts_what_is_on_its_way_and_what_waits() -> None:
    bench = quiet(Bench(n_pages=4))
    bench.hear(expect(), expect(9, transfer="u", prefill=None), expect(transfer="v"))
    (snapshot,) = bench.said(Snapshot, G)
    assert (snapshot.running, snapshot.waiting, snapshot.queued_tokens) == (1, 2, 9)


def test_an_idle_core_sleeps_until_its_heartbeats() -> None:
    bench = Bench(peers=())
    assert bench.take() == ()
    assert bench.wake_at is None
    bench.take(PeerUp(hello(P)))
    assert bench.wake_at == 1.0
