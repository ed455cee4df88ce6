"""What decode is told, and when: nothing before its Accept, then all that is final."""

from common.engine.events import PeerDown, PeerUp
from common.ids import InstanceId, PageId
from common.messages import HandedToken, Handoff, PageRef, PagesReady
from common.params import FinishReason
from tests.unit.prefill.builders import (
    Bench,
    D,
    G,
    T,
    accept,
    ended,
    hello,
    params,
    prefill,
    refs,
    release,
)


def ready(pages: tuple[PageRef, ...], first: int = 0) -> PagesReady:
    return PagesReady(transfer=T, attempt=1, first=first, pages=pages)


def handoff(
    pages: tuple[PageRef, ...], n_tokens: int, *tokens: int, first: int = 0, cached: int = 0
) -> Handoff:
    return Handoff(
        transfer=T,
        attempt=1,
        n_tokens=n_tokens,
        first=first,
        pages=pages,
        tokens=tuple(HandedToken(n, token, None, None) for n, token in enumerate(tokens)),
        cached_tokens=cached,
    )


def test_nothing_is_said_to_decode_before_its_accept() -> None:
    bench = Bench(chunk_tokens=8)
    bench.hear(prefill(10))
    assert not bench.told(D)
    bench.done()
    assert not bench.told(D)
    bench.done(50)
    assert not bench.told(D)
    assert bench.pool.n_held == 3  # it may still come
    bench.hear(accept(), sender=D)
    assert bench.told(D) == [handoff(bench.refs(0, 1, 2), 10, 50)]


def test_an_accept_is_answered_at_once_and_again() -> None:
    bench = Bench(chunk_tokens=8)
    bench.hear(prefill(10))
    bench.hear(accept(), sender=D)
    assert bench.told(D) == [ready(())]
    bench.hear(accept(), sender=D)
    assert bench.told(D) == [ready(())]


def test_announcements_are_cumulative_and_of_full_pages() -> None:
    bench = Bench(chunk_tokens=6)
    bench.hear(prefill(15))
    bench.hear(accept(), sender=D)
    bench.done()
    assert bench.told(D) == [ready(bench.refs(0))]  # 6 tokens: the second page is not full
    bench.done()
    assert bench.told(D) == [ready(bench.refs(0, 1, 2))]
    assert bench.notes[0] == "pages_ready"
    bench.done(50)
    assert bench.told(D) == [handoff(bench.refs(0, 1, 2, 3), 15, 50)]


def test_a_chunk_that_fills_no_page_is_no_news() -> None:
    bench = Bench(chunk_tokens=2)
    bench.hear(prefill(5))
    bench.hear(accept(), sender=D)
    bench.done()
    assert not bench.told(D)
    bench.done()
    assert bench.told(D) == [ready(bench.refs(0))]


def test_the_first_token_goes_straight_to_the_gateway() -> None:
    bench = Bench()
    bench.hear(prefill(6))
    bench.done(50)
    (run,) = bench.runs
    assert (run.transfer, run.attempt, run.sample, run.index) == (T, 1, 0, 0)
    assert (run.tokens, run.finish, run.cached_tokens) == ((50,), None, 0)


def test_the_same_accept_again_after_the_handoff_is_answered_with_the_handoff() -> None:
    bench = Bench()
    bench.hear(prefill(6))
    bench.hear(accept(), sender=D)
    bench.done(50)
    handed = handoff(bench.refs(0, 1), 6, 50)
    assert bench.told(D) == [handed]
    bench.hear(accept(), sender=D)
    assert bench.told(D) == [handed]


def test_pages_that_decode_holds_are_not_announced() -> None:
    bench = Bench()
    bench.hear(prefill(10))
    bench.hear(accept(held=refs(7, 8)), sender=D)
    assert bench.told(D) == [ready((), first=2)]
    bench.done(50)
    assert bench.told(D) == [handoff(bench.refs(2), 10, 50, first=2)]


def test_decode_may_hold_every_page() -> None:
    bench = Bench(chunk_tokens=4)
    bench.hear(prefill(8))
    bench.hear(accept(held=refs(7, 8)), sender=D)
    bench.done()
    bench.done(50)
    assert bench.told(D) == [handoff((), 8, 50, first=2)]


def test_a_request_that_ends_with_its_first_token_never_reaches_decode() -> None:
    bench = Bench()
    bench.hear(prefill(6, sampling=params(end_token_ids=(50,))))
    bench.hear(accept(), sender=D)
    bench.done(50)
    assert not bench.told(D)
    (run,) = bench.runs
    assert run.finish is FinishReason.STOP
    assert bench.pool.n_held == 0
    bench.hear(accept(), sender=D)
    assert not bench.told(D)
    assert not bench.core.idle  # until the gateway has its tokens
    bench.hear(ended())
    assert bench.core.idle


def test_samples_that_have_ended_are_handed_with_those_that_go_on() -> None:
    bench = Bench()
    bench.hear(prefill(3, samples=3, sampling=params(end_token_ids=(51,))))
    bench.hear(accept(), sender=D)
    assert [draw.sample for draw in bench.plan.draws] == [0, 1, 2]
    assert [draw.row for draw in bench.plan.draws] == [2, 2, 2]
    bench.done(50, 51, 52)
    (handed,) = bench.said(Handoff, D)
    stop = FinishReason.STOP
    assert handed.tokens == (
        HandedToken(0, 50, None, None),
        HandedToken(1, 51, stop, None),
        HandedToken(2, 52, None, None),
    )
    assert [(run.sample, run.finish) for run in bench.runs] == [(0, None), (1, stop), (2, None)]


def test_a_release_ends_the_transfer_and_its_pages_stay_as_cache() -> None:
    bench = Bench()
    bench.hear(prefill(6))
    bench.hear(accept(), sender=D)
    bench.done(50)
    bench.hear(release(), sender=D)
    assert bench.core.idle
    assert (bench.pool.n_held, bench.pool.n_cached) == (0, 1)
    bench.hear(release(), sender=D)
    assert bench.actions == ()


def test_only_the_reader_releases_and_only_its_attempt() -> None:
    bench = Bench()
    bench.hear(prefill(6, attempt=2))
    bench.hear(accept(attempt=2), sender=D)
    bench.done(50)
    bench.hear(release(attempt=2), sender=InstanceId("decode-2"))
    bench.hear(release(attempt=1), sender=D)
    assert [bench.pool.refcount(PageId(page)) for page in (0, 1)] == [2, 2]
    bench.hear(release(attempt=2), sender=D)
    assert bench.core.idle


def test_an_accept_of_another_reader_or_an_older_attempt_is_stale() -> None:
    bench = Bench()
    bench.hear(prefill(6, attempt=2))
    bench.hear(accept(attempt=2), sender=InstanceId("decode-2"))
    bench.hear(accept(attempt=1), sender=D)
    assert bench.actions == ()
    assert bench.core.stale_messages == 2


def test_a_release_before_the_end_gives_up_the_lease_not_the_prompt() -> None:
    """Decode has failed; the gateway will say what becomes of it."""
    bench = Bench(chunk_tokens=4)
    bench.hear(prefill(6))
    bench.hear(accept(), sender=D)
    bench.done()
    bench.hear(release(), sender=D)
    bench.done(50)
    assert not bench.told(D)
    assert len(bench.runs) == 1
    bench.hear(accept(held=refs(7)), sender=D)
    assert bench.told(D) == [handoff(bench.refs(1), 6, 50, first=1)]
    bench.hear(ended())
    assert bench.core.idle


def test_a_reader_that_died_leaves_its_lease_and_the_next_attempt_finds_the_pages() -> None:
    bench = Bench()
    bench.hear(prefill(9))
    bench.hear(accept(), sender=D)
    bench.done(50)
    bench.take(PeerDown(D))
    assert bench.pool.n_held == 3
    bench.hear(ended())
    assert (bench.pool.n_held, bench.pool.n_cached) == (0, 2)
    bench.hear(prefill(9, attempt=2))
    assert bench.rows == [[9]]
    bench.done(50)
    (run,) = bench.runs
    assert run.cached_tokens == 8


def test_a_new_attempt_has_its_own_lease_on_the_same_pages() -> None:
    bench = Bench()
    bench.hear(prefill(9))
    bench.hear(accept(), sender=D)
    bench.done(50)
    first = bench.said(Handoff, D)[0].pages
    bench.hear(prefill(9, attempt=2))
    bench.hear(accept(attempt=2), sender=D)
    bench.done(50)
    (again,) = bench.said(Handoff, D)
    assert again.pages[:2] == first[:2]
    bench.hear(release(attempt=1), sender=D)  # late: it touches its own only
    assert bench.pool.refcount(first[0].page) == 2  # the prompt's and the lease's
    bench.hear(release(attempt=2), sender=D)
    assert bench.pool.n_held == 0


def test_an_end_frees_pages_that_are_being_read() -> None:
    bench = Bench(cache=False)
    bench.hear(prefill(6))
    bench.hear(accept(), sender=D)
    bench.done(50)
    announced = bench.said(Handoff, D)[0].pages
    bench.hear(ended())
    assert bench.pool.n_held == 0
    bench.hear(prefill(6, transfer="next"))
    assert bench.pool.generation(announced[0].page) == announced[0].generation + 1


def test_a_lost_gateway_takes_its_prompts_along() -> None:
    bench = Bench()
    bench.hear(prefill(6))
    bench.hear(prefill(6, transfer="waits"))
    bench.hear(accept(), sender=D)
    bench.take(PeerDown(G))
    bench.done(50)
    assert bench.core.idle
    assert bench.pool.n_held == 0
    assert not bench.told(G)
    assert not bench.told(D)


def test_a_reader_that_comes_back_accepts_anew() -> None:
    bench = Bench()
    bench.hear(prefill(6))
    bench.hear(accept(), sender=D)
    bench.done(50)
    bench.take(PeerDown(D))
    bench.take(PeerUp(hello()))
    assert not bench.said(Handoff)
    bench.hear(accept(), sender=D)
    assert bench.said(Handoff, D) == [handoff(bench.refs(0, 1), 6, 50)]
    assert bench.pool.refcount(PageId(0)) == 2
