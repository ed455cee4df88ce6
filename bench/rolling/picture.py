"""The run over time, as a PNG file. Needs matplotlib; no display."""

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from bench.rolling.record import Record, gaps, in_flight

_BLUE, _RED, _GREEN = "#0072b2", "#d55e00", "#009e73"
_DPI = 120


def draw(record: Record, path: Path) -> None:
    """TTFT by when a request was sent, gaps by when they ended, requests in flight, workers up."""
    figure = Figure(figsize=(9.0, 8.0), layout="constrained")
    FigureCanvasAgg(figure)
    ttft, itl, flight, up = figure.subplots(4, 1, sharex=True)
    answered = [outcome for outcome in record.outcomes if outcome.ok]
    failed = [outcome.sent_s for outcome in record.outcomes if not outcome.ok]
    ttft.scatter([o.sent_s for o in answered], [o.ttft_s for o in answered], s=8, color=_BLUE)
    ttft.set_title(f"time to first token (s); {len(answered)} answered", **_TITLE)
    for at_s in failed:
        ttft.axvline(at_s, color=_RED)
    times, lengths = np.array(gaps(answered)).reshape(-1, 2).T
    itl.scatter(times, lengths, s=3, color=_GREEN)
    itl.set_yscale("log")
    itl.set_title("gap between two tokens (s)", **_TITLE)
    changes = np.array(in_flight(record.outcomes)).reshape(-1, 2)
    flight.step(changes[:, 0], changes[:, 1], where="post", color=_BLUE)
    flight.set_title("requests in flight", **_TITLE)
    at = [sample.at_s for sample in record.up]
    up.step(at, [s.prefill for s in record.up], where="post", color=_BLUE, label="prefill")
    up.step(at, [s.decode for s in record.up], where="post", color=_GREEN, label="decode", ls="--")
    up.set_title("workers up", **_TITLE)
    up.set_ylim(0, 3.5)
    up.legend(fontsize="x-small", loc="lower right")
    up.set_xlabel("seconds")
    up.set_xlim(0, max((o.ended_s for o in record.outcomes), default=1.0))
    for axes in (ttft, itl, flight, up):
        axes.grid(alpha=0.3)
        _marked(axes, record, named=axes is ttft)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=_DPI)


_TITLE = {"fontsize": "small", "loc": "left"}


def _marked(axes: Axes, record: Record, *, named: bool) -> None:
    for mark in record.marks:
        axes.axvline(mark.at_s, color="grey", linewidth=0.8, linestyle=":")
        if named:
            axes.annotate(
                mark.what,
                (mark.at_s, 1.0),
                xycoords=("data", "axes fraction"),
                xytext=(1, 2),
                textcoords="offset points",
                rotation=35,
                fontsize=6,
                annotation_clip=False,
            )
