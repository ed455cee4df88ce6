"""What a sweep says of each point while it goes: whether it keeps the SLO, and what is left. Pure.

Must not measure, judge otherwise than `bench.comparison` does, or print.
"""

from collections.abc import Sequence

from bench import comparison, measures
from bench.comparison import Design, Goal
from bench.measures import Goodput
from bench.report import latency
from bench.search import Bracket, bracket, is_out_of_reach
from bench.store import Point


def limits(slo: Goodput) -> str:
    pairs = (("TTFT", slo.ttft_ms), ("TPOT", slo.tpot_ms), ("E2EL", slo.e2el_ms))
    return ", ".join(f"{name} ≤ {_rounded(ms)} ms" for name, ms in pairs if ms is not None)


def of_point(design: Design, points: Sequence[Point], slo: Goodput | None, point: Point) -> str:
    """One line. `points`: all so far, this one too; `slo`: at scale 1, None: not known yet."""
    told = [point.setting.key]
    if slo is not None and point.setting.rate is not None:
        shares = (
            f"{100 * measures.attainment(point.outcomes, comparison.scaled(slo, scale)):.1f} % "
            f"{'keep the SLO' if scale == 1 else f'at scale {scale:g}'}"
            for scale in sorted(design.scales, reverse=True)
        )
        told.append(", ".join(shares))
    told.append(_latencies(point))
    if slo is not None and point.setting.part == "search":
        told.append(_standing(design, points, slo, point))
    return "; ".join(told)


def _latencies(point: Point) -> str:
    numbers = measures.summarise(point.outcomes, None, measures.duration_s(point.outcomes))
    errors = "".join(
        f", {kind} {n} time{'s' * (n > 1)}" for kind, n in numbers["errors_by_kind"].items()
    )
    if not numbers["completed"]:
        return f"nothing was answered{errors}"
    return (
        f"TTFT {latency(numbers, 'median', 'ttft', 1)} ms, p99 "
        f"{latency(numbers, 'p99', 'ttft', 1)}, TPOT {latency(numbers, 'median', 'tpot')} ms, p99 "
        f"{latency(numbers, 'p99', 'tpot')}{errors}"
    )


def _standing(design: Design, points: Sequence[Point], slo: Goodput, point: Point) -> str:
    """By goal, between which rates its answer lies in this round by now."""
    setting = point.setting
    searched = [one for one in points if one.setting.part == "search"]
    own = comparison.of(searched, setting.server, setting.round)
    told: list[str] = []
    for goal in design.goals:
        limit, at_least = comparison.scaled(slo, goal.scale), design.requests(goal.target)
        seen = comparison.samples(own, limit, at_least=at_least)
        found = bracket(seen, goal.target)
        is_over = found.is_within(design.limits.tolerance) or is_out_of_reach(seen, goal.target)
        told.append(f"{_name(goal)} {_between(found)}{', found' if is_over else ''}")
    return f"round {setting.round + 1} of {design.rounds}, so far: {'; '.join(told)}"


def _name(goal: Goal) -> str:
    scale = "" if goal.scale == 1 else f" at scale {goal.scale:g}"
    return f"{100 * goal.target:g} %{scale}"


def _between(found: Bracket) -> str:
    match found.kept, found.lost:
        case None, None:
            return "not asked yet"
        case kept, None:
            return f"kept at {kept:g}, lost at no rate yet"
        case None, lost:
            return f"lost at {lost:g}, kept at no rate yet"
        case kept, lost:
            return f"kept at {kept:g}, lost at {lost:g}"


def _rounded(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
