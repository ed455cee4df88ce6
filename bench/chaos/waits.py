"""How long streams stood still that a fault befell. Pure.

Times are seconds since the chaos began, but those of a request log, which are the host's own.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

import msgspec

from bench.chaos.plan import Kind, Struck
from bench.chaos.record import Answer
from bench.client import Outcome

GRACE_S = 0.5  # tokens that were on their way when it happened still came

# --- who was where -----------------------------------------------------------------------------


class Line(msgspec.Struct, frozen=True):
    """What is needed of one line of a request log."""

    mono: float
    event: str
    transfer: str
    attempt: int
    role: str  # of the process that wrote it
    request: str = ""
    prefill: str = ""  # of `routed`: to which instances
    decode: str = ""


@dataclass(frozen=True, slots=True)
class Stay:
    """A request was in a worker's hands."""

    request: str  # as the server's answer names it
    instance: str
    begin_s: float
    end_s: float


@dataclass(slots=True)
class _Attempt:
    """The one of a transfer that is on."""

    request: str
    number: int = 0
    prefill: str = ""
    since_s: dict[str, float] = field(default_factory=dict[str, float])  # by instance

    def leaves(self, line: Line) -> list[str]:
        """Whom the request leaves with that line."""
        if line.role == "gateway" and line.event in _ENDS:
            return list(self.since_s)
        joined = line.event == "decoding_begin" and line.attempt == self.number
        return [self.prefill] if joined and self.prefill in self.since_s else []


_ENDS = frozenset({"routed", "failed", "finished", "aborted"})


def stays(lines: Iterable[Line], began: float) -> list[Stay]:
    """`lines`: of all processes, in order of time; `began`: the host's clock when the run did.

    A prefill worker has a request until it is decoded elsewhere, a decode worker until the attempt
    ends."""
    attempts: dict[str, _Attempt] = {}
    found: list[Stay] = []
    for line in lines:
        if line.event == "received":  # its id, and which of its prompts
            attempts[line.transfer] = _Attempt(line.request.rpartition("-")[0])
        attempt = attempts.get(line.transfer)
        if attempt is None:
            continue
        at_s = line.mono - began
        for instance in attempt.leaves(line):
            found.append(Stay(attempt.request, instance, attempt.since_s.pop(instance), at_s))
        if line.event == "routed":
            attempt.number, attempt.prefill = line.attempt, line.prefill
            attempt.since_s = {one: at_s for one in (line.prefill, line.decode) if one}
    return found


# --- waits -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Waits:
    """How long streams stood still that a kind of fault befell: their longest gaps then."""

    what: str
    n_faults: int
    longest_s: tuple[float, ...]  # one a stream and fault

    @property
    def median_s(self) -> float | None:
        return median(self.longest_s) if self.longest_s else None

    @property
    def max_s(self) -> float | None:
        return max(self.longest_s, default=None)


UNDISTURBED = "none"
_LASTING = {
    Kind.STOP: ("{} worker stopped for up to 10 s", "{} worker stopped for longer"),
    Kind.CUT: ("{} worker cut off for up to 10 s", "{} worker cut off for longer"),
}


def named(struck: Struck) -> str:
    """The kind of fault, as the table has it."""
    fault, role = struck.fault, struck.worker.role
    if fault.kind is Kind.KILL:
        return f"{role} worker killed"
    return _LASTING[fault.kind][fault.is_long].format(role)


def longest_gap(outcome: Outcome, begin_s: float, end_s: float) -> float:
    """Between two chunks of a stream, or its sending and the first, among the gaps that reach into
    that time. 0: none does."""
    times = [outcome.sent_s, *outcome.chunk_times_s]
    return max((b - a for a, b in pairwise(times) if b > begin_s and a < end_s), default=0.0)


def waits(
    all_struck: Sequence[Struck], answers: Sequence[Answer], all_stays: Iterable[Stay]
) -> list[Waits]:
    """Of streams that stayed to the end, by kind of fault; those that no fault befell come first.

    A stream was befallen where the worker had it while the fault lasted, or was given it then."""
    streams = {a.outcome.request_id: a.outcome for a in answers if a.ask.stream and a.outcome.ok}
    by_instance: dict[str, list[Stay]] = {}
    for stay in all_stays:
        by_instance.setdefault(stay.instance, []).append(stay)
    befallen: set[str] = set()
    longest: dict[str, list[float]] = {}
    n_faults: dict[str, int] = {}
    for struck in all_struck:
        what = named(struck)
        n_faults[what] = n_faults.get(what, 0) + 1
        for request in _there(struck, by_instance.get(struck.worker.instance, ())):
            stream = streams.get(request)
            if stream is not None:
                befallen.add(request)
                gap_s = longest_gap(stream, struck.at_s, struck.until_s + GRACE_S)
                longest.setdefault(what, []).append(gap_s)
    calm = [
        longest_gap(stream, stream.sent_s, stream.ended_s)
        for request, stream in streams.items()
        if request not in befallen
    ]
    told = (Waits(what, n_faults[what], tuple(longest.get(what, ()))) for what in sorted(n_faults))
    return [Waits(UNDISTURBED, 0, tuple(calm)), *told]


def _there(struck: Struck, stays_there: Iterable[Stay]) -> set[str]:
    return {
        stay.request
        for stay in stays_there
        if stay.begin_s <= struck.until_s and stay.end_s >= struck.at_s
    }


def table(rows: Sequence[Waits]) -> str:
    """Markdown."""
    head = "| fault | times | streams there | longest wait, median | longest wait, max |"
    lines = [head, "|---|---|---|---|---|"]
    for row in rows:
        n = len(row.longest_s)
        lines.append(
            f"| {row.what} | {row.n_faults} | {n} | {_s(row.median_s)} | {_s(row.max_s)} |"
        )
    return "\n".join(lines)


def _s(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.2f} s"
