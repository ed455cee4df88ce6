"""What is written down of such a run, and what it comes to. Pure.

Times are seconds since the load began.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from bench.client import Outcome

MS = 1e3
BEGIN_END = (
    (" restarting", " restarted", " restarts"),
    ("a prefill worker is started", "a prefill worker has joined", "one more starts, joins"),
    ("it is told to leave", "it has left", "and leaves"),
)


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that was done, or that came about."""

    at_s: float
    what: str  # "decode-0 restarting"


@dataclass(frozen=True, slots=True)
class Up:
    """Workers that are up at one moment."""

    at_s: float
    prefill: int
    decode: int


@dataclass(slots=True)
class Record:
    """One run."""

    calm_s: float  # until then nothing was done
    outcomes: list[Outcome] = field(default_factory=list[Outcome])
    marks: list[Mark] = field(default_factory=list[Mark])
    up: list[Up] = field(default_factory=list[Up])


def gaps(outcomes: Sequence[Outcome]) -> list[tuple[float, float]]:
    """(end of the gap, its length) between chunks of answers that came whole."""
    return [
        (after, after - before)
        for outcome in outcomes
        if outcome.ok
        for before, after in pairwise(outcome.chunk_times_s)
    ]


def in_flight(outcomes: Sequence[Outcome]) -> list[tuple[float, int]]:
    """(time, requests sent and not ended from then on), at each change."""
    changes = sorted(
        [(o.sent_s, 1) for o in outcomes] + [(o.ended_s, -1) for o in outcomes if o.ended_s]
    )
    counts = np.cumsum([change for _, change in changes])
    return [(at_s, int(n)) for (at_s, _), n in zip(changes, counts, strict=True)]


def spans(marks: Sequence[Mark]) -> list[tuple[str, float, float]]:
    """(what, its begin, its end), in order: marks that belong together, by `BEGIN_END`."""
    found: list[tuple[str, float, float]] = []
    for begin, end, name in BEGIN_END:
        for mark in marks:
            if mark.what.endswith(begin):
                who = mark.what.removesuffix(begin)
                after = (m.at_s for m in marks if m.what == who + end and m.at_s >= mark.at_s)
                found.append((who + name, mark.at_s, next(after, mark.at_s)))
    return sorted(found, key=lambda span: span[1])


def wrong(outcomes: Sequence[Outcome], wanted: Mapping[int, tuple[int, int]]) -> list[str]:
    """What is broken, a line each: a request that failed, an answer that is cut short, or one that
    differs from another to the same prompt. `wanted`: by index, (which prompt, tokens)."""
    broken: list[str] = []
    texts: dict[int, str] = {}
    for outcome in outcomes:
        prompt, n_tokens = wanted[outcome.index]
        who = f"request {outcome.index}"
        if not outcome.ok:
            broken.append(f"{who} failed: {outcome.error or 'cancelled'}: {outcome.message}")
        elif outcome.output_tokens != n_tokens:
            broken.append(f"{who} got {outcome.output_tokens} tokens of {n_tokens}")
        elif texts.setdefault(prompt, outcome.text) != outcome.text:
            broken.append(f"{who} was answered otherwise than the first with its prompt")
    return broken


def result(record: Record, broken: Sequence[str]) -> dict[str, Any]:
    """The figures, by what was done when a request was sent, or a gap ended."""
    answered = [outcome for outcome in record.outcomes if outcome.ok]
    restarted = [mark.at_s for mark in record.marks if mark.what.endswith(" restarted")]
    times_s = (0.0, record.calm_s, max(restarted, default=record.calm_s), math.inf)
    phases = zip(("calm", "restarts", "joins_and_leaves"), pairwise(times_s), strict=True)
    return {
        "requests": len(record.outcomes),
        "failed": len(record.outcomes) - len(answered),
        "broken": len(broken),
        "tokens": sum(outcome.output_tokens for outcome in answered),
        "seconds": max((o.ended_s for o in record.outcomes), default=0.0),
        **{name: _figures(answered, *bounds) for name, bounds in phases},
        "marks": [[round(mark.at_s, 1), mark.what] for mark in record.marks],
    }


def _figures(outcomes: Sequence[Outcome], begin_s: float, end_s: float) -> dict[str, float | None]:
    ttfts_s = [o.ttft_s for o in outcomes if begin_s <= o.sent_s < end_s]
    itls_s = [gap_s for at_s, gap_s in gaps(outcomes) if begin_s <= at_s < end_s]
    return {
        "requests": len(ttfts_s),
        **_percentiles("ttft", ttfts_s),
        **_percentiles("itl", itls_s),
    }


def _percentiles(name: str, seconds: Sequence[float]) -> dict[str, float | None]:
    shares = {"p50": 50, "p99": 99, "max": 100}
    return {
        f"{share}_{name}_ms": round(float(np.percentile(seconds, at)) * MS, 1) if seconds else None
        for share, at in shares.items()
    }
