"""Least predicted cost: who computes, who decodes, and what prefixes are worth."""

from dataclasses import replace

import pytest

from common.ids import InstanceId, PageHash
from launch.gateway.router import Demand, Route, WorkerView, route
from tests.unit.gateway.builders import D2, P2, D, P, hello, snapshot

PAGES = tuple(PageHash(bytes([n])) for n in range(25))
DEMAND = Demand(n_tokens=100, max_tokens=20, hashes=PAGES)


def view(
    instance: InstanceId, *, cached: int = 0, busy: int = 0, queued: int = 0, own: int = 0
) -> WorkerView:
    made = WorkerView(hello(instance))
    assert made.take(snapshot(stored=PAGES[:cached], busy=busy, queued_tokens=queued))
    made.own_tokens = own
    return made


def chosen(*views: WorkerView, barred: tuple[tuple[InstanceId, InstanceId], ...] = ()) -> Route:
    prefills = [v for v in views if v.instance.startswith("prefill")]
    decodes = [v for v in views if v.instance.startswith("decode")]
    found = route(DEMAND, prefills, decodes, barred)
    assert found is not None
    return found


def test_without_decode_workers_there_is_no_route() -> None:
    assert route(DEMAND, [view(P)], [], ()) is None


def test_without_prefill_workers_decode_computes_the_prompt() -> None:
    assert chosen(view(D)) == Route(None, D, 0)


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
    assert chosen(view(P), view(D), barred=((P, D),)) == Route(None, D, 0)


def test_a_worker_that_has_told_nothing_is_guessed() -> None:
    silent = WorkerView(hello(P))
    assert chosen(silent, view(D)) == Route(P, D, 0)
    assert chosen(WorkerView(hello(D)), view(P)) == Route(P, D, 0)


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
    found = route(demand, [view(P, cached=2), view(P2)], [view(D)], ())
    assert found == Route(P, D, 0)
