"""Prefixes: found here, waited for while another computes them, or fetched from decode."""

import pytest

from common.engine.events import Cancel, PeerDown, Pull, TicketFinal
from common.engine.plan import Drawn, PassResult
from common.ids import PageId, TicketId
from common.messages import (
    Accepted,
    Handoff,
    PagesReady,
    PrefixCacheReset,
    ResetPrefixCache,
    Resume,
)
from common.params import TokenLogprob
from prefill.passes import WAIT_FOR_ACCEPT_S
from tests.unit.prefill.builders import (
    Bench,
    D,
    G,
    T,
    accept,
    ended,
    hashes,
    params,
    prefill,
    refs,
    region,
    release,
)


def over(bench: Bench, n_tokens: int, transfer: str = "before") -> None:
    """A prompt that was computed, read and forgotten: its full pages are cached."""
    bench.computed(prefill(n_tokens, transfer=transfer), 50)
    bench.hear(accept(transfer), sender=D)
    bench.hear(release(transfer), sender=D)
    assert bench.core.idle


# --- found here ------------------------------------------------------------------------------


def test_what_is_in_the_pool_is_not_computed() -> None:
    bench = Bench()
    over(bench, 9)
    bench.hear(prefill(11))
    assert bench.rows == [[9, 10, 11]]
    assert bench.plan.positions_T.tolist() == [8, 9, 10]
    bench.hear(accept(), sender=D)
    bench.done(50)
    (handoff,) = bench.said(Handoff, D)
    assert (handoff.cached_tokens, handoff.pages) == (8, bench.refs(0, 1, 2))


def test_what_was_computed_before_a_reset_is_computed_again() -> None:
    bench = Bench()
    over(bench, 9)
    bench.hear(prefill(9, transfer="runs"))
    bench.hear(ResetPrefixCache(number=3))
    assert bench.said(PrefixCacheReset, G) == [PrefixCacheReset(number=3)]
    bench.done(50)  # and is not found either, though it is computed to its end
    bench.hear(accept("runs"), sender=D)
    bench.hear(prefill(11))
    assert bench.rows == [list(range(1, 12))]
    bench.done(50)
    bench.hear(ended(), ended("runs"))
    assert bench.pool.n_held == 0


def test_a_prefix_that_somebody_waits_for_is_not_evicted_for_what_nobody_does() -> None:
    bench = Bench(n_pages=8)
    over(bench, 9)
    over(bench, 9, transfer="later")
    bench.computed(prefill(tuple(range(90, 99)), transfer="other"), 50)
    bench.hear(accept("other"), sender=D)
    bench.hear(release("other"), sender=D)
    urgent = prefill(tuple(range(20, 40)), transfer="urgent", deadline_s=0.1)  # 5 pages of 4 free
    bench.hear(accept("urgent"), accept(), sender=D)
    bench.hear(urgent, prefill(11))
    assert bench.rows == [list(range(20, 36)), [9, 10, 11]]


def test_who_has_left_wants_nothing() -> None:
    bench = Bench(n_pages=8)
    over(bench, 9)
    bench.hear(prefill(tuple(range(50, 78)), transfer="long"))  # 7 pages of 6 free: evicts
    bench.hear(prefill(11, transfer="waits"))
    bench.hear(ended("waits"))
    bench.hear(ended("long"))
    bench.done()
    assert bench.pool.n_held == 0
    bench.pool.take(8)
    assert not bench.pool.published()


def test_the_last_token_is_always_computed() -> None:
    bench = Bench()
    over(bench, 9)
    bench.hear(prefill(8))
    assert bench.rows == [[5, 6, 7, 8]]  # the second page is found, and computed all the same


def test_pages_found_are_announced_with_the_start() -> None:
    bench = Bench()
    over(bench, 9)
    bench.hear(accept(), sender=D)
    bench.hear(prefill(11))
    assert [ready.pages for ready in bench.said(PagesReady, D)] == [(), bench.refs(0, 1)]
    assert bench.launched is not None


def test_without_caching_nothing_is_found() -> None:
    bench = Bench(cache=False)
    over(bench, 9)
    bench.hear(prefill(9))
    assert bench.rows == [[1, 2, 3, 4, 5, 6, 7, 8, 9]]


def test_prompt_logprobs_need_the_whole_prompt_computed() -> None:
    bench = Bench(chunk_tokens=6)
    over(bench, 9)
    bench.hear(prefill(9, sampling=params(prompt_logprobs=2)))
    assert bench.rows == [[1, 2, 3, 4, 5, 6]]
    (score,) = bench.plan.scores
    assert (score.first_row, score.targets, score.n_top) == (0, (2, 3, 4, 5, 6, 7), 2)


def scored(*tokens: int) -> tuple[TokenLogprob, ...]:
    return tuple(TokenLogprob(token, -1.0, 1, (), ()) for token in tokens)


def test_prompt_logprobs_go_with_the_first_token() -> None:
    bench = Bench(chunk_tokens=2)
    bench.hear(prefill(5, sampling=params(prompt_logprobs=0)))
    bench.done(result=PassResult(scores=(scored(2, 3),)))
    bench.done(result=PassResult(scores=(scored(4, 5),)))
    assert bench.plan.scores == ()  # nothing follows the last token
    bench.done(result=PassResult(drawn=(Drawn(token=50),)))
    (run,) = bench.runs
    assert run.prompt_logprobs == (None, *scored(2, 3, 4, 5))


def test_prompt_logprobs_that_the_client_has_are_not_computed_again() -> None:
    bench = Bench()
    over(bench, 9)
    resumed = (Resume(0, (50,)),)
    bench.hear(prefill(9, attempt=2, samples=resumed, sampling=params(prompt_logprobs=0)))
    assert bench.rows == [[9, 50]]
    assert bench.plan.scores == ()
    bench.done(51)
    assert bench.runs[0].prompt_logprobs is None


# --- waited for ------------------------------------------------------------------------------


def test_a_prefix_that_is_being_computed_is_waited_for() -> None:
    bench = Bench(n_pages=64, chunk_tokens=4)
    bench.hear(prefill(9, deadline_s=0.1), prefill((1, 2, 3, 4, 90), transfer="u"))
    assert bench.rows == [[1, 2, 3, 4]]
    bench.done()
    assert bench.rows == [[5, 6, 7, 8], [90]]
    bench.done(51)
    (run,) = bench.runs
    assert (run.transfer, run.cached_tokens) == ("u", 4)


def test_whoever_waits_goes_on_with_what_there_is_when_the_other_ends() -> None:
    bench = Bench(n_pages=64, chunk_tokens=4)
    bench.hear(prefill(13, deadline_s=0.1), prefill(12, transfer="u"))
    bench.done()
    assert bench.rows == [[5, 6, 7, 8]]
    bench.hear(ended())
    bench.done()
    assert bench.rows == [[5, 6, 7, 8]]  # the page that the pass wrote for t was given back
    bench.done()
    bench.done(50)
    assert [(r.transfer, r.cached_tokens) for r in bench.runs] == [("u", 4)]


def test_a_prefix_whose_computing_raised_is_computed_by_the_next() -> None:
    bench = Bench(chunk_tokens=4)
    bench.hear(prefill(9), prefill(8, transfer="u"))
    bench.raised("no memory")
    assert bench.rows == [[1, 2, 3, 4]]


def test_a_shared_page_is_held_once_a_holder() -> None:
    bench = Bench(n_pages=64)
    bench.computed(prefill(9), 50)
    bench.computed(prefill(9, transfer="u"), 50)
    assert bench.pool.n_held == 4
    assert [bench.pool.refcount(PageId(page)) for page in (0, 1)] == [2, 2]
    bench.hear(ended())
    assert bench.pool.n_held == 3


# --- fetched from decode ---------------------------------------------------------------------


def test_what_decode_holds_and_we_do_not_is_pulled_from_there() -> None:
    bench = Bench()
    bench.hear(accept(held=refs(7, 8)), sender=D)
    bench.hear(prefill(11))
    pull = Pull(TicketId(0), D, region(), tuple(zip(refs(7, 8), (0, 1), strict=True)))  # pyright: ignore[reportArgumentType]
    assert bench.did(Pull) == [pull]
    assert bench.launched is None
    bench.pulled(pull)
    assert bench.rows == [[9, 10, 11]]
    assert bench.pool.longest_prefix(hashes(8)) == (0, 1)
    bench.done(50)
    (run,) = bench.runs
    assert run.cached_tokens == 8


def test_a_failed_fetch_is_computed_instead() -> None:
    bench = Bench()
    bench.hear(accept(held=refs(7, 8)), sender=D)
    bench.hear(prefill(11))
    bench.pulled(bench.pull, ok=False)
    assert bench.rows == [list(range(1, 12))]
    bench.done(50)
    assert bench.runs[0].cached_tokens == 0


def test_only_what_is_not_here_is_fetched() -> None:
    bench = Bench()
    over(bench, 5)
    bench.hear(accept(held=refs(7, 8, 9)), sender=D)
    bench.hear(prefill(13))
    assert [ref.page for ref, _ in bench.pull.copies] == [8, 9]
    bench.pulled(bench.pull)
    assert bench.rows == [[13]]


def test_the_page_of_the_last_token_is_not_fetched() -> None:
    bench = Bench()
    bench.hear(accept(held=refs(7, 8)), sender=D)
    bench.hear(prefill(8))
    assert [ref.page for ref, _ in bench.pull.copies] == [7]


def test_an_end_cancels_the_fetch_whose_pages_wait_for_it() -> None:
    bench = Bench()
    bench.hear(accept(held=refs(7)), sender=D)
    bench.hear(prefill(6))
    pull = bench.pull
    bench.hear(ended())
    assert bench.did(Cancel) == [Cancel(pull.ticket)]
    assert bench.pool.n_held == 2
    assert not bench.core.idle
    bench.pulled(pull, ok=False)
    assert bench.core.idle
    assert bench.pool.n_held == 0


def test_nothing_is_fetched_from_a_decode_worker_that_is_not_there() -> None:
    bench = Bench()
    bench.hear(accept(held=refs(7)), sender=D)
    bench.take(PeerDown(D))
    bench.hear(prefill(6))
    assert bench.rows == [[1, 2, 3, 4, 5, 6]]


def test_who_shares_a_prefix_waits_for_the_fetch_of_another() -> None:
    bench = Bench()
    bench.hear(accept(held=refs(7)), sender=D)
    bench.hear(prefill(6, deadline_s=0.1), prefill((1, 2, 3, 4, 90), transfer="u"))
    assert bench.launched is None
    bench.pulled(bench.pull)
    assert bench.rows == [[5, 6], [90]]


def test_every_fetch_is_its_own() -> None:
    bench = Bench()
    for n, name in enumerate("abc"):
        bench.hear(accept(name, held=refs(n)), sender=D)
        bench.hear(prefill(tuple(range(10 * n, 10 * n + 5)), transfer=name))
        assert bench.pull.ticket == n
    bench.take(*(TicketFinal(TicketId(n), ok=True) for n in (2, 0, 1)))
    assert [row[0] for row in bench.rows] == [4, 14, 24]


def test_what_was_fetched_is_announced_to_who_holds_it_no_more() -> None:
    bench = Bench()
    bench.hear(accept(held=refs(7, 8)), sender=D)
    bench.hear(prefill(11))
    pull = bench.pull
    bench.hear(release(), accept(), sender=D)  # it had to let go, and begins anew
    bench.pulled(pull)
    (ready,) = bench.said(PagesReady, D)
    assert (ready.first, len(ready.pages)) == (0, 2)


# --- the wait for an Accept that may bring pages ---------------------------------------------


def test_an_accept_is_awaited_for_a_moment_where_decode_should_hold_more() -> None:
    bench = Bench()
    bench.hear(prefill(9, decode_cached=8))
    assert len(bench.said(Accepted)) == 1
    assert bench.launched is None
    bench.now = bench.wake_at or 0.0
    while bench.now < WAIT_FOR_ACCEPT_S:
        bench.take()
        assert bench.launched is None
        assert bench.wake_at is not None
        bench.now = bench.wake_at
    assert bench.now == pytest.approx(WAIT_FOR_ACCEPT_S)
    bench.take()
    assert bench.rows == [[1, 2, 3, 4, 5, 6, 7, 8, 9]]


def test_nobody_is_woken_for_whom_no_accept_is_awaited() -> None:
    """Only those that wait with a hint, and no pass to wake up with."""
    bench = Bench(n_pages=4)
    over(bench, 5)

    def wake_at() -> float | None:
        core = bench.core
        return core._passes.wake_at(core._transfers.queue, bench.now)

    bench.hear(prefill(16, decode_cached=4, transfer="computed"))
    assert wake_at() is None
    bench.done(50)
    bench.hear(prefill(5))  # finds no pages
    assert wake_at() is None
    bench.now = 1.0
    bench.hear(prefill((1, 2, 3, 4, 5, 6, 7, 8, 60), decode_cached=8, transfer="hinted"))
    assert wake_at() == 1.0 + WAIT_FOR_ACCEPT_S


def test_the_accept_ends_the_wait() -> None:
    bench = Bench()
    bench.hear(prefill(9, decode_cached=8))
    bench.hear(accept(held=refs(7)), sender=D)
    bench.pulled(bench.pull)
    assert bench.rows == [[5, 6, 7, 8, 9]]


@pytest.mark.parametrize("hint", [0, 3, 4])
def test_no_wait_where_decode_holds_no_more_than_we_do(hint: int) -> None:
    bench = Bench()
    over(bench, 5)
    bench.hear(prefill(9, decode_cached=hint))
    assert bench.rows == [[5, 6, 7, 8, 9]]


def test_no_wait_for_a_decode_worker_that_has_not_called_yet() -> None:
    bench = Bench()
    bench.take(PeerDown(D))
    bench.hear(prefill(9, decode_cached=8))
    assert len(bench.rows) == 1


def test_no_wait_where_nothing_may_be_reused() -> None:
    bench = Bench()
    bench.hear(prefill(9, decode_cached=8, sampling=params(prompt_logprobs=0)))
    assert len(bench.rows) == 1
    assert bench.said(Accepted)[0].transfer == T
