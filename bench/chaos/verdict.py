"""What a run of chaos comes to: what is broken, in words, a table of waits, and the JSON. Pure."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import linear_regression
from typing import Any

from bench.chaos.plan import Kind, Struck
from bench.chaos.record import Answer, Census, Record, Sample
from bench.chaos.waits import Line, Stay, stays, table, waits

SETTLED_S = 120.0  # what memory a process takes until then is its due
JUDGED_S = 120.0  # its growth is told from no less than that
MAX_GROWTH_MB = 1.0  # a minute
LINKS = 6  # descriptors that a worker may have more in the end: a peer that it had not met before
_EXIT = re.compile(r"event=worker_exited worker=(\S+) exit_code=(-?\d+)")
_KILLED = re.compile(r"event=(worker_hung|worker_silent|worker_hangs_at_start) ")
_CRITICAL = re.compile(r"^time=\S+ level=critical .*$", re.MULTILINE)
_SIGKILL = -9
_SHOWN_CHARS = 24
_MB = 1e6


@dataclass(frozen=True, slots=True)
class Truth:
    """The answer to a prompt that nothing disturbed."""

    text: str
    n_tokens: int


@dataclass(frozen=True, slots=True)
class Told:
    """For whoever started it."""

    broken: list[str]
    table: str
    result: dict[str, Any]


def tell(record: Record, lines: Iterable[Line], log: str) -> Told:
    """`lines`: of the request log, in order of time; `log`: the server's own."""
    there = stays(lines, record.began)
    rows = waits(record.struck, record.during, there)
    growths = {
        name: growth
        for name, samples in record.samples.items()
        if (growth := growth_mb(samples)) is not None
    }
    broken = [
        *_wrong(record, record.during, there),
        *_wrong(record, record.after, ()),
        *_not_at_rest(record),
        *grown(growths),
        *record.left,
        *_deaths(record, log),
    ]
    outcomes = [answer.outcome for answer in record.during]
    struck = Counter(one.fault.kind for one in record.struck)
    result = {
        "benchmark": "chaos",
        "seed": record.settings.seed,
        "seconds": record.settings.seconds,
        "broken": len(broken),
        "requests": len(outcomes),
        "completed": sum(outcome.ok for outcome in outcomes),
        "abandoned": sum(outcome.cancelled for outcome in outcomes),
        "refused_before_served": sum(answer.n_refused > 0 for answer in record.during),
        "output_tokens": sum(outcome.output_tokens for outcome in outcomes if outcome.ok),
        "faults": {kind.value: struck[kind] for kind in Kind},
        "spared": record.n_spared,
        "killed_by_server": len(_KILLED.findall(log)),
        "at_rest_after_s": record.rested_after_s,
        "growth_mb_per_minute": growths,
        "descriptors": _descriptors(record),
        "waits_s": {
            row.what: {"n": len(row.longest_s), "median": row.median_s, "max": row.max_s}
            for row in rows
        },
    }
    return Told(broken, table(rows), result)


def _wrong(record: Record, answers: Sequence[Answer], there: Iterable[Stay]) -> Iterator[str]:
    by_request: dict[str, list[Stay]] = {}
    for stay in there:
        by_request.setdefault(stay.request, []).append(stay)
    truths = [Truth(a.outcome.text, a.outcome.output_tokens) for a in record.before]
    for answer in answers:
        ask, outcome = answer.ask, answer.outcome
        fault = wrong(answer, truths[ask.prompt])
        if fault is not None:
            how = "streamed" if ask.stream else "whole"
            blamed = blame(record.struck, by_request.get(outcome.request_id, ()))
            yield (
                f"request {ask.name} (prompt {ask.prompt}, {how}, seed {record.settings.seed}, "
                f"{outcome.sent_s:.1f} to {outcome.ended_s:.1f} s, {outcome.request_id or 'no id'})"
                f": {fault}; {blamed or 'no fault befell a worker that had it'}"
            )


def blame(all_struck: Iterable[Struck], own: Iterable[Stay]) -> str:
    """The faults that befell the workers that had it, while they had it."""
    stays_there = list(own)
    return ", ".join(
        str(struck)
        for struck in all_struck
        if any(
            stay.instance == struck.worker.instance
            and stay.begin_s <= struck.until_s
            and stay.end_s >= struck.at_s
            for stay in stays_there
        )
    )


def _not_at_rest(record: Record) -> Iterator[str]:
    first, last = record.at_first, record.at_last
    if record.rested_after_s is None or first is None or last is None:
        yield "the server does not come to rest: a worker is not up, or holds pages or requests"
        return
    most = _most(first)
    for name, n in last.descriptors.items():
        allowed = most[_role(name)] + (0 if name == "gateway" else LINKS)
        if n > allowed:
            yield f"{name} has {n} descriptors open, {most[_role(name)]} before"
    if last.files > first.files:
        yield f"{last.files} files are in the run directory, {first.files} before"


def _most(census: Census) -> Counter[str]:
    """Descriptors that a process of a role has at most."""
    most: Counter[str] = Counter()
    for name, n in census.descriptors.items():
        most[_role(name)] = max(most[_role(name)], n)
    return most


def _role(name: str) -> str:
    return name.partition(" ")[0]


def _descriptors(record: Record) -> dict[str, dict[str, int]]:
    return {
        when: {} if census is None else dict(_most(census))
        for when, census in (("before", record.at_first), ("after", record.at_last))
    }


def _deaths(record: Record, log: str) -> Iterator[str]:
    """Workers that ended though nobody killed them, and what the server calls critical."""
    killed = sum(struck.fault.kind is Kind.KILL for struck in record.struck)
    killed += len(_KILLED.findall(log))
    exits = [(worker, int(code)) for worker, code in _EXIT.findall(log)]
    yield from (f"{worker} ended with {code}" for worker, code in exits if code != _SIGKILL)
    n = sum(code == _SIGKILL for _, code in exits)
    if n > killed:
        yield f"{n} workers were killed, {killed} of them by us or by the server"
    yield from _CRITICAL.findall(log)


# --- answers ---------------------------------------------------------------------------------


def wrong(answer: Answer, truth: Truth) -> str | None:
    """What is wrong with it; None: nothing. Of an abandoned one, what had come by then counts."""
    outcome = answer.outcome
    n_tokens = sum(outcome.chunk_tokens)
    if outcome.cancelled:
        if not truth.text.startswith(outcome.text):
            return _differs(outcome.text, truth.text)
        return None if n_tokens <= truth.n_tokens else f"{n_tokens} tokens of {truth.n_tokens} came"
    if outcome.error:
        return f"{outcome.error}: {outcome.message}"
    if outcome.text != truth.text:
        return _differs(outcome.text, truth.text)
    if not n_tokens == outcome.output_tokens == truth.n_tokens:
        return f"{n_tokens} tokens came, usage says {outcome.output_tokens} of {truth.n_tokens}"
    return None


def _differs(text: str, truth: str) -> str:
    same = next((n for n, (a, b) in enumerate(zip(text, truth, strict=False)) if a != b), None)
    at = min(len(text), len(truth)) if same is None else same
    told, known = (one[at : at + _SHOWN_CHARS] for one in (text, truth))
    return f"the text differs from character {at} on: {told!r} instead of {known!r}"


# --- memory --------------------------------------------------------------------------------------


def growth_mb(samples: Sequence[Sample]) -> float | None:
    """MB a minute of one process, from when it has settled on; None: it was not seen long enough.

    The slope of a line through them: where one sample lies decides nothing."""
    settled = [s for s in samples if s.at_s - samples[0].at_s >= SETTLED_S]
    if len(settled) < 3 or settled[-1].at_s - settled[0].at_s < JUDGED_S:
        return None
    minutes = [s.at_s / 60 for s in settled]
    return linear_regression(minutes, [s.anonymous_bytes / _MB for s in settled]).slope


def grown(growths: Mapping[str, float]) -> list[str]:
    """Which processes grow too fast, in words; `growths`: MB a minute, by process."""
    return [
        f"{process} grows by {growth:.2f} MB a minute"
        for process, growth in growths.items()
        if growth > MAX_GROWTH_MB
    ]
