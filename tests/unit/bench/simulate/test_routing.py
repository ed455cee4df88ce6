"""Four routers, and the traffic that tells them apart."""

from dataclasses import replace

import pytest

from bench.simulate.routing import (
    PAGE_TOKENS,
    ROUTERS,
    SCALE,
    AtRandom,
    Outcome,
    Setting,
    asks,
    by_load,
    by_local_cache,
    costs,
    passed,
    router_of,
)
from bench.simulate.timed import serve
from bench.traces import Row
from common.ids import PageHash
from common.messages import Hello, Snapshot
from launch.gateway.fleet import Fleet
from launch.gateway.router import route
from launch.gateway.views import Demand, WorkerView
from tests.unit.gateway.builders import D2, P2, D, P, hello, snapshot

PAGES = tuple(PageHash(bytes([n])) for n in range(25))
DEMAND = Demand(n_tokens=100, max_tokens=20, hashes=PAGES)
SMALL = Setting(requests=4, prefills=1, decodes=1, blocks=64)


def views(**told: Snapshot) -> tuple[list[WorkerView], list[WorkerView]]:
    """Two prefill and two decode workers: P, P2, D, D2 as they tell of themselves."""
    fleet = Fleet()
    names = {"p": P, "p2": P2, "d": D, "d2": D2}
    for name, instance in names.items():
        made: Hello = hello(instance)
        fleet.up(made)
        assert fleet.snapshot(instance, told.get(name, snapshot()))
    prefill, decode = (made.peer.role for made in map(hello, (P, D)))
    return fleet.of(prefill), fleet.of(decode)


def test_prompts_share_what_those_of_the_trace_share() -> None:
    rows = [
        Row(0.0, 1024, 160, (1, 2)),
        Row(1.0, 1200, 160, (1, 2, 3)),
        Row(3.0, 1100, 16, (1, 4, 5)),
        Row(4.0, 512, 16, (6,)),
    ]
    first, second, third, fourth = asks(rows, replace(SMALL, speed=2.0))
    assert [ask.at_s for ask in (first, second, third, fourth)] == [0.0, 0.5, 1.5, 2.0]
    assert len(second.prompt) == 1200 // SCALE
    assert second.prompt[: 2 * PAGE_TOKENS] == first.prompt
    assert third.prompt[:PAGE_TOKENS] == first.prompt[:PAGE_TOKENS]
    assert third.prompt[PAGE_TOKENS : 2 * PAGE_TOKENS] != first.prompt[PAGE_TOKENS:]
    assert (first.output_tokens, fourth.output_tokens) == (10, 1)
    (later,) = asks(rows, replace(SMALL, requests=1, skip=2))
    assert later == replace(third, at_s=0.0)


def test_a_token_costs_as_many_as_it_stands_for() -> None:
    made = costs()
    assert made.prefill.seconds(100, 100 * 100 / 2) == pytest.approx(
        13.3e-3 + 94e-6 * 1600 + 4.2e-9 * 1600 * 1600 / 2
    )
    assert made.decode.seconds(100, 1) == pytest.approx(
        SCALE * (13.3e-3 + 31e-9 * 1600 + 38e-6), rel=1e-6
    )


def test_the_least_loaded() -> None:
    chosen = by_load(DEMAND, *views(p=snapshot(queued_tokens=9), d2=snapshot(busy=1)))
    assert chosen is not None
    assert (chosen.prefill, chosen.decode) == (P2, D)


@pytest.mark.parametrize(("queued", "expected"), [(30, P), (50, P2)])
def test_a_prefix_is_worth_what_need_not_be_computed(queued: int, expected: str) -> None:
    told = views(p=snapshot(stored=PAGES[:10], queued_tokens=queued), d=snapshot(busy=1))
    chosen = by_local_cache(DEMAND, *told)  # 10 pages of 4 tokens
    assert chosen is not None
    assert (chosen.prefill, chosen.decode) == (expected, D2)


def test_what_decode_holds_is_no_matter_but_to_the_products_router() -> None:
    told = views(d2=snapshot(stored=PAGES[:20], busy=1))
    local, everywhere = by_local_cache(DEMAND, *told), route(DEMAND, *told)
    assert local is not None
    assert everywhere is not None
    assert (local.decode, local.decode_cached_tokens) == (D, 0)
    assert (everywhere.decode, everywhere.decode_cached_tokens) == (D2, 80)


def test_random_choices_are_the_seeds() -> None:
    told = views()
    routers = (AtRandom(1), AtRandom(1), AtRandom(2))
    one, again, other = ([router(DEMAND, *told) for _ in range(20)] for router in routers)
    assert one == again != other
    assert {route.prefill for route in one if route is not None} == {P, P2}


@pytest.mark.parametrize("name", ROUTERS)
def test_every_router_serves(name: str) -> None:
    rows = [Row(float(n), 2048, 32, (1, 2, 3, 10 + n)) for n in range(4)]
    run = serve(asks(rows, SMALL), SMALL.shape, router=router_of(name, 0))
    assert all(one.ttft_s is not None for one in run.served)
    assert [one.cached_tokens for one in run.served] == [0, *[3 * PAGE_TOKENS] * 3]


@pytest.mark.parametrize(
    ("means", "expected"),
    [
        ((20, 5, 3.6, 3.1), True),
        ((20, 5, 3.6, 3.3), False),
        ((4, 5, 3.6, 3.1), False),
        ((20, 3, 3.6, 3.1), False),
    ],
)
def test_what_the_order_must_be(means: tuple[float, ...], *, expected: bool) -> None:
    outcomes = {
        name: Outcome(mean_ttft_s=mean, p90_ttft_s=1.0, cached=0.0)
        for name, mean in zip(ROUTERS, means, strict=True)
    }
    assert passed(outcomes) == expected
