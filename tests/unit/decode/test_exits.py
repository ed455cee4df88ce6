"""Whatever ends a transfer, its pages come back, each behind what may still write it."""

from common.engine.events import Cancel, Note, PeerDown, TicketFinal
from common.messages import Failed, FailureKind, Handoff, Heartbeat, Listed, Phase, Release
from common.params import FinishReason
from tests.unit.decode.builders import Bench, G, P, T, U, ended, expect, handoff, hashes, ready, run

R1 = Release(transfer=T, attempt=1)


def aborted(tokens: int = 0) -> Note:
    return Note(T, 1, "aborted", {"tokens": tokens})


def test_an_end_of_what_is_not_known_is_nothing() -> None:
    bench = Bench()
    bench.hear(ended())
    assert bench.actions == ()


def test_an_end_in_the_queue() -> None:
    bench = Bench(n_pages=3)
    bench.hear(expect(transfer="first"), expect())
    bench.hear(ended())
    assert bench.actions[0] == aborted()
    assert not bench.said(Release)  # there was no Accept


def test_an_end_after_the_accept_releases() -> None:
    bench = Bench()
    bench.hear(expect())
    bench.hear(ended())
    assert bench.said(Release, P) == [R1]
    assert bench.core.idle


def test_an_end_while_a_pull_may_write_keeps_its_pages_until_the_ticket_is_final() -> None:
    bench = Bench()
    bench.hear(expect(15))
    bench.hear(ready(0), sender=P)
    bench.pulled()
    bench.hear(ready(0, 1, 2), sender=P)
    ticket = bench.pull.ticket
    bench.hear(ended())
    assert bench.did(Cancel) == [Cancel(ticket)]
    assert bench.said(Release, P) == [R1]
    assert bench.pool.n_held == 2  # the validated one is cached
    assert not bench.core.idle
    bench.take(TicketFinal(ticket, ok=True))
    assert bench.pool.n_held == 0
    assert bench.pool.n_cached == 1
    assert bench.core.idle


def test_an_end_while_a_pass_may_write_keeps_its_pages_until_the_step_is_final() -> None:
    bench = Bench()
    bench.decoding(expect(6, max_tokens=9), 0, 1)
    bench.hear(ended(), ended())
    assert bench.did(Note) == [aborted(1)]
    assert bench.pool.n_held == 2
    bench.done(51)
    assert bench.runs == []
    assert bench.pool.n_held == 0


def test_an_end_of_an_older_attempt_touches_nothing() -> None:
    bench = Bench()
    bench.hear(expect(attempt=2))
    bench.hear(ended(attempt=1))
    bench.hear(handoff(0, 1, attempt=2), sender=P)
    assert bench.runs == [run(0, 50, attempt=2, cached=0)]


def test_an_end_of_a_later_attempt_ends_what_is_here() -> None:
    bench = Bench()
    bench.hear(expect())
    bench.hear(ended(attempt=2))
    assert bench.core.idle


def test_an_end_of_what_is_done_is_no_abort() -> None:
    bench = Bench()
    bench.hear(expect(prefill=None, max_tokens=1))
    bench.done(50)
    assert bench.did(Note)[-1] == Note(T, 1, "decoding_end", {"tokens": 1})
    assert bench.pool.n_held == 0
    bench.hear(ended())
    assert bench.did(Note) == []
    assert bench.core.idle


def test_an_end_before_the_copies_were_made_gives_all_samples_pages_back() -> None:
    bench = Bench(max_num_seqs=2)
    bench.hear(expect(samples=2))
    bench.hear(handoff(0, 1, tokens=(50, 51)), sender=P)
    bench.pulled()
    assert len(bench.plan.copies) == 1
    bench.hear(ended())
    assert bench.pool.n_held == 3
    bench.done(60, 61)
    assert bench.pool.n_held == 0


def test_a_pass_that_raised_fails_what_was_in_it() -> None:
    bench = Bench(max_num_seqs=1, max_num_batched_tokens=8)
    bench.hear(expect(prefill=None))
    bench.hear(expect(9, transfer="u", prefill=None))
    bench.raised("out of memory")
    failed = Failed(
        transfer=T, attempt=1, kind=FailureKind.COMPUTE, detail="out of memory", alone=True
    )
    assert bench.said(Failed, G) == [failed]
    assert bench.pool.lookup(hashes(9)[0]) is None  # what it wrote is not to be trusted
    assert bench.plan.tokens_T.tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    bench.hear(ended())
    assert not bench.did(Note)
    assert bench.said(Release) == []


def test_all_samples_of_a_transfer_fail_together() -> None:
    bench = Bench()
    bench.hear(expect(samples=2))
    bench.hear(handoff(0, 1, tokens=(50, 51)), sender=P)
    bench.pulled()
    bench.raised("raised")
    assert len(bench.said(Failed, G)) == 1
    assert bench.pool.n_held == 0


def test_a_lost_gateway_takes_its_transfers_along() -> None:
    bench = Bench()
    bench.decoding(expect(6, max_tokens=9), 0, 1)
    bench.hear(expect(9, transfer="u"), expect(9, transfer="v", prefill=None))
    bench.take(PeerDown(G))
    assert bench.said(Release, P) == [Release(transfer=U, attempt=1)]
    bench.done(51)
    assert bench.core.idle
    assert bench.pool.n_held == 0


def test_a_finished_sequence_gives_its_pages_back_and_keeps_its_tokens() -> None:
    bench = Bench()
    bench.decoding(expect(6, max_tokens=2), 0, 1)
    bench.done(51)
    assert bench.runs == [run(1, 51, finish=FinishReason.LENGTH)]
    assert bench.pool.n_held == 0
    assert not bench.core.idle


def test_a_gateway_that_lists_it_no_more_has_ended_it() -> None:
    bench = Bench()
    bench.hear(expect(), expect(transfer="u"))
    bench.hear(Heartbeat(transfers=(Listed(U, 1, Phase.WAITING),)))
    assert bench.said(Release, P) == [R1]
    bench.hear(Heartbeat(transfers=()))
    assert bench.core.idle


def test_handoffs_of_many_shapes_leave_nothing() -> None:
    bench = Bench(n_pages=40)
    for n_tokens in range(1, 13):
        pages = tuple(range(-(-n_tokens // 4)))
        bench.decoding(expect(n_tokens, max_tokens=3), *pages)
        message = handoff(*pages, n_tokens=n_tokens)
        assert isinstance(message, Handoff)
        while bench.launched:
            bench.done(*(60 for _ in bench.plan.draws))
        bench.hear(ended())
        assert bench.core.idle
    assert bench.pool.n_held == 0
