"""The run over time, as a PNG file. Needs matplotlib; no display."""

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from bench.rolling.record import Record, gaps, in_flight, spans

_BLUE, _RED, _GREEN, _GREY = "#0072b2", "#d55e00", "#009e73", "#888888"
_DPI = 120


def draw(record: Record, path: Path) -> None:
    """TTFT by when a request was sent, gaps by when they ended, requests in flight, workers up."""
    figure = Figure(figsize=(9.0, 8.0), layout="constrained")
    FigureCanvasAgg(figure)
    ttft, itl, flight, up = figure.subplots(4, 1, sharex=True)
    answered = [outcome for outcome in record.outcomes if outcome.ok]
    failed = [outcome.sent_s for outcome in record.outcomes if not outcome.ok]
    figure.suptitle(f"{len(answered)} requests answered, {len(failed)} failed", fontsize="medium")
    ttft.scatter([o.sent_s for o in answered], [o.ttft_s for o in answered], s=8, color=_BLUE)
    ttft.set_ylabel("time to\nfirst token (s)")
    for at_s in failed:
        ttft.axvline(at_s, color=_RED)
    times, lengths = np.array(gaps(answered)).reshape(-1, 2).T
    itl.scatter(times, lengths, s=3, color=_GREEN)
    itl.set_yscale("log")
    itl.set_ylabel("gap between\ntwo tokens (s)")
    changes = np.array(in_flight(record.outcomes)).reshape(-1, 2)
    flight.step(changes[:, 0], changes[:, 1], where="post", color=_BLUE)
    flight.set_ylabel("requests\nin flight")
    at = [sample.at_s for sample in record.up]
    up.step(at, [s.prefill for s in record.up], where="post", color=_BLUE, label="prefill")
    up.step(at, [s.decode for s in record.up], where="post", color=_GREEN, label="decode", ls="--")
    up.set_ylabel("workers up")
    up.set_ylim(0, 3.5)
    up.legend(fontsize="x-small", loc="lower right")
    up.set_xlabel("seconds")
    up.set_xlim(0, max((o.ended_s for o in record.outcomes), default=1.0))
    for axes in (ttft, itl, flight, up):
        axes.grid(alpha=0.3)
        _mark(axes, record, named=axes is ttft)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=_DPI)


def _mark(axes: Axes, record: Record, *, named: bool) -> None:
    for what, begin_s, end_s in spans(record.marks):
        axes.axvspan(begin_s, end_s, color=_GREY, alpha=0.12, linewidth=0)
        axes.axvline(begin_s, color=_GREY, linewidth=0.8, linestyle=":")
        if named:
            axes.annotate(
                what,
                (begin_s, 1.0),
                xycoords=("data", "axes fraction"),
                xytext=(1, 3),
                textcoords="offset points",
                rotation=25,
                fontsize="x-small",
                annotation_clip=False,
            )
