"""Which plan serves most requests/s within an SLO: first by a fast model of all, then by the real
cores of the best.

The search is DistServe's (Zhong et al., OSDI 2024, arXiv 2401.09670, algorithm 1): goodput of each
placement by simulation and bisection on the rate. What is placed here are whole workers, a device
each, and both pools are simulated together, so that TTFT and TPOT are of the same requests. Batch
limits are searched beside the ratio, and the colocated engine by the same rules.

Pure but for what it is told of its progress. Must not print.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import mean

from bench.search import Bracket, Limits, Sample, bracket, is_out_of_reach, next_rate
from bench.simulate import plans, timed
from bench.simulate.plan_task import Task, candidates, capacity
from bench.simulate.plans import Plan, Seen, percentile_ms

MODEL_TOLERANCE = 0.02
FEW_DEVICES = 16  # up to them every ratio is searched, beyond some and those around the best
COARSE = 8  # ratios that are searched first
CLOSE = 0.95  # of the best rate by the model: verified, too
MOST_VERIFIED = 2  # plans with prefill workers
STEP, TOLERANCE, MOST_RUNS = 1.1, 0.06, 6  # of the search by the real cores
CURVE = (0.6, 0.8, 1.0, 1.2)  # times the best plan's rate: rates at which both are shown
SAME_RATE = 1.03
CORE_TOKENS = 130_000  # a device, in all runs of the real cores: so many take 3 to 6 s
PROMPT_WEIGHT = 1 / 16  # of a prompt's token, beside one that is drawn
LEAST_DEVICES = 12  # fewer may take as long as so many
USUAL_RUNS = 16
Say = Callable[[str], object]


@dataclass(frozen=True, kw_only=True)
class Point:
    """What is seen at one rate."""

    rate: float
    attainment: float  # 0 to 1
    ttft_ms: float  # that the target's share keeps
    tpot_ms: float
    completed: float  # requests/s


@dataclass(kw_only=True)
class Found:
    """A plan, and what was seen of it, by the fast model or by the real cores."""

    plan: Plan
    target: float
    n_requests: int
    points: list[Point] = field(default_factory=list[Point])

    @property
    def samples(self) -> list[Sample]:
        return [Sample(p.rate, p.attainment, self.n_requests, p.completed) for p in self.points]

    @property
    def bracket(self) -> Bracket:
        return bracket(self.samples, self.target)

    @property
    def rate(self) -> float:
        """The highest that keeps the target; 0 if none does."""
        return self.bracket.kept or 0.0

    @property
    def is_bound(self) -> bool:
        """So few requests do not tell its rate from any higher one."""
        return is_out_of_reach(self.samples, self.target)


def point(task: Task, seen: Seen, rate: float) -> Point:
    return Point(
        rate=rate,
        attainment=seen.attainment(task.slo),
        ttft_ms=percentile_ms(seen.ttft_s, task.target),
        tpot_ms=percentile_ms(seen.tpot_s, task.target),
        completed=seen.completed,
    )


def by_model(task: Task, plan: Plan, rate: float) -> Point:
    return point(task, plans.predict(plan, task.requests, rate, task.device), rate)


def by_cores(task: Task, plan: Plan, rate: float) -> Point:
    asks = plans.asks(task.requests, rate)
    run = timed.serve(asks, plans.shape(plan, task.device))
    return point(task, plans.seen(run), rate)


# --- the fast model ------------------------------------------------------------------------------


def survey(task: Task, say: Say = lambda _: None) -> list[Found]:
    """The best limits of each ratio that was searched, by the model: colocated first, then by
    prefill workers."""
    found = {0: best_of_ratio(task, 0)}
    say(told(found[0]))
    for prefills in _ratios(task.n_devices, found):
        found[prefills] = best_of_ratio(task, prefills)
        say(told(found[prefills]))
    return [found[prefills] for prefills in sorted(found)]


def _ratios(n_devices: int, found: dict[int, Found]) -> Iterator[int]:
    """Prefill workers to be searched next: all, or some evenly spread and then those half-way
    between the best and its neighbours (goodput over the ratio has one peak)."""
    if n_devices <= FEW_DEVICES:
        yield from range(1, n_devices)
        return
    spread = [round(k * n_devices / (COARSE + 1)) for k in range(1, COARSE + 1)]
    yield from sorted({1, *spread, n_devices - 1})
    while True:
        known = sorted(n for n in found if n)
        at = known.index(max(known, key=lambda n: found[n].rate))
        around = known[max(0, at - 1) : at + 2]
        middles = [(a + b) // 2 for a, b in pairwise(around) if b - a > 1]
        if not middles:
            return
        yield from middles


def best_of_ratio(task: Task, prefills: int) -> Found:
    """A candidate that does not keep the target at a rate above the best one's is left at that."""
    best: Found | None = None
    for plan in candidates(task, prefills):
        found = Found(plan=plan, target=task.target, n_requests=len(task.requests))
        if best is not None and best.rate:
            first = by_model(task, plan, best.rate * (1 + MODEL_TOLERANCE))
            if first.attainment < task.target:
                continue
            found.points.append(first)
        start = max([p.rate for p in found.points], default=capacity(task, plan) / 2)
        limits = _around(start, step=1.5, tolerance=MODEL_TOLERANCE)
        _search(found, limits, lambda rate, plan=plan: by_model(task, plan, rate))
        if best is None or found.rate > best.rate:
            best = found
    assert best is not None  # there is always a candidate
    return best


def _around(start: float, *, step: float, tolerance: float) -> Limits:
    return Limits(
        start=start, lowest=start / 2**16, highest=start * 2**16, step=step, tolerance=tolerance
    )


def _search(found: Found, limits: Limits, see: Callable[[float], Point], most: int = 40) -> None:
    while len(found.points) < most:
        rate = next_rate(found.samples, found.target, limits)
        if rate is None:
            return
        found.points.append(see(rate))


def told(found: Found) -> str:
    return f"{found.plan.name:>10}  {found.rate:10.4g}  {found.plan.limits}"


# --- the real cores ------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Verified:
    """A finalist by the cores, and what the model says of the same requests and rates."""

    surveyed: Found  # with all requests
    cores: Found
    model: Found

    @property
    def rate(self) -> float:
        return self.cores.rate

    @property
    def error(self) -> float:
        """The most that the model's attainment is off, in points."""
        pairs = zip(self.cores.points, self.model.points, strict=True)
        return 100 * max(abs(a.attainment - b.attainment) for a, b in pairs)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What is known in the end. Colocated is the last that was verified."""

    surveyed: Sequence[Found]
    verified: Sequence[Verified]

    @property
    def best(self) -> Verified:
        return max(self.verified, key=lambda one: one.rate)

    @property
    def colocated(self) -> Verified:
        return self.verified[-1]

    @property
    def split(self) -> Verified | None:
        """The best with prefill workers; None: there is but one device."""
        return max(self.verified[:-1], key=lambda one: one.rate, default=None)

    @property
    def n_requests(self) -> int:
        """Of a run by the cores."""
        return self.colocated.cores.n_requests

    @property
    def reversed_pairs(self) -> list[tuple[Verified, Verified]]:
        """(a, b): the model has a before b by more than the search's tolerance, the cores b
        before a by as much."""
        return [
            (a, b)
            for a in self.verified
            for b in self.verified
            if a.surveyed.rate > b.surveyed.rate * (1 + TOLERANCE)
            and b.rate > a.rate * (1 + TOLERANCE)
        ]


def search(task: Task, say: Say = lambda _: None, *, n_verified: int | None = None) -> Outcome:
    """`n_verified`: requests of each run by the real cores; None: as many as end in time.

    `task` can be kept (`bench.simulate.plan_task.refusal`).
    """
    surveyed = survey(task, say)
    fewer = replace(task, requests=task.requests[: n_verified or requests_a_run(task)])
    return Outcome(surveyed=surveyed, verified=verify(fewer, finalists(surveyed), say))


def finalists(surveyed: Sequence[Found]) -> list[Found]:
    """The best with prefill workers, the best first; and colocated."""
    colocated, *others = surveyed
    ranked = sorted(others, key=lambda found: found.rate, reverse=True)
    close = [found for found in ranked if found.rate >= CLOSE * ranked[0].rate]
    return [*close[:MOST_VERIFIED], colocated]


def requests_a_run(task: Task) -> int:
    """So many that all runs of the real cores take `CORE_TOKENS` a device or less."""
    tokens = mean(PROMPT_WEIGHT * len(r.prompt) + r.output_tokens for r in task.requests)
    most = CORE_TOKENS * max(LEAST_DEVICES, task.n_devices) / USUAL_RUNS / tokens
    return max(1, min(len(task.requests), round(most)))


def verify(task: Task, final: Sequence[Found], say: Say = lambda _: None) -> list[Verified]:
    """In the order given, of which the last is colocated. `task` may have fewer requests than they
    were found with."""
    n = len(task.requests)
    found = [Found(plan=one.plan, target=task.target, n_requests=n) for one in final]

    def see(plan: Plan, rate: float) -> Point:
        seen = by_cores(task, plan, rate)
        say(f"{plan.name:>10}  {rate:10.4g}  {100 * seen.attainment:5.1f} % by the real cores")
        return seen

    for modelled, one in zip(final, found, strict=True):
        start = _rate_by_model(task, modelled) or capacity(task, one.plan)
        limits = _around(start, step=STEP, tolerance=TOLERANCE)
        _search(one, limits, lambda rate, plan=one.plan: see(plan, rate), MOST_RUNS)
    best = max(one.rate for one in found)
    shown = [*sorted(found[:-1], key=lambda one: one.rate)[-1:], found[-1]]
    for one in shown:
        for rate in _rates_lacking(one, best):
            one.points.append(see(one.plan, rate))
    return [_beside_model(task, *pair) for pair in zip(final, found, strict=True)]


def _rate_by_model(task: Task, known: Found) -> float:
    """Of a plan whose rate is known with other requests."""
    found = Found(plan=known.plan, target=task.target, n_requests=len(task.requests))
    start = known.rate or capacity(task, known.plan)
    limits = _around(start, step=STEP, tolerance=MODEL_TOLERANCE)
    _search(found, limits, lambda rate: by_model(task, found.plan, rate))
    return found.rate


def _rates_lacking(found: Found, best: float) -> list[float]:
    """Of the curve that all share."""
    rates = [part * best for part in CURVE]
    known = [point.rate for point in found.points]
    return [r for r in rates if not any(1 / SAME_RATE < k / r < SAME_RATE for k in known)]


def _beside_model(task: Task, surveyed: Found, cores: Found) -> Verified:
    cores.points.sort(key=lambda one: one.rate)
    model = Found(plan=cores.plan, target=task.target, n_requests=cores.n_requests)
    model.points += [by_model(task, cores.plan, one.rate) for one in cores.points]
    return Verified(surveyed=surveyed, cores=cores, model=model)
