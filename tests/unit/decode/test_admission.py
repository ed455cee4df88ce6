from common.engine.events import Connect, Drain, Note, PeerDown, PeerUp
from common.ids import InstanceId
from common.messages import Accept, Accepted, Failed, Heartbeat, Refused, Release, Resume
from tests.unit.decode.builders import (
    Bench,
    Blind,
    G,
    P,
    T,
    ended,
    expect,
    handoff,
    hello,
    peer,
    ready,
)

A1 = Accepted(transfer=T, attempt=1)


def test_an_expect_is_accepted_and_accepted_again() -> None:
    bench = Bench()
    bench.hear(expect())
    assert bench.said(Accepted, G) == [A1]
    assert bench.did(Note)[0] == Note(T, 1, "queued", {"tokens": 6})
    bench.hear(expect())
    assert bench.said(Accepted, G) == [A1]
    assert not bench.did(Note)
    assert not bench.said(Accept)


def test_an_older_attempt_is_dropped() -> None:
    bench = Bench()
    bench.hear(expect(attempt=2))
    bench.hear(expect(attempt=1))
    assert bench.actions == ()
    assert bench.core.stale_messages == 1


def test_a_newer_attempt_ends_the_older_whose_full_pages_stay() -> None:
    bench = Bench()
    bench.hear(expect(9))
    bench.hear(ready(0, 1), sender=P)
    bench.pulled()
    bench.hear(expect(9, attempt=2))
    assert bench.said(Release, P) == [Release(transfer=T, attempt=1)]
    (accept,) = bench.said(Accept, P)
    assert (accept.attempt, len(accept.held)) == (2, 2)


def test_what_never_fits_is_refused_without_a_time() -> None:
    bench = Bench(n_pages=2)
    bench.hear(expect(6, max_tokens=4))
    assert bench.said(Refused, G) == [
        Refused(
            transfer=T,
            attempt=1,
            reason="3 pages of 2 that the KV cache has",
            retry_after_s=None,
        )
    ]
    bench.take(Drain())
    bench.hear(expect(6, max_tokens=4))
    assert bench.said(Refused, G)[0].retry_after_s is None
    assert bench.core.idle


def test_a_full_queue_refuses_with_a_time() -> None:
    bench = Bench(n_pages=3, max_waiting=2)
    for n in range(3):
        bench.hear(expect(transfer=f"t{n}"))  # the first has the room, two wait
    bench.hear(expect(transfer="t3"))
    assert bench.said(Refused, G)[0].retry_after_s == 1.0


def test_a_draining_worker_finishes_what_it_has() -> None:
    bench = Bench()
    bench.hear(expect(prefill=None, max_tokens=2))
    bench.take(Drain())
    bench.hear(expect(transfer="u"))
    (refused,) = bench.said(Refused, G)
    assert (refused.reason, refused.retry_after_s) == ("draining", 1.0)
    bench.done(50)
    bench.done(51)
    bench.hear(ended())
    assert bench.core.idle


def test_claims_not_pages_are_given_out() -> None:
    bench = Bench(n_pages=16)
    bench.hear(expect(6, max_tokens=4))  # 2 now, 1 to finish
    assert bench.pool.n_held == 0
    assert bench.core.check() is None


def test_the_room_that_one_sequence_needs_to_finish_is_not_given_out() -> None:
    bench = Bench(n_pages=16, max_num_seqs=8, foresight=Blind())
    for n in range(5):
        bench.hear(expect(6, transfer=f"t{n}", max_tokens=20))  # 2 now, 5 more to finish
    assert [len(bench.said(Accept, P))] == [1]  # t4: 5 x 2 + 5 = 15 of 16
    bench.hear(expect(6, transfer="t5", max_tokens=20))
    assert not bench.said(Accept)


def said(bench: Bench, transfer: str, n_said: int) -> None:
    """Take a local request of one sample to its end."""
    bench.hear(expect(1, transfer=transfer, prefill=None, max_tokens=30, end=(99,)))
    for _ in range(n_said - 1):
        bench.done(50)
    bench.done(99)
    bench.hear(ended(transfer))


def test_nobody_is_let_in_who_would_not_fit_until_all_have_ended() -> None:
    bench = Bench(n_pages=16, cache=False)
    for n in range(3):
        bench.hear(expect(6, transfer=f"t{n}", max_tokens=20))  # 2 pages now, 7 in the end
    assert not bench.said(Accept)  # 14 of 16, and nothing is known of lengths yet
    bench.hear(ended("t0"))
    assert [a.transfer for a in bench.said(Accept, P)] == ["t2"]


def test_lengths_are_learnt_from_those_that_ended() -> None:
    bench = Bench(n_pages=16, cache=False)
    for n in range(40):
        said(bench, f"s{n}", 3)
    for n in range(5):
        bench.hear(expect(6, transfer=f"t{n}", max_tokens=20))  # 2 pages, if it says 3 tokens
    assert [a.transfer for a in bench.said(Accept, P)] == ["t4"]  # 5 x 2, and 5 for one to go on


def test_a_sequence_that_the_gateway_ends_has_said_what_it_has() -> None:
    bench = Bench(n_pages=16, cache=False)
    for n in range(40):
        bench.hear(expect(1, transfer=f"s{n}", prefill=None, max_tokens=30))
        bench.done(50)
        bench.hear(ended(f"s{n}"))
        bench.done(50)
    for n in range(3):
        bench.hear(expect(6, transfer=f"t{n}", max_tokens=20))
    assert [a.transfer for a in bench.said(Accept, P)] == ["t2"]


def test_one_that_is_cut_off_says_nothing_of_longer_ones() -> None:
    bench = Bench(n_pages=16, cache=False)
    for n in range(40):
        bench.hear(expect(1, transfer=f"s{n}", prefill=None, max_tokens=1))
        bench.done(50)
        bench.hear(ended(f"s{n}"))
    for n in range(3):
        bench.hear(expect(6, transfer=f"t{n}", max_tokens=20))
    assert not bench.said(Accept)


def test_pages_that_are_shared_are_forecast_once() -> None:
    """7 pages each in the end, of which 3 are the same: 3 + 3 x 4 of 15."""
    bench = Bench(n_pages=15, chunk_tokens=16)
    for n in range(3):
        bench.hear(expect(16, transfer=f"t{n}", prefill=None, max_tokens=12))
    bench.done(50)
    bench.done(50, 50)
    assert [d.transfer for d in bench.plan.draws] == ["t0", "t1", "t2"]


def test_whoever_is_parked_holds_nobody_up() -> None:
    bench = Bench(n_pages=10, peers=(G, InstanceId("gateway-2"), P), cache=False)
    bench.hear(Heartbeat(transfers=(), credit_tokens=1))
    bench.hear(expect(6, transfer="parked", prefill=None, max_tokens=20))  # 7 pages in the end
    bench.done(50)
    assert bench.launched is None
    bench.hear(expect(6, transfer="other", max_tokens=10), sender=InstanceId("gateway-2"))
    assert [a.transfer for a in bench.said(Accept, P)] == ["other"]


def test_the_first_in_line_is_not_passed_by_one_as_large() -> None:
    bench = Bench(n_pages=8)
    bench.hear(expect(6, transfer="running", max_tokens=4))
    bench.hear(expect(25, transfer="large", max_tokens=4))
    bench.hear(expect(25, transfer="larger", max_tokens=5))
    assert not bench.said(Accept)
    bench.hear(ended("running"))
    assert [a.transfer for a in bench.said(Accept, P)] == ["large"]


def test_one_that_takes_more_memory_is_passed_until_it_is_its_turn() -> None:
    """7 pages x 1 pass of 8: 7 passes. A small one's turn comes after 1."""
    bench = Bench(n_pages=8, cache=False)
    bench.hear(expect(1, transfer="running", prefill=None, max_tokens=20))
    bench.hear(expect(25, transfer="large", max_tokens=1))
    let_in: list[bool] = []
    for n in range(10):
        bench.hear(expect(1, transfer=f"small-{n}", max_tokens=1))
        let_in.append(bool(bench.said(Accept, P)))
        bench.hear(ended(f"small-{n}"))
        bench.done(50)
    assert let_in == [True] * 6 + [False] * 4


def test_recovering_before_new() -> None:
    bench = Bench(n_pages=8)
    bench.hear(expect(25, transfer="first", max_tokens=4))
    bench.hear(expect(25, transfer="new", max_tokens=4))
    bench.hear(expect(25, transfer="recovering", attempt=2, max_tokens=4))
    bench.hear(ended("first"))
    assert [a.transfer for a in bench.said(Accept, P)] == ["recovering"]


def test_preempted_before_recovering() -> None:
    bench = Bench(n_pages=8, cache=False, foresight=Blind())
    bench.hear(expect(8, transfer="t1", prefill=None, max_tokens=13))
    bench.done(50)
    bench.hear(expect(8, transfer="t2", prefill=None, max_tokens=13))
    bench.hear(expect(8, transfer="t3", attempt=2, prefill=None, max_tokens=2))
    while not [note for note in bench.did(Note) if note.name == "preempted"]:
        bench.done(*(60 for _ in bench.plan.draws))
    bench.hear(ended("t1"))
    bench.done(70)
    begun = [
        (n.transfer, n.name) for n in bench.did(Note) if n.name in ("resumed", "context_begin")
    ]
    assert begun == [("t2", "resumed"), ("t3", "context_begin")]


def test_pages_that_are_shared_need_no_room() -> None:
    bench = Bench(n_pages=8, max_num_seqs=1)
    bench.hear(expect(20, prefill=None, max_tokens=2))  # 6 of 8
    while bench.launched:
        bench.done(*(50 for _ in bench.plan.draws))
    bench.hear(expect(20, transfer="u", samples=(Resume(0, (50,)),), max_tokens=4))
    (accept,) = bench.said(Accept, P)
    assert len(accept.held) == 5


def test_in_flight_are_at_most_a_quarter_more_than_a_pass_takes() -> None:
    bench = Bench(n_pages=99, max_num_seqs=4, max_waiting=9)
    for n in range(6):
        bench.hear(expect(2, transfer=f"t{n}", max_tokens=2))
    assert not bench.said(Accept)
    bench.hear(ended("t0"))
    assert [a.transfer for a in bench.said(Accept)] == ["t5"]


def test_a_prefill_side_that_went_down_is_called_when_its_turn_has_come() -> None:
    bench = Bench(n_pages=8)
    bench.hear(expect(25, transfer="first", max_tokens=4))
    bench.hear(expect(25, transfer="second", max_tokens=4))
    bench.take(PeerDown(P))
    assert [failed.transfer for failed in bench.said(Failed)] == ["first"]
    assert bench.did(Connect) == [Connect(peer())]  # for the second
    assert not bench.said(Accept)
    bench.take(PeerUp(hello()))
    assert [a.transfer for a in bench.said(Accept)] == ["second"]


def test_room_for_what_each_sample_says_next_is_kept_when_they_join() -> None:
    bench = Bench(n_pages=8, cache=False)
    bench.hear(expect(4, transfer="running", prefill=None, max_tokens=4))  # 2 pages in all
    bench.done(50)
    bench.hear(expect(4, samples=3))
    bench.hear(handoff(0, n_tokens=4, tokens=(50, 51, 52)), sender=P)
    bench.pulled()  # 1 page, and 3 more with the next pass; one is running
    bench.hear(expect(12, transfer="large", max_tokens=1), expect(8, transfer="small"))
    assert not bench.said(Accept)
    bench.hear(ended("large"))
    assert not bench.said(Accept)  # 3 with its next token
    bench.hear(ended("small"), expect(8, transfer="smaller", max_tokens=1))
    assert [a.transfer for a in bench.said(Accept)] == ["smaller"]


def test_a_stranger_is_connected_to_first() -> None:
    stranger = InstanceId("prefill-2")
    bench = Bench()
    bench.hear(expect(prefill=stranger))
    assert bench.did(Connect) == [Connect(peer(stranger))]
    assert not bench.said(Accept)


def test_a_handoff_frees_no_room_before_it_joins() -> None:
    bench = Bench(n_pages=4)
    bench.hear(expect(6, max_tokens=4))
    bench.hear(handoff(0, 1), sender=P)
    assert bench.pool.n_held == 2
    assert len(bench.pull.copies) == 2
