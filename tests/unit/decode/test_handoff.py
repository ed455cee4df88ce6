from msgspec import structs

from common.engine.events import (
    Cancel,
    Connect,
    Note,
    PeerBarred,
    PeerDown,
    PeerUp,
    Pull,
    TicketFinal,
)
from common.ids import InstanceId, PageId, TicketId
from common.messages import (
    Accept,
    Failed,
    FailureKind,
    Gone,
    HandedToken,
    Heartbeat,
    Listed,
    PageRef,
    Phase,
    Release,
    Resume,
)
from common.params import FinishReason
from tests.unit.decode.builders import (
    Bench,
    G,
    P,
    T,
    ended,
    expect,
    handoff,
    hashes,
    hello,
    ready,
    refs,
    region,
    run,
)

R1 = Release(transfer=T, attempt=1)
OVER = HandedToken(0, 50, FinishReason.STOP, None)


def failed(kind: FailureKind, detail: str) -> Failed:
    return Failed(transfer=T, attempt=1, kind=kind, detail=detail, peer=P)


# --- the Accept ------------------------------------------------------------------------------


def test_the_accept_goes_out_when_the_prefill_side_is_up() -> None:
    bench = Bench(peers=(G,))
    bench.hear(expect())
    assert [c.peer.instance for c in bench.did(Connect)] == [P]
    bench.take(PeerUp(hello(P)))
    assert bench.said(Accept, P) == [Accept(transfer=T, attempt=1, held=())]


def test_the_accept_is_repeated_at_doubling_times_until_it_is_answered() -> None:
    bench = Bench()
    bench.hear(expect())
    at = []
    while len(at) < 6:
        assert bench.wake_at is not None
        bench.tick(bench.wake_at - bench.now)
        at += [round(bench.now, 3)] * len(bench.said(Accept, P))
    assert at == [0.05, 0.15, 0.35, 0.75, 1.25, 1.75]
    bench.hear(ready(), sender=P)
    for _ in range(9):
        bench.tick(0.25)
        assert not bench.said(Accept)


def test_pages_that_are_here_are_told_and_pinned() -> None:
    bench = Bench(n_pages=8)
    bench.decoding(expect(9, max_tokens=2), 0, 1, 2)
    bench.done(51)
    assert bench.pool.n_held == 0
    kept = bench.pool.longest_prefix(hashes(9))
    bench.hear(expect(11, transfer="u"))
    (accept,) = bench.said(Accept, P)
    assert accept.held == tuple(PageRef(p, bench.pool.generation(p)) for p in kept)
    assert len(kept) == 2
    assert bench.pool.n_held == 2


def test_a_barred_prefill_side_fails_the_attempt() -> None:
    bench = Bench(peers=(G,))
    bench.hear(expect())
    bench.take(PeerBarred(P, "kv_dtype differs"))
    assert bench.said(Failed, G) == [failed(FailureKind.TRANSFER, "kv_dtype differs")]
    assert not bench.said(Release)
    bench.hear(ended())
    assert bench.core.idle


def test_the_gateway_is_told_of_a_prefill_side_that_is_silent_here() -> None:
    bench = Bench()
    bench.hear(expect(9), expect(9, transfer="calling"))
    bench.hear(ready(0), sender=P)
    bench.take(PeerDown(P))
    told = failed(FailureKind.TRANSFER, "prefill is silent")
    assert bench.said(Failed, G) == [told, structs.replace(told, transfer="calling")]
    assert len(bench.did(Cancel)) == 1
    for _ in range(9):
        bench.tick(0.25)
        assert not bench.said(Accept)
    bench.hear(ended(), ended("calling"))
    bench.take(TicketFinal(TicketId(0), ok=False))
    assert bench.core.idle
    assert bench.pool.n_held == 0


# --- pages -----------------------------------------------------------------------------------


def test_what_is_new_in_a_message_is_one_pull() -> None:
    bench = Bench()
    bench.hear(expect(15))
    bench.hear(ready(7, 8), sender=P)
    pull = bench.pull
    pages = [page for _, page in pull.copies]
    assert pull == Pull(TicketId(0), P, region(), tuple(zip(refs(7, 8), pages, strict=True)))
    assert bench.did(Note) == [Note(T, 1, "migration_begin", {"pages": 2})]
    bench.hear(ready(7, 8), ready(7, 8, 9), ready(7), sender=P)
    assert [ref for ref, _ in bench.pull.copies] == list(refs(9))
    assert bench.pool.n_held == 3


def test_an_announcement_that_leaves_a_gap_is_not_used() -> None:
    bench = Bench()
    bench.hear(expect(23))
    bench.hear(ready(0), sender=P)
    bench.hear(ready(2, 3, first=2), sender=P)
    assert not bench.did(Pull)
    bench.hear(ready(0, 1, 2), sender=P)
    assert [ref for ref, _ in bench.pull.copies] == list(refs(1, 2))


def test_a_page_can_be_found_once_it_is_validated() -> None:
    bench = Bench()
    bench.hear(expect(9))
    bench.hear(ready(0), sender=P)
    (page,) = (page for _, page in bench.pull.copies)
    assert bench.pool.lookup(hashes(9)[0]) is None
    bench.pulled()
    assert bench.pool.lookup(hashes(9)[0]) == page
    assert bench.did(Note) == [Note(T, 1, "pages_pulled", {"pages": 1})]


def test_two_handoffs_of_one_prefix_move_it_once() -> None:
    bench = Bench()
    bench.hear(expect(9), expect(9, transfer="u"))
    bench.hear(ready(0, 1), ready(3, 4, transfer="u"), sender=P)
    assert len(bench.pull.copies) == 2
    first = bench.pull.ticket
    bench.hear(handoff(3, 4, 5, transfer="u", n_tokens=9), sender=P)
    assert [ref for ref, _ in bench.pull.copies] == list(refs(5))  # its own last page
    bench.pulled()
    assert not bench.launched
    bench.take(TicketFinal(first, ok=True))
    assert len(bench.plan.draws) == 1
    assert bench.pool.n_held == 3


def test_without_a_prefix_cache_each_moves_its_own() -> None:
    bench = Bench(cache=False)
    bench.hear(expect(9), expect(9, transfer="u"))
    bench.hear(ready(0, 1), ready(3, 4, transfer="u"), sender=P)
    assert [len(pull.copies) for pull in bench.did(Pull)] == [2, 2]


def test_the_next_waiter_retries_when_a_pull_fails() -> None:
    bench = Bench()
    bench.hear(expect(9), expect(9, transfer="u"))
    bench.hear(ready(0), ready(3, transfer="u"), sender=P)
    bench.pulled(ok=False)
    assert bench.said(Failed, G) == [failed(FailureKind.TRANSFER, "torn")]
    assert bench.said(Release, P) == [R1]
    assert [ref for ref, _ in bench.pull.copies] == list(refs(3))
    assert bench.pool.n_held == 1


def test_the_next_waiter_retries_when_the_first_is_ended() -> None:
    bench = Bench()
    bench.hear(expect(9), expect(9, transfer="u"))
    bench.hear(ready(0), ready(3, transfer="u"), sender=P)
    bench.hear(ended())
    assert [ref for ref, _ in bench.pull.copies] == list(refs(3))


def test_failed_is_sticky_and_told_again() -> None:
    bench = Bench()
    bench.hear(expect(9))
    bench.hear(ready(0), sender=P)
    bench.pulled(ok=False)
    bench.hear(handoff(0, 1, 2, n_tokens=9), sender=P)
    assert bench.said(Release, P) == [R1]
    bench.hear(expect(9))
    assert bench.said(Failed, G) == [failed(FailureKind.TRANSFER, "torn")]
    bench.hear(Heartbeat(transfers=(Listed(T, 1, Phase.WAITING),)))
    assert bench.said(Failed, G) == [failed(FailureKind.TRANSFER, "torn")]
    assert not bench.core.idle
    bench.hear(ended())
    assert bench.core.idle


# --- the Handoff -----------------------------------------------------------------------------


def test_handed_tokens_do_not_wait_for_pages() -> None:
    bench = Bench()
    bench.hear(expect())
    bench.hear(handoff(0, 1, cached_tokens=4), sender=P)
    assert bench.runs == [run(0, 50, cached=4)]
    assert len(bench.pull.copies) == 2
    assert bench.launched is None


def test_it_joins_when_the_last_page_is_validated() -> None:
    bench = Bench()
    bench.hear(expect())
    bench.hear(ready(0), sender=P)
    bench.pulled()
    bench.hear(handoff(0, 1), sender=P)
    bench.pulled()
    assert bench.said(Release, P) == [R1]
    notes = [note.name for note in bench.did(Note)]
    assert notes == ["pages_pulled", "migration_end", "decoding_begin"]
    assert bench.plan.tokens_T.tolist() == [50]


def test_a_handoff_answers_for_everything_that_was_lost_before_it() -> None:
    bench = Bench()
    bench.hear(expect())
    bench.hear(handoff(0, 1), handoff(0, 1), ready(0), sender=P)
    assert len(bench.pull.copies) == 2
    bench.pulled()
    bench.hear(handoff(0, 1), sender=P)
    assert bench.said(Release, P) == [R1]  # it has not heard the first one
    assert bench.runs == []


def test_a_prompt_that_is_here_whole_needs_no_pull() -> None:
    bench = Bench()
    bench.decoding(expect(8, max_tokens=2), 0, 1)
    bench.done(51)
    bench.hear(expect(8, transfer="u"))
    bench.hear(handoff(transfer="u", n_tokens=8, first=2), sender=P)
    assert not bench.did(Pull)
    assert bench.plan.positions_T.tolist() == [8]


def test_a_sample_that_ended_at_its_handed_token_is_not_decoded() -> None:
    bench = Bench()
    bench.hear(expect(samples=2))
    bench.hear(handoff(0, 1, tokens=(OVER, 51)), sender=P)
    assert bench.runs == [
        run(0, 50, finish=FinishReason.STOP, cached=0),
        run(0, 51, sample=1, cached=0),
    ]
    bench.pulled()
    assert [(d.sample, d.index) for d in bench.plan.draws] == [(1, 1)]


def test_when_all_ended_at_their_handed_tokens_nothing_is_pulled() -> None:
    bench = Bench()
    bench.hear(expect())
    bench.hear(handoff(0, 1, tokens=(OVER,)), sender=P)
    assert not bench.did(Pull)
    assert bench.said(Release, P) == [R1]
    assert bench.pool.n_held == 0
    assert not bench.core.idle
    bench.hear(ended())
    assert bench.core.idle


def test_outputs_of_earlier_attempts_come_before_the_handed_token() -> None:
    bench = Bench()
    bench.hear(expect(4, attempt=2, samples=(Resume(0, (60, 61)),), max_tokens=9))
    bench.hear(handoff(0, 1, attempt=2, n_tokens=6), sender=P)
    assert bench.runs == [run(2, 50, attempt=2, cached=0)]
    bench.pulled()
    (draw,) = bench.plan.draws
    assert (draw.index, draw.outputs) == (3, (60, 61, 50))
    assert bench.plan.positions_T.tolist() == [6]


def test_samples_share_the_prompt_and_get_their_own_last_page() -> None:
    bench = Bench()
    bench.hear(expect(6, samples=3))
    bench.hear(handoff(0, 1, tokens=(50, 51, 52)), sender=P)
    full, partial = (page for _, page in bench.pull.copies)
    bench.pulled()
    plan = bench.plan
    copies = [PageId(int(table[1])) for table in plan.tables_BM[:2]]
    assert plan.tables_BM[:, 0].tolist() == [full] * 3
    assert plan.tables_BM[2, 1] == partial  # the last one may keep it
    assert plan.copies == tuple((partial, page) for page in copies)
    assert len({*copies, partial}) == 3
    assert plan.slots_T.tolist() == [int(page) * 4 + 2 for page in (*copies, partial)]
    bench.done(60, 61, 62)
    assert bench.plan.copies == ()
    assert bench.pool.n_held == 4


def test_samples_of_a_prompt_of_full_pages_need_no_copies() -> None:
    bench = Bench()
    bench.hear(expect(4, samples=2))
    bench.hear(handoff(0, n_tokens=4, tokens=(50, 51)), sender=P)
    bench.pulled()
    assert bench.plan.copies == ()
    assert len(set(bench.plan.tables_BM[:, 1].tolist())) == 2


def test_a_handoff_that_contradicts_the_request_fails() -> None:
    for wrong, detail in (
        (handoff(0), "1 pages handed for 6 tokens"),
        (handoff(0, 1, n_tokens=7), "7 tokens handed, 6 expected"),
        (handoff(0, 1, tokens=(50, 51)), "first tokens of samples [0, 1]"),
    ):
        bench = Bench()
        bench.hear(expect())
        bench.hear(wrong, sender=P)
        assert bench.said(Failed, G) == [failed(FailureKind.TRANSFER, detail)]


# --- what was forgotten ----------------------------------------------------------------------


def test_what_is_not_known_is_released() -> None:
    bench = Bench()
    bench.hear(ready(0), sender=P)
    assert bench.said(Release, P) == [R1]
    bench.hear(expect(attempt=2))
    bench.hear(handoff(0, 1, attempt=1), sender=P)
    assert bench.said(Release, P) == [R1]
    assert bench.core.stale_messages == 2


def test_only_the_prefill_side_that_was_named_is_heard() -> None:
    bench = Bench()
    bench.hear(expect())
    bench.hear(ready(0), sender=InstanceId("prefill-2"))
    assert not bench.did(Pull)
    assert bench.said(Release, InstanceId("prefill-2")) == [R1]


def test_gone_before_it_ever_answered_means_that_its_prefill_is_still_on_the_way() -> None:
    bench = Bench()
    bench.hear(expect())
    bench.hear(Gone(transfer=T, attempt=1), sender=P)
    assert not bench.said(Failed)
    bench.tick(0.05)
    assert len(bench.said(Accept)) == 1


def test_gone_after_an_answer_fails() -> None:
    bench = Bench()
    bench.hear(expect())
    bench.hear(ready(), sender=P)
    bench.hear(Gone(transfer=T, attempt=1), sender=P)
    detail = "the prefill side has forgotten it"
    assert bench.said(Failed, G) == [failed(FailureKind.PREFILL_LOST, detail)]


def test_gone_after_the_handoff_is_no_matter() -> None:
    bench = Bench()
    bench.hear(expect())
    bench.hear(handoff(0, 1), sender=P)
    bench.hear(Gone(transfer=T, attempt=1), sender=P)
    assert not bench.said(Failed)
