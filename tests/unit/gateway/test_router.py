"""Least predicted cost: who computes, who decodes, and what prefixes are worth."""

from dataclasses import replace

import pytest

from common.ids import InstanceId, PageHash
from launch.gateway.router import Reason, Route, route
from launch.gateway.views import Demand, WorkerView
from tests.unit.gateway.builders import D2, P2, D, P, hello, snapshot

PAGES = tuple(PageHash(bytes([n])) for n in range(25))
DEMAND = Demand(n_tokens=100, max_tokens=20, hashes=PAGES)


def view(  # noqa: PLR0913  every field has a default
    instance: InstanceId,
    *,
    cached: int = 0,
    busy: int = 0,
    queued: int = 0,
    own: int = 0,
    step_s: float = 0.02,
    tokens_per_s: float = 1000.0,
) -> WorkerView:
    """`step_s`, `tokens_per_s` 0: it has measured nothing."""
    made = WorkerView(hello(instance))
    told = snapshot(
        stored=PAGES[:cached],
        busy=busy,
        queued_tokens=queued,
        step_s=step_s,
        tokens_per_s=tokens_per_s,
    )
    assert made.take(told)
    made.own_prompt_tokens = own
    return made


def chosen(
    *views: WorkerView,
    barred: tuple[tuple[InstanceId, InstanceId], ...] = (),
    demand: Demand = DEMAND,
) -> Route:
    prefills = [v for v in views if v.instance.startswith("prefill")]
    decodes = [v for v in views if v.instance.startswith("decode")]
    found = route(demand, prefills, decodes, barred, disaggregate="always")
    assert found is not None
    return found


def test_without_decode_workers_there_is_no_route() -> None:
    assert route(DEMAND, [view(P)], [], ()) is None


def test_without_prefill_workers_decode_computes_the_prompt() -> None:
    assert chosen(view(D)) == Route(None, D, 0, reason=Reason.ONLY)


def test_equal_costs_go_by_instance() -> None:
    assert chosen(view(P2), view(P), view(D2), view(D)) == Route(P, D, 0)


def test_the_shorter_prefill_queue_wins() -> None:
    assert chosen(view(P, queued=500), view(P2, queued=400), view(D)).prefill == P2


def test_own_requests_count_before_the_next_snapshot_tells_of_them() -> None:
    assert chosen(view(P, own=500), view(P2, queued=400), view(D)).prefill == P2
    assert chosen(view(P, own=500, queued=500), view(P2, queued=501), view(D)).prefill == P


def test_the_less_busy_decode_worker_wins() -> None:
    assert chosen(view(P), view(D, busy=3), view(D2, busy=2)).decode == D2
    busy = view(D)
    busy.own_requests = 3
    assert chosen(view(P), busy, view(D2, busy=2)).decode == D2


def test_a_decode_worker_without_room_for_it_loses() -> None:
    full = view(D)
    full.own_tokens = 396  # of 400
    assert chosen(view(P), full, view(D2)).decode == D2


def test_a_prefix_is_work_that_is_not_done() -> None:
    assert chosen(view(P), view(P2, cached=10), view(D)).prefill == P2
    # 40 tokens at 1000 a second against a longer queue
    assert chosen(view(P), view(P2, cached=10, queued=39), view(D)).prefill == P2
    assert chosen(view(P), view(P2, cached=10, queued=41), view(D)).prefill == P


def test_a_prefix_on_the_decode_side_counts_and_is_told() -> None:
    assert chosen(view(P), view(D), view(D2, cached=10)) == Route(P, D2, 40)


def test_only_leading_pages_count() -> None:
    holes = WorkerView(hello(P2))
    holes.take(snapshot(stored=PAGES[1:]))
    assert holes.cached_pages(PAGES) == 0
    holes.take(snapshot(2, whole=False, stored=(PAGES[0],), removed=(PAGES[3],)))
    assert holes.cached_pages(PAGES) == 3


def test_a_barred_pair_is_passed_over() -> None:
    assert chosen(view(P), view(P2, queued=9), view(D), barred=((P, D),)) == Route(P2, D, 0)
    assert chosen(view(P), view(D, busy=1), view(D2), barred=((P, D),)) == Route(P, D2, 0)


def test_where_every_pair_is_barred_decode_computes_the_prompt() -> None:
    assert chosen(view(P), view(D), barred=((P, D),)) == Route(None, D, 0, reason=Reason.ONLY)


def test_a_worker_that_has_told_nothing_is_guessed() -> None:
    silent = WorkerView(hello(P))
    assert chosen(silent, view(D)) == Route(P, D, 0)
    assert chosen(WorkerView(hello(D)), view(P)) == Route(P, D, 0)


def test_a_decode_worker_that_has_measured_nothing_is_taken_for_one_like_the_others() -> None:
    """Beside passes of 50 ms it must not be thought to do one in 20."""
    slow, new = view(D, busy=2, step_s=0.05), view(D2, step_s=0.0)
    new.own_requests = 3
    assert chosen(view(P), slow, new).decode == D
    new.own_requests = 2
    assert chosen(view(P), slow, new).decode == D  # equal, and first by name
    new.own_requests = 1
    assert chosen(view(P), slow, new).decode == D2


def test_the_middle_of_the_others_counts() -> None:
    others = [view(InstanceId(f"decode-{n}"), busy=3, step_s=n / 100) for n in (3, 4, 90)]
    new = InstanceId("decode-9")
    assert chosen(view(P), *others, view(new, busy=3, step_s=0.0)).decode == "decode-3"
    assert chosen(view(P), *others, view(new, busy=1, step_s=0.0)).decode == new


def test_the_same_of_prefill_workers() -> None:
    slow, new = view(P, tokens_per_s=100.0), view(P2, queued=1, tokens_per_s=0.0)
    assert chosen(slow, new, view(D, tokens_per_s=9000.0)).prefill == P


# --- SLOs ------------------------------------------------------------------------------------

QUICK = replace(DEMAND, ttft_s=0.3)
STEADY = replace(DEMAND, tpot_s=0.03)


def test_who_meets_the_ttft_comes_before_who_is_cheaper() -> None:
    """100 tokens, at 1,000 a second."""
    views = [view(P, queued=190), view(P2, queued=210), view(D, busy=1)]
    assert chosen(*views, demand=QUICK) == Route(P, D, 0, in_time=True)
    near = [view(D, cached=10, busy=3), view(D2)]
    assert chosen(view(P, queued=230), *near).decode == D2  # cheaper, but for the 40 tokens
    assert chosen(view(P, queued=230), *near, demand=QUICK) == Route(P, D, 40, in_time=True)


def test_where_nobody_meets_it_the_cheapest_is_told_to_be_late() -> None:
    found = chosen(view(P, queued=500), view(P2, queued=400), view(D), demand=QUICK)
    assert found == Route(P2, D, 0, in_time=False)
    assert found.computing == P2


def test_a_decode_worker_that_computes_prompts_can_be_late() -> None:
    assert chosen(view(D, queued=200), demand=QUICK).in_time
    found = chosen(view(D, queued=201), demand=QUICK)
    assert (found.in_time, found.computing) == (False, D)


def test_who_meets_the_tpot_comes_before_who_is_cheaper() -> None:
    fast, idle = view(D, busy=3, step_s=0.03), view(D2, step_s=0.031)
    assert chosen(view(P), fast, idle).decode == D2
    assert chosen(view(P), fast, idle, demand=STEADY).decode == D


def test_sequences_that_do_not_fit_one_pass_wait_for_the_next() -> None:
    """8 fit: a ninth makes 9/8 of a pass a token."""
    full, slow = view(D, busy=8, step_s=0.029), view(D2, busy=70, step_s=0.0029)
    assert chosen(view(P), full, slow, demand=STEADY).decode == D2
    seven = view(D, busy=7, step_s=0.029)
    assert chosen(view(P), seven, slow, demand=STEADY).decode == D


@pytest.mark.parametrize(
    ("sequence", "whole", "taken", "last"),
    [(2, False, True, 2), (3, False, False, 1), (1, False, True, 1), (7, True, True, 7)],
    ids=["next", "one was missed", "again", "whole"],
)
def test_snapshots_are_taken_in_sequence(
    sequence: int, *, whole: bool, taken: bool, last: int
) -> None:
    seen = WorkerView(hello(P))
    assert seen.take(snapshot(1))
    assert seen.take(snapshot(sequence, whole=whole)) is taken
    assert seen.snapshot is not None
    assert seen.snapshot.sequence == last


def test_before_a_whole_snapshot_nothing_can_be_built_on() -> None:
    assert not WorkerView(hello(P)).take(snapshot(1, whole=False))


def test_demand_is_what_is_missing() -> None:
    """An almost whole prefix still costs its last token."""
    demand = replace(DEMAND, n_tokens=8, hashes=PAGES[:2])
    assert chosen(view(P, cached=2), view(P2), view(D), demand=demand) == Route(P, D, 0)
