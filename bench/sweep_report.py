"""What a sweep found, as a Markdown table, JSON and plots. Must not measure.

Whatever was measured is reported, also of a sweep that was stopped half way.
"""

import importlib.util
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from bench import comparison, measures, request_log
from bench.client import Outcome
from bench.comparison import Design, Result
from bench.measures import Goodput
from bench.report import latency
from bench.store import Point
from bench.sweep_progress import limits

_SCALES = np.geomspace(0.25, 4, 81)
_POINT_COLUMNS = (
    *("server", "part", "round", "req/s", "requests", "attainment"),
    *("TTFT p50 / p99 ms", "TPOT p50 / p99 ms", "tok/s", "errors"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """All that a report is made of."""

    design: Design
    points: tuple[Point, ...]
    slo: Goodput | None  # None: it was stopped before it was known
    n_devices: int  # of each server
    request_log: tuple[str, Path] | None  # of which server


def results(sweep: Sweep) -> list[Result]:
    """What is known by now; nothing before the SLO is."""
    if sweep.slo is None:
        return []
    return comparison.results(sweep.design, sweep.points, sweep.slo)


def write(sweep: Sweep, directory: Path) -> None:
    """report.md, report.json and plots in `directory`. Raises OSError, or ValueError where the
    request log is none."""
    found = results(sweep)
    (directory / "report.md").write_text(markdown(sweep))
    (directory / "report.json").write_bytes(
        msgspec.json.format(json.dumps(as_json(sweep)).encode()) + b"\n"
    )
    if can_plot() and sweep.slo is not None and found:
        _plot(sweep, sweep.slo, found, directory)


def can_plot() -> bool:
    """matplotlib is an extra."""
    return importlib.util.find_spec("matplotlib") is not None


def as_json(sweep: Sweep) -> dict[str, Any]:
    """Rates in requests/s; a point's keys are those of `bench.measures`."""
    return {
        "benchmark": "sweep",
        "slo": None if sweep.slo is None else msgspec.to_builtins(sweep.slo),
        "num_devices": sweep.n_devices,
        "goodput": [
            {
                "server": result.server,
                "attainment": result.goal.target,
                "slo_scale": result.goal.scale,
                "requests_a_point": sweep.design.requests(result.goal.target),
                "median": result.median,
                "by_round": result.rates,
                "is_a_bound": result.is_a_bound,
                "is_out_of_reach": result.is_out_of_reach,
            }
            for result in results(sweep)
        ],
        "points": [
            msgspec.to_builtins(point.setting) | _summary(point, sweep.slo)
            for point in sweep.points
        ],
    }


# --- the table ---------------------------------------------------------------------------------


def markdown(sweep: Sweep) -> str:
    """The whole report."""
    found = results(sweep)
    parts = ["# Goodput", _of_the_slo(sweep)]
    if found:
        parts.append(_goodput_table(sweep, found))
        parts += _remarks(sweep, found)
    parts += ["## Points", _point_table(sweep)]
    return "\n\n".join(parts) + "\n"


def _of_the_slo(sweep: Sweep) -> str:
    if sweep.slo is None:
        return "Stopped before the SLO was known."
    told = limits(sweep.slo)
    return f"SLO at scale 1: {told}. Rates in requests/s: median of the rounds (least to most)."


def _goodput_table(sweep: Sweep, found: Sequence[Result]) -> str:
    servers = sweep.design.servers
    by_place = {(result.goal, result.server): result for result in found}
    rows: list[list[str]] = []
    for goal in sweep.design.goals:
        cells = [f"{100 * goal.target:g} %", f"{goal.scale:g}"]
        first = by_place.get((goal, servers[0]))
        for server in servers:
            result = by_place.get((goal, server))
            cells.append("" if result is None else _cell(result, first))
        rows.append(cells)
    return _table(["attainment", "SLO scale", *servers], rows)


def _cell(result: Result, first: Result | None) -> str:
    bound = "≥ " if result.is_a_bound else ""
    spread = f" ({min(result.rates):.3g} to {max(result.rates):.3g})"
    times = ""
    if first is not None and first is not result and first.median:
        times = f", x {result.median / first.median:.2f}"
    return f"{bound}{result.median:.3g}{spread}{times}"


def _remarks(sweep: Sweep, found: Sequence[Result]) -> list[str]:
    """What a reader must know before believing the table."""
    remarks: list[str] = []
    for target in sorted(set(sweep.design.targets)):
        n, enough = sweep.design.requests(target), comparison.requests_for(target)
        if n < enough:
            remarks.append(
                f"**Few requests**: {n} a point, where {100 * target:g} % takes {enough}: "
                "the rates are less sure than they look."
            )
    beyond = [result for result in found if result.is_out_of_reach]
    if beyond and sweep.slo is not None:
        names = ", ".join(sorted({result.server for result in beyond}))
        n_more = max(
            comparison.requests_to_bound(sweep.design, sweep.points, sweep.slo, result)
            for result in beyond
        )
        remarks.append(
            f"**Not bounded by so few requests**: {names}. All are sent before the first ones end, "
            f"so a higher rate is no more load; --num-prompts {n_more} is likely enough."
        )
    n_rounds = {result.server: len(result.brackets) for result in found}
    if min(n_rounds.values()) < sweep.design.rounds or len(n_rounds) < len(sweep.design.servers):
        remarks.append("**Not finished**: some rounds or servers are missing.")
    if sweep.design.rounds == 1:
        remarks.append("**One round**: nothing is known of the spread.")
    return remarks


def _point_table(sweep: Sweep) -> str:
    rows: list[list[str]] = []
    for point in sorted(sweep.points, key=_place):
        setting, numbers = point.setting, _summary(point, sweep.slo)
        share = numbers["slo_attainment"]
        rows.append(
            [
                setting.server,
                setting.part,
                str(setting.round + 1),
                "one at a time" if setting.rate is None else f"{setting.rate:.4g}",
                str(setting.n_requests),
                "" if share is None else f"{100 * share:.1f} %",
                f"{latency(numbers, 'median', 'ttft', 1)} / {latency(numbers, 'p99', 'ttft', 1)}",
                f"{latency(numbers, 'median', 'tpot')} / {latency(numbers, 'p99', 'tpot')}",
                f"{numbers['output_throughput']:.1f}",
                ", ".join(f"{kind}: {n}" for kind, n in numbers["errors_by_kind"].items()),
            ]
        )
    return _table(list(_POINT_COLUMNS), rows)


def _place(point: Point) -> tuple[str, str, int, float]:
    setting = point.setting
    return (setting.server, setting.part, setting.round, setting.rate or 0.0)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _summary(point: Point, slo: Goodput | None) -> dict[str, Any]:
    return measures.summarise(point.outcomes, slo, measures.duration_s(point.outcomes))


# --- the plots ---------------------------------------------------------------------------------


def _plot(sweep: Sweep, slo: Goodput, found: Sequence[Result], directory: Path) -> None:
    from bench import plots  # matplotlib is an extra: tables are worth something without it

    servers, targets = sweep.design.servers, sweep.design.targets
    plots.attainment_by_rate(
        {server: comparison.curve(sweep.points, server, slo) for server in servers},
        {
            server: comparison.samples(comparison.of(sweep.points, server), slo)
            for server in servers
        },
        targets,
        directory / "attainment_by_rate.png",
    )
    plots.pareto({server: _pareto(sweep, server) for server in servers}, directory / "pareto.png")
    rate = comparison.common_rate(found)
    compared = {server: comparison.compared(sweep.points, server) for server in servers}
    if rate is None or not any(compared.values()):
        return
    plots.attainment_by_scale(
        {
            server: (list(_SCALES), _by_scale(outcomes, slo))
            for server, outcomes in compared.items()
        },
        targets,
        rate,
        directory / "attainment_by_scale.png",
    )
    plots.latency_cdfs(_latencies(compared), f"at {rate:g} requests/s", directory / "latency.png")
    if sweep.request_log is not None:
        _plot_timeline(sweep, *sweep.request_log, directory)


def _plot_timeline(sweep: Sweep, server: str, log: Path, directory: Path) -> None:
    from bench import plots

    own = [p for p in comparison.of(sweep.points, server) if p.setting.part == "compare"]
    if not own:
        return
    point = own[0]
    end = point.began + measures.duration_s(point.outcomes)
    lives = request_log.lives(request_log.read_log(log), begin=point.began, end=end)
    title = f"{server} at {point.setting.rate:g} requests/s"
    plots.timeline(lives, directory / "timeline.png", title)


def _by_scale(outcomes: Sequence[Outcome], slo: Goodput) -> list[float]:
    return [
        measures.attainment(outcomes, comparison.scaled(slo, float(scale))) for scale in _SCALES
    ]


def _latencies(compared: dict[str, list[Outcome]]) -> dict[str, dict[str, list[float]]]:
    by_server = {
        server: measures.series_s([outcome for outcome in outcomes if outcome.ok])
        for server, outcomes in compared.items()
    }
    return {
        name.upper(): {server: series[name] for server, series in by_server.items()}
        for name in ("ttft", "tpot", "itl", "e2el")
    }


def _pareto(sweep: Sweep, server: str) -> list[tuple[float, float]]:
    """A point each: (1 / median TPOT, output tokens/s of a device)."""
    pairs: list[tuple[float, float]] = []
    for point in comparison.of(sweep.points, server):
        numbers = _summary(point, None)
        if numbers["median_tpot_ms"]:
            per_device = numbers["output_throughput"] / sweep.n_devices
            pairs.append((measures.MS / numbers["median_tpot_ms"], per_device))
    return pairs
