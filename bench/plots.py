"""Pictures of measurements, as PNG files. Needs matplotlib (the extra `bench`); no display.

Takes numbers that others have computed. Must not measure or judge.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from numpy.typing import NDArray

from bench.request_log import Life, Stage
from bench.search import Sample

_DPI = 120
_WIDTH, _HEIGHT = 7.0, 4.2  # inches, of one plot
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
STAGES = {  # (colour, height)
    Stage.QUEUE: ("#bbbbbb", 0.8),
    Stage.PREFILL: ("#0072b2", 0.8),
    Stage.DECODE: ("#009e73", 0.8),
    Stage.TRANSFER: ("#d55e00", 0.3),
}


def attainment_by_rate(
    curves: Mapping[str, Sequence[Sample]],
    measured: Mapping[str, Sequence[Sample]],
    targets: Sequence[float],
    path: Path,
) -> None:
    """DistServe's figure 8: by server, the fitted curve over its measured points."""
    figure, axes = _figure()
    for (server, curve), colour in zip(curves.items(), _cycle(curves), strict=True):
        rates = [sample.rate for sample in curve]
        axes.plot(rates, _percent(curve), color=colour, label=server)
        dots = measured[server]
        axes.scatter([dot.rate for dot in dots], _percent(dots), color=colour, s=14, alpha=0.6)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(_plain)
    _attainment(axes, targets)
    axes.set_xlabel("requests/s")
    _save(figure, path)


def attainment_by_scale(
    curves: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    targets: Sequence[float],
    rate: float,
    path: Path,
) -> None:
    """DistServe's figure 9: by server, (SLO scales, attainment from 0 to 1) at one rate."""
    figure, axes = _figure(f"at {rate:g} requests/s")
    for (server, (scales, shares)), colour in zip(curves.items(), _cycle(curves), strict=True):
        axes.plot(scales, [100 * share for share in shares], color=colour, label=server)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(_plain)
    axes.invert_xaxis()  # tighter to the right, as there
    _attainment(axes, targets)
    axes.set_xlabel("SLO scale")
    _save(figure, path)


def attainment_by_rate_and_scale(
    by_rate: Mapping[str, Sequence[Sample]],
    by_scale: tuple[Sequence[float], Mapping[str, Sequence[float]]],
    *,
    target: float,
    titles: tuple[str, str],
    path: Path,
    marks: Mapping[str, Sequence[Sample]] | None = None,
) -> None:
    """DistServe's figures 8 and 9 side by side, by layout: rates are requests/s per device;
    `by_scale`: (SLO scales, attainment from 0 to 1 of each layout); `marks`: of others, at rates.
    """
    figure = Figure(figsize=(1.5 * _WIDTH, 0.9 * _HEIGHT), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, sharey=True)
    scales, shares = by_scale
    for (name, samples), colour in zip(by_rate.items(), _cycle(by_rate), strict=True):
        rates = [sample.rate for sample in samples]
        left.plot(rates, _percent(samples), color=colour, label=name, marker=".")
        right.plot(scales, [100 * share for share in shares[name]], color=colour, marker=".")
    for (name, samples), marker in zip((marks or {}).items(), "x+1", strict=False):
        rates = [sample.rate for sample in samples]
        left.scatter(rates, _percent(samples), color="black", marker=marker, label=name, zorder=3)
    left.set_xlabel("requests/s per device")
    right.set_xscale("log", base=2)
    right.xaxis.set_major_formatter(_plain)
    right.invert_xaxis()  # tighter to the right, as there
    right.set_xlabel("SLO scale")
    for axes, title in zip((left, right), titles, strict=True):
        axes.set_title(title, fontsize="medium")
        _attainment(axes, [target])
    right.set_ylabel("")
    _save(figure, path)


def ratio_maps(
    panels: Mapping[str, tuple[Sequence[float], Sequence[float], NDArray[np.float64]]], path: Path
) -> None:
    """One panel a workload: (TTFT limits, TPOT limits, both in seconds and ascending,
    disaggregated over colocated goodput [TTFTs, TPOTs]; NaN: neither has any, inf: one has)."""
    figure = Figure(figsize=(_WIDTH * len(panels), 1.1 * _HEIGHT), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle("goodput per device, disaggregated over colocated, each at its best")
    for number, (name, (ttfts_s, tpots_s, ratios)) in enumerate(panels.items(), 1):
        axes = figure.add_subplot(1, len(panels), number)
        colours = np.log2(np.clip(np.where(np.isnan(ratios), 1.0, ratios), 0.5, 2.0))
        axes.imshow(colours, cmap="PuOr", vmin=-1, vmax=1, origin="lower", aspect="auto")
        for (row, column), ratio in np.ndenumerate(ratios):
            colour = "white" if abs(colours[row, column]) > 0.7 else "black"
            axes.text(column, row, _times(ratio), ha="center", va="center", color=colour)
        axes.set_xticks(range(len(tpots_s)), [f"{1e3 * tpot_s:g}" for tpot_s in tpots_s])
        axes.set_yticks(range(len(ttfts_s)), [f"{ttft_s:g}" for ttft_s in ttfts_s])
        axes.set_xlabel("TPOT limit (ms)")
        axes.set_ylabel("TTFT limit (s)")
        axes.set_title(name, fontsize="medium")
    _save(figure, path)


def latency_cdfs(
    seconds: Mapping[str, Mapping[str, Sequence[float]]], title: str, path: Path
) -> None:
    """`seconds`: metric -> server -> values; one plot a metric, in ms, two in a row."""
    n_rows = -(-len(seconds) // 2)
    figure = Figure(figsize=(1.5 * _WIDTH, 0.9 * _HEIGHT * n_rows), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title)
    for number, (metric, by_server) in enumerate(seconds.items(), 1):
        axes = figure.add_subplot(n_rows, 2, number)
        for (server, values), colour in zip(by_server.items(), _cycle(by_server), strict=True):
            shares = 100 * np.arange(1, len(values) + 1) / max(len(values), 1)
            axes.step(np.sort(values) * 1e3, shares, where="post", color=colour, label=server)
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(_plain)
        axes.xaxis.set_minor_formatter(_plain)
        axes.tick_params(axis="x", which="both", labelsize="x-small")
        axes.set_xlabel(f"{metric} (ms)")
        axes.set_ylabel("% that are at most so long")
        axes.grid(alpha=0.3)
        _legend(axes)
    _save(figure, path)


def pareto(points: Mapping[str, Sequence[tuple[float, float]]], path: Path) -> None:
    """By server, (tokens/s that a user sees, tokens/s that a device gives), a load each."""
    figure, axes = _figure()
    for (server, pairs), colour in zip(points.items(), _cycle(points), strict=True):
        front = pareto_front(pairs)
        axes.scatter(*np.array(pairs).reshape(-1, 2).T, color=colour, s=14, alpha=0.5)
        axes.plot(*np.array(front).reshape(-1, 2).T, color=colour, label=server)
    axes.set_xlabel("throughput per user (tokens/s)")
    axes.set_ylabel("throughput per device (tokens/s)")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    _legend(axes)
    _save(figure, path)


def pareto_front(pairs: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Those that no other beats in both, ascending in the first."""
    front: list[tuple[float, float]] = []
    for user, device in sorted(pairs, reverse=True):
        if not front or device > front[-1][1]:
            front.append((user, device))
    return front[::-1]


def timeline(lives: Sequence[Life], path: Path, title: str = "") -> None:
    """One row a request, in order of arrival: its stages, and when its first token came."""
    rows = max(len(lives), 1)
    figure, axes = _figure(title, height=min(max(_HEIGHT, 0.16 * rows), 30))
    start = lives[0].begin if lives else 0.0
    for stage, (colour, height) in STAGES.items():
        spans = [
            (row, span)
            for row, life in enumerate(lives)
            for span in life.spans
            if span.stage is stage
        ]
        axes.barh(
            [row for row, _ in spans],
            [span.end - span.begin for _, span in spans],
            left=[span.begin - start for _, span in spans],
            height=height,
            color=colour,
            edgecolor=colour,  # so that what takes no time is seen too
            linewidth=0.6,
            zorder=4 if stage is Stage.TRANSFER else 2,
        )
    tokens = [(life.first_token - start, row) for row, life in enumerate(lives) if life.first_token]
    axes.scatter(*np.array(tokens).reshape(-1, 2).T, marker="|", color="black", s=22, zorder=3)
    axes.set_xlabel("seconds")
    axes.set_ylabel("request")
    axes.set_ylim(rows - 0.5, -0.5)
    handles = [Patch(color=colour, label=stage) for stage, (colour, _) in STAGES.items()]
    axes.legend(handles=handles, fontsize="small", loc="upper right")
    _save(figure, path)


def gaps_over_time(
    panels: Mapping[str, Sequence[tuple[float, float]]], burst_s: Mapping[str, float], path: Path
) -> None:
    """One panel a server: (seconds from a burst's sending, gap in seconds) of running streams;
    `burst_s`: how long the burst lasted."""
    figure = Figure(figsize=(_WIDTH, 0.6 * _HEIGHT * len(panels)), layout="constrained")
    FigureCanvasAgg(figure)
    first: Axes | None = None
    for number, ((server, pairs), colour) in enumerate(
        zip(panels.items(), _cycle(panels), strict=True), 1
    ):
        axes = figure.add_subplot(len(panels), 1, number, sharex=first, sharey=first)
        first = first or axes
        times, gaps = np.array(pairs).reshape(-1, 2).T
        axes.axvspan(0, burst_s[server], color="#eeeeee", zorder=0)
        axes.scatter(times, gaps * 1e3, s=3, color=colour)
        axes.set_title(server, fontsize="small", loc="left")
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(_plain)
        axes.yaxis.set_minor_formatter(_plain)
        axes.set_ylabel("gap (ms)")
        axes.grid(alpha=0.3)
    if first is not None:
        figure.axes[-1].set_xlabel("seconds from the burst's sending")
    _save(figure, path)


# --- what they share ---------------------------------------------------------------------------


def _figure(title: str = "", *, height: float = _HEIGHT) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(_WIDTH, height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.set_title(title, fontsize="medium")
    return figure, axes


def _attainment(axes: Axes, targets: Sequence[float]) -> None:
    for target in targets:
        axes.axhline(100 * target, color="grey", linewidth=0.8, linestyle="--")
    axes.set_ylim(0, 102)
    axes.set_ylabel("SLO attainment (%)")
    axes.grid(alpha=0.3)
    _legend(axes)


def _legend(axes: Axes) -> None:
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize="small")


def _percent(samples: Sequence[Sample]) -> list[float]:
    return [100 * sample.attainment for sample in samples]


def _times(ratio: float) -> str:
    """Of a ratio that may have neither side, or only one."""
    if np.isnan(ratio):
        return "-"
    return "∞" if np.isinf(ratio) else f"{ratio:.2g}"


def _plain(value: float, _: object) -> str:
    return f"{value:g}"


def _cycle(names: Mapping[str, object]) -> list[str]:
    return [_COLOURS[number % len(_COLOURS)] for number in range(len(names))]


def _save(figure: Figure, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=_DPI)
