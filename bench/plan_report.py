"""What `baton plan` says: text, JSON and a plot, of what `bench.simulate.planner` has found.

Must not search or judge.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from bench.measures import Goodput
from bench.search import never_rising
from bench.simulate.plan_task import Task
from bench.simulate.planner import Found, Outcome, Point, Verified

FAR_OFF = 10  # points of attainment


def text(task: Task, outcome: Outcome) -> str:
    """Of the search by the model, the verification by the cores, the curve, and what to start."""
    device, percent = task.device, 100 * task.target
    parts = [
        f"{device.model} on {device.device}, {device.dtype}; {task.n_devices} devices, "
        f"{len(task.requests)} requests, {percent:g} % of which must keep {_slo(task.slo)}",
        *_survey(outcome.surveyed),
        *_verified(task, outcome),
        *_curve(outcome),
        *_remarks(outcome),
        f"best: baton serve {outcome.best.cores.plan.flags}",
    ]
    beside = outcome.split if outcome.best is outcome.colocated else outcome.colocated
    if beside is not None and beside is not outcome.best:
        parts.append(f"beside it: baton serve {beside.cores.plan.flags}")
    return "\n".join(parts)


def as_json(task: Task, outcome: Outcome, workload: str) -> dict[str, Any]:
    """Rates in requests/s, attainment from 0 to 1, times in ms; null: no such value."""
    split = outcome.split
    return {
        "benchmark": "plan",
        "devices": task.n_devices,
        "workload": workload,
        "requests": len(task.requests),
        "verified_requests": outcome.n_requests,
        "slo": msgspec.to_builtins(task.slo),
        "attainment": task.target,
        "costs": msgspec.to_builtins(task.device),
        "best": outcome.best.cores.plan.name,
        "plan": None if split is None else _verified_json(task, split),
        "colocated": _verified_json(task, outcome.colocated),
        "verified": [_verified_json(task, one) for one in outcome.verified],
        "searched": [_found_json(task, found) for found in outcome.surveyed],
        "ranking_reversed": [
            [a.cores.plan.name, b.cores.plan.name] for a, b in outcome.reversed_pairs
        ],
    }


def plot(task: Task, outcome: Outcome, path: Path) -> None:
    """Attainment by rate: dots by the real cores, the curve through them. Needs matplotlib."""
    from bench.plots import attainment_by_rate

    shown = {one.cores.plan.name: one.cores.samples for one in outcome.verified}
    curves = {name: never_rising(samples) for name, samples in shown.items()}
    attainment_by_rate(curves, shown, [task.target], path)


def _slo(slo: Goodput) -> str:
    limits = (("TTFT", slo.ttft_ms), ("TPOT", slo.tpot_ms), ("E2EL", slo.e2el_ms))
    return ", ".join(f"{name} {ms:g} ms" for name, ms in limits if ms is not None)


def _survey(surveyed: Sequence[Found]) -> list[str]:
    best = max(surveyed, key=lambda found: found.rate)
    rows = [
        f"{found.plan.name:>16} {_rate(found):>12}   {found.plan.limits}"
        f"{'   <' if found is best else ''}"
        for found in surveyed
    ]
    return ["", "searched by the fast model", f"{'prefill:decode':>16} {'requests/s':>12}", *rows]


def _verified(task: Task, outcome: Outcome) -> list[str]:
    n = task.n_devices
    rows = [
        f"{one.cores.plan.name:>16} {_rate(one.cores):>12} {_lost(one.cores):>12} "
        f"{one.rate / n:>12.4g} {one.error:>14.1f}"
        for one in outcome.verified
    ]
    return [
        "",
        f"the best by the real schedulers, {outcome.n_requests} requests a run",
        f"{'prefill:decode':>16} {'requests/s':>12} {'not at':>12} {'a device':>12}"
        f" {'model off by':>14}",
        *rows,
    ]


def _rate(found: Found) -> str:
    return f"{'>' if found.is_bound else ''}{_told(found.rate)}"


def _lost(found: Found) -> str:
    lost = found.bracket.lost
    return "-" if lost is None else _told(lost)


def _curve(outcome: Outcome) -> list[str]:
    """A row for each rate that any plan was run at, a column for each plan."""
    shown = [one.cores for one in outcome.verified]
    rates = dict.fromkeys(_told(rate) for rate in sorted(p.rate for f in shown for p in f.points))
    header = "".join(f" {found.plan.name:>12}" for found in shown)
    rows = [
        f"{rate:>16}" + "".join(f" {_attainment_at(found, rate):>12}" for found in shown)
        for rate in rates
    ]
    return ["", "predicted SLO attainment, %", f"{'requests/s':>16}{header}", *rows, ""]


def _attainment_at(found: Found, rate: str) -> str:
    at = [point.attainment for point in found.points if _told(point.rate) == rate]
    return f"{100 * at[0]:.1f}" if at else "-"


def _told(rate: float) -> str:
    return f"{rate:.4g}"


def _remarks(outcome: Outcome) -> list[str]:
    remarks = [
        f"the fast model has {a.cores.plan.name} before {b.cores.plan.name}, the real schedulers "
        f"{b.cores.plan.name} before {a.cores.plan.name}: ratios that only the model has seen may "
        "be misjudged by as much"
        for a, b in outcome.reversed_pairs
    ]
    remarks += [
        f"the fast model, which has chosen the limits of {one.cores.plan.name}, is off by up to "
        f"{one.error:.0f} points there: others may do better"
        for one in outcome.verified
        if one.error > FAR_OFF
    ]
    if any(one.cores.is_bound for one in outcome.verified):
        remarks.append(
            "so few requests load these devices at no rate (>): ask for more with --num-prompts "
            "and --verify-requests"
        )
    return remarks


def _verified_json(task: Task, one: Verified) -> dict[str, Any]:
    made = _found_json(task, one.cores)
    lost = one.cores.bracket.lost
    return made | {
        "lost_at": lost,
        "model_goodput": one.surveyed.rate,
        "model_error_points": one.error,
        "curve": [
            _point_json(seen) | {"model_attainment": modelled.attainment}
            for seen, modelled in zip(one.cores.points, one.model.points, strict=True)
        ],
    }


def _found_json(task: Task, found: Found) -> dict[str, Any]:
    plan = found.plan
    return {
        "name": plan.name,
        "prefill": plan.prefills,
        "decode": plan.decodes,
        "flags": plan.flags,
        "goodput": found.rate,
        "goodput_per_device": found.rate / task.n_devices,
        "is_bound": found.is_bound,
    }


def _point_json(point: Point) -> dict[str, Any]:
    return {
        "rate": point.rate,
        "attainment": point.attainment,
        "ttft_ms": _finite(point.ttft_ms),
        "tpot_ms": _finite(point.tpot_ms),
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
