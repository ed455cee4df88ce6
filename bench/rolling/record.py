"""What is written down of such a run, and what it comes to. Pure.

Times are seconds since the load began.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from bench.client import Outcome

MS = 1e3
BEGIN_END = (
    (" restarting", " restarted", " restarts"),
    ("a prefill worker is started", "a prefill worker has joined", "prefill-2 starts, joins"),
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
    """The figures, before anything was done and from then on."""
    answered = [outcome for outcome in record.outcomes if outcome.ok]
    calm = [o for o in answered if o.sent_s < record.calm_s]
    later = [o for o in answered if o.sent_s >= record.calm_s]
    both = gaps(answered)
    return {
        "requests": len(record.outcomes),
        "failed": len(record.outcomes) - len(answered),
        "broken": len(broken),
        "tokens": sum(outcome.output_tokens for outcome in answered),
        "seconds": max((o.ended_s for o in record.outcomes), default=0.0),
        "calm": _figures(calm, [gap for at_s, gap in both if at_s < record.calm_s]),
        "disturbed": _figures(later, [gap for at_s, gap in both if at_s >= record.calm_s]),
        "marks": [[round(mark.at_s, 1), mark.what] for mark in record.marks],
    }


def _figures(outcomes: Sequence[Outcome], itls_s: Sequence[float]) -> dict[str, float | None]:
    ttfts_s = [outcome.ttft_s for outcome in outcomes]
    return {
        "requests": len(outcomes),
        **_percentiles("ttft", ttfts_s),
        **_percentiles("itl", itls_s),
    }


def _percentiles(name: str, seconds: Sequence[float]) -> dict[str, float | None]:
    shares = {"p50": 50, "p99": 99, "max": 100}
    return {
        f"{share}_{name}_ms": round(float(np.percentile(seconds, at)) * MS, 1) if seconds else None
        for share, at in shares.items()
    }
