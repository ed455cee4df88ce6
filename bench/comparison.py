"""What a sweep measures next, and what its points say: pure.

A goal is a share of requests (90 %) that must meet an SLO at some scale of it (1: the SLO itself;
DistServe's figure 9). Every goal is searched for in every round at every server, all of them on
the same points: a point is measured once and judged by each. Must not measure or write anything.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from statistics import median

import numpy as np

from bench import measures
from bench.client import Outcome
from bench.measures import Goodput
from bench.search import (
    Bracket,
    Limits,
    Sample,
    bracket,
    is_out_of_reach,
    never_rising,
    next_rate,
)
from bench.store import Point, Setting

SOLO_TTFTS = 5.0  # an SLO at scale 1 is so many times what one request alone takes
SOLO_TPOTS = 3.0
_REQUESTS = ((0.9, 200), (1.0, 1000))
"""(Attainment up to, requests that it takes to tell it apart from a point or two less.)"""
_MORE, _SPARE, _ROUND = 4, 1.5, 100
"""Of requests that are to bound a rate: times as many, at least; times what seems enough; a
multiple of."""


@dataclass(frozen=True, slots=True, order=True)
class Goal:
    """The highest rate at which `target` of the requests meet the SLO times `scale`."""

    target: float  # 0 to 1
    scale: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """What a sweep is to find out."""

    servers: tuple[str, ...]
    rounds: int
    targets: tuple[float, ...]
    scales: tuple[float, ...]
    limits: Limits
    n_solo: int  # requests, one at a time, that the SLO is taken from
    n_requests: int | None  # a point; None: `requests_for` the target

    @property
    def goals(self) -> tuple[Goal, ...]:
        """Those of scale 1 first, or of the scale next to it."""
        scales = sorted(self.scales, key=lambda scale: abs(np.log(scale)))
        return tuple(Goal(target, scale) for scale, target in product(scales, sorted(self.targets)))

    def requests(self, target: float) -> int:
        return self.n_requests or requests_for(target)


@dataclass(frozen=True, slots=True)
class Result:
    """One server's answer to one goal; requests/s."""

    server: str
    goal: Goal
    brackets: tuple[Bracket, ...]  # a round each
    is_out_of_reach: bool  # in some round so few requests bound it by no rate

    @property
    def rates(self) -> list[float]:
        """By round; 0 where no rate keeps it."""
        return [found.kept or 0.0 for found in self.brackets]

    @property
    def median(self) -> float:
        return median(self.rates)

    @property
    def is_a_bound(self) -> bool:
        """In some round every rate measured kept it: the true one is higher."""
        return any(found.lost is None for found in self.brackets)


def requests_for(target: float) -> int:
    """The least requests a point that a target is told by."""
    return next(n for at_most, n in _REQUESTS if target <= at_most)


def solo_setting(design: Design, points: Sequence[Point]) -> Setting | None:
    """The next measurement of one request at a time; None when all servers have one."""
    done = {point.setting.server for point in points if point.setting.part == "solo"}
    missing = [name for name in design.servers if name not in done]
    if not missing:
        return None
    return Setting(part="solo", server=missing[0], round=0, rate=None, n_requests=design.n_solo)


def slo_of_solo(points: Sequence[Point]) -> Goodput:
    """From the fastest server alone, so that all servers are held to one SLO.

    Raises ValueError where a server answered none of its requests.
    """
    ttfts_ms: list[float] = []
    tpots_ms: list[float] = []
    for point in points:
        if point.setting.part != "solo":
            continue
        good = [outcome for outcome in point.outcomes if outcome.ok]
        tpots = [outcome.tpot_s for outcome in good if outcome.tpot_s is not None]
        if not tpots:
            kinds = sorted({outcome.error for outcome in point.outcomes if outcome.error})
            raise ValueError(
                f"{point.setting.server}: no answer of two tokens or more to one request at a time "
                f"({', '.join(kinds) or 'short answers'})"
            )
        ttfts_ms.append(median(outcome.ttft_s for outcome in good) * measures.MS)
        tpots_ms.append(median(tpots) * measures.MS)
    return Goodput(ttft_ms=SOLO_TTFTS * min(ttfts_ms), tpot_ms=SOLO_TPOTS * min(tpots_ms))


def scaled(slo: Goodput, scale: float) -> Goodput:
    """All limits times `scale`."""
    limits = (slo.ttft_ms, slo.tpot_ms, slo.e2el_ms)
    ttft_ms, tpot_ms, e2el_ms = (None if ms is None else ms * scale for ms in limits)
    return Goodput(ttft_ms=ttft_ms, tpot_ms=tpot_ms, e2el_ms=e2el_ms)


def samples(points: Sequence[Point], slo: Goodput, *, at_least: int = 0) -> list[Sample]:
    """Of the points under load that have `at_least` so many requests."""
    return [
        Sample(
            point.setting.rate,
            measures.attainment(point.outcomes, slo),
            point.setting.n_requests,
            measures.throughput(point.outcomes),
        )
        for point in points
        if point.setting.rate is not None and point.setting.n_requests >= at_least
    ]


def of(points: Sequence[Point], server: str, number: int | None = None) -> list[Point]:
    """Those of one server, in round `number` if it is given."""
    return [
        point
        for point in points
        if point.setting.server == server and number in (None, point.setting.round)
    ]


def next_setting(
    design: Design, points: Sequence[Point], slo: Goodput, number: int
) -> Setting | None:
    """Of round `number`; None: every goal is met. The servers go through it side by side: the one
    with the fewest points is next."""
    searched = [point for point in points if point.setting.part == "search"]
    turns = sorted(design.servers, key=lambda server: len(of(searched, server, number)))
    found = (_next_setting(design, searched, slo, server, number) for server in turns)
    return next((setting for setting in found if setting is not None), None)


def _next_setting(
    design: Design, searched: Sequence[Point], slo: Goodput, server: str, number: int
) -> Setting | None:
    searched = of(searched, server)
    own = of(searched, server, number)
    for goal in design.goals:
        n_requests, limit = design.requests(goal.target), scaled(slo, goal.scale)
        limits = design.limits
        known = bracket(samples(searched, limit), goal.target).kept
        if known is not None and limits.lowest <= known <= limits.highest:
            limits = limits.from_start(known)
        rate = next_rate(samples(own, limit, at_least=n_requests), goal.target, limits)
        if rate is not None:
            return Setting(
                part="search", server=server, round=number, rate=rate, n_requests=n_requests
            )
    return None


def results(design: Design, points: Sequence[Point], slo: Goodput) -> list[Result]:
    """By goal, then by server, of the rounds that have points."""
    found: list[Result] = []
    searched = [point for point in points if point.setting.part == "search"]
    for goal, server in product(design.goals, design.servers):
        limit, at_least = scaled(slo, goal.scale), design.requests(goal.target)
        by_round = [
            samples(of(searched, server, number), limit, at_least=at_least)
            for number in range(design.rounds)
        ]
        brackets = [bracket(seen, goal.target) for seen in by_round if seen]
        if brackets:
            unbounded = any(is_out_of_reach(seen, goal.target) for seen in by_round)
            found.append(Result(server, goal, tuple(brackets), unbounded))
    return found


def requests_to_bound(design: Design, points: Sequence[Point], slo: Goodput, result: Result) -> int:
    """So many a point that this result, which so few bound by no rate, likely is. The last of a
    burst waits for all before it: latencies are taken to grow with how many there are."""
    n_requests, limit = design.requests(result.goal.target), scaled(slo, result.goal.scale)
    own = [
        point
        for point in of(points, result.server)
        if point.setting.part == "search" and point.setting.n_requests >= n_requests
    ]
    fastest = max(own, key=lambda point: point.setting.rate or 0.0)
    series = measures.series_s([outcome for outcome in fastest.outcomes if outcome.ok])
    room = [
        limit_ms / measures.MS / float(np.quantile(series[name], result.goal.target))
        for name, limit_ms in (("ttft", limit.ttft_ms), ("e2el", limit.e2el_ms))
        if limit_ms is not None and series[name]
    ]
    wanted = n_requests * max(_MORE, _SPARE * min(room, default=0.0))
    return _ROUND * math.ceil(max(wanted, requests_for(result.goal.target)) / _ROUND)


def common_rate(found: Sequence[Result]) -> float | None:
    """Where servers are best compared at one rate: the most that any of them keeps up with."""
    rates = [result.median for result in found if result.goal == found[0].goal]
    return max(rates, default=0.0) or None


def common_settings(design: Design, points: Sequence[Point], rate: float) -> list[Setting]:
    """Those at that rate that are missing, interleaved."""
    n_requests = design.requests(min(design.targets))
    wanted = [
        Setting(part="compare", server=server, round=number, rate=rate, n_requests=n_requests)
        for number, server in product(range(design.rounds), design.servers)
    ]
    done = {point.setting.key for point in points}
    return [setting for setting in wanted if setting.key not in done]


def compared(points: Sequence[Point], server: str) -> list[Outcome]:
    """Of all rounds at the common rate together."""
    own = [point for point in of(points, server) if point.setting.part == "compare"]
    return [outcome for point in own for outcome in point.outcomes]


def curve(points: Sequence[Point], server: str, slo: Goodput) -> list[Sample]:
    """Attainment by rate of all rounds together, noise taken out: it never rises."""
    return never_rising(samples(of(points, server), slo))
