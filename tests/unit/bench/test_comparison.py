"""What a sweep measures next, and what it finds, with servers whose capacity is known."""

import asyncio
import random
from contextlib import suppress
from pathlib import Path

import pytest

from bench import sweep_report
from bench.client import Outcome
from bench.comparison import (
    Design,
    Goal,
    Result,
    compared,
    requests_for,
    requests_to_bound,
    results,
    scaled,
    slo_of_solo,
)
from bench.measures import Goodput
from bench.search import Bracket, Limits
from bench.store import Point, Setting, Store
from bench.sweep import run
from bench.sweep_report import Sweep

SLO = Goodput(ttft_ms=100, tpot_ms=10)


def design(
    *,
    rounds: int = 2,
    targets: tuple[float, ...] = (0.9,),
    scales: tuple[float, ...] = (1,),
    n_requests: int | None = 200,
) -> Design:
    return Design(
        servers=("slow", "fast"),
        rounds=rounds,
        targets=targets,
        scales=scales,
        limits=Limits(),
        n_solo=3,
        n_requests=n_requests,
    )


class Servers:
    """In place of real ones: TTFT is 20 ms / (1 - load), by capacity; counts what is asked."""

    def __init__(self) -> None:
        self.capacities = {"slow": 4.0, "fast": 10.0}
        self.measured: list[Setting] = []

    async def measure(self, setting: Setting) -> Point:
        self.measured.append(setting)
        draw = random.Random(setting.key)
        busy = min((setting.rate or 0) / self.capacities[setting.server], 0.9999)
        mean_s = 0.02 / (1 - busy)
        outcomes = [self.outcome(n, draw.uniform(0, 2 * mean_s)) for n in range(setting.n_requests)]
        return Point(setting=setting, began=len(self.measured), outcomes=tuple(outcomes))

    def outcome(self, index: int, ttft_s: float) -> Outcome:
        times_s = [ttft_s, ttft_s + 0.005]
        return Outcome(
            index=index,
            scheduled_s=0,
            sent_s=0,
            ended_s=times_s[-1],
            chunk_times_s=times_s,
            output_tokens=2,
        )

    def rate_at(self, server: str, target: float, limit_s: float) -> float:
        """TTFTs are uniform up to 2 x the mean, so `target` meets the limit where the mean is
        limit / (2 x target)."""
        return self.capacities[server] * (1 - 0.02 * 2 * target / limit_s)


def sweep(store: Store, servers: Servers, plan: Design, slo: Goodput | None = SLO) -> Goodput:
    return asyncio.run(run(plan, store, servers.measure, slo))


def test_it_finds_each_servers_rate_in_each_round(tmp_path: Path) -> None:
    servers, store, plan = Servers(), Store(tmp_path, {}), design()
    sweep(store, servers, plan)
    found = results(plan, store.points, SLO)
    assert [(result.server, len(result.rates)) for result in found] == [("slow", 2), ("fast", 2)]
    for result in found:
        assert result.median == pytest.approx(servers.rate_at(result.server, 0.9, 0.1), rel=0.1)
        assert not result.is_a_bound


def test_a_server_that_a_handful_of_requests_never_load_is_told_as_such(tmp_path: Path) -> None:
    servers, plan = Servers(), design(rounds=1, n_requests=4)
    servers.capacities["fast"] = 1e9  # 4 requests in 45 ms at most: 89 a second
    store = Store(tmp_path, {})
    sweep(store, servers, plan)
    rates = [p.setting.rate or 0 for p in store.points if p.setting.server == "fast"]
    assert 256 <= max(rates) <= 1024
    found = {result.server: result for result in results(plan, store.points, SLO)}
    assert not found["slow"].is_out_of_reach
    assert found["fast"].is_out_of_reach
    told = sweep_report.markdown(
        Sweep(design=plan, points=store.points, slo=SLO, n_devices=1, request_log=None)
    )
    assert "**Not bounded by so few requests**: fast." in told
    assert "; --num-prompts 200 is likely enough." in told


@pytest.mark.parametrize(("limit_ms", "n"), [(None, 800), (1000, 800), (2000, 1200), (1999, 1200)])
def test_more_requests_by_how_far_the_slo_is_from_what_a_burst_takes(
    limit_ms: float | None, n: int
) -> None:
    """200 at once take up to 0.5 s."""
    servers, plan = Servers(), design(rounds=1)
    outcomes = [servers.outcome(k, 0.5) for k in range(200)]
    setting = Setting(part="search", server="fast", round=0, rate=4000, n_requests=200)
    point = Point(setting=setting, began=0, outcomes=tuple(outcomes))
    result = Result("fast", Goal(0.9, 1), (Bracket(4000, None),), is_out_of_reach=True)
    slo = Goodput(ttft_ms=limit_ms, tpot_ms=10)
    assert requests_to_bound(plan, [point], slo, result) == n


def test_servers_are_measured_in_turn(tmp_path: Path) -> None:
    servers = Servers()
    sweep(Store(tmp_path, {}), servers, design(rounds=1))
    first = [setting.server for setting in servers.measured[:8]]
    assert first == ["slow", "fast"] * 4


def test_a_tighter_scale_and_a_higher_target_have_lower_rates(tmp_path: Path) -> None:
    servers, store = Servers(), Store(tmp_path, {})
    plan = design(rounds=1, targets=(0.9, 0.99), scales=(1, 0.8))
    sweep(store, servers, plan)
    fast = {r.goal: r.median for r in results(plan, store.points, SLO) if r.server == "fast"}
    assert list(fast) == [Goal(0.9, 1), Goal(0.99, 1), Goal(0.9, 0.8), Goal(0.99, 0.8)]
    for goal, rate in fast.items():
        true = servers.rate_at("fast", goal.target, 0.1 * goal.scale)
        assert rate == pytest.approx(true, rel=0.1)


def test_a_sweep_that_is_killed_at_any_point_measures_nothing_twice(tmp_path: Path) -> None:
    whole = Servers()
    sweep(Store(tmp_path / "whole", {}), whole, design(rounds=1))

    class Killed(Servers):
        async def measure(self, setting: Setting) -> Point:
            if len(self.measured) == 3:
                raise KeyboardInterrupt
            return await super().measure(setting)

    measured: list[Setting] = []
    while len(measured) < len(whole.measured):
        servers = Killed()
        with suppress(KeyboardInterrupt):
            sweep(Store(tmp_path / "killed", {}), servers, design(rounds=1))
        assert servers.measured, "no progress"
        measured += servers.measured
    assert measured == whole.measured
    again = Servers()
    sweep(Store(tmp_path / "killed", {}), again, design(rounds=1))
    assert again.measured == []


def test_all_servers_are_compared_at_the_rate_that_the_best_one_keeps(tmp_path: Path) -> None:
    servers, store, plan = Servers(), Store(tmp_path, {}), design()
    sweep(store, servers, plan)
    best = max(result.median for result in results(plan, store.points, SLO))
    last = servers.measured[-4:]
    assert [(s.part, s.server, s.round, s.rate) for s in last] == [
        ("compare", "slow", 0, best),
        ("compare", "fast", 0, best),
        ("compare", "slow", 1, best),
        ("compare", "fast", 1, best),
    ]
    assert len(compared(store.points, "slow")) == 400


def test_without_limits_the_slo_is_that_of_the_fastest_server_alone(tmp_path: Path) -> None:
    store = Store(tmp_path, {})
    slo = sweep(store, Servers(), design(rounds=1), slo=None)
    alone = [point for point in store.points if point.setting.part == "solo"]
    medians = [sorted(o.ttft_s for o in point.outcomes)[1] for point in alone]
    assert len(medians) == 2
    assert slo.ttft_ms == pytest.approx(5 * min(medians) * 1e3)
    assert slo.tpot_ms == pytest.approx(15)


def test_a_server_that_answers_nothing_alone_is_named() -> None:
    setting = Setting(part="solo", server="broken", round=0, rate=None, n_requests=1)
    failed = Outcome(index=0, scheduled_s=0, sent_s=0, error="http_500")
    point = Point(setting=setting, began=0, outcomes=(failed,))
    with pytest.raises(ValueError, match=r"broken: .*http_500"):
        slo_of_solo([point])


def test_requests_a_point_by_target(tmp_path: Path) -> None:
    assert (requests_for(0.9), requests_for(0.95), requests_for(0.99)) == (200, 1000, 1000)
    servers = Servers()
    plan = design(rounds=1, targets=(0.9, 0.99), n_requests=None)
    store = Store(tmp_path, {})
    sweep(store, servers, plan)
    assert {setting.n_requests for setting in servers.measured} == {200, 1000}
    strict = [r for r in results(plan, store.points, SLO) if r.goal.target == 0.99]
    rates = {s.rate for s in servers.measured if s.n_requests == 1000}
    assert all(rate in rates for result in strict for rate in result.rates)


def test_a_scale_is_of_all_limits() -> None:
    assert scaled(Goodput(ttft_ms=100, e2el_ms=8), 0.5) == Goodput(ttft_ms=50, e2el_ms=4)
