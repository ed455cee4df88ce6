"""When each request was queued, prefilled, transferred and decoded, from a server's request log.

Reads the lines of `baton serve --request-log` alone; their clock is the hosts' own, so lines of
several hosts are as true as their clocks agree. `bench.timeline` draws it. Must not draw.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum, auto
from pathlib import Path

import msgspec


class Stage(StrEnum):
    """Part of a request's life. TRANSFER overlaps PREFILL: pages travel as they are computed."""

    QUEUE = auto()  # from its arrival, or the next attempt's, to its first pass
    PREFILL = auto()  # first pass to the prompt's last
    TRANSFER = auto()  # first pull to the last page
    DECODE = auto()  # it is in the decode batch


class Line(msgspec.Struct, frozen=True):
    """What is needed of one line of the log."""

    t: float  # unix seconds
    event: str
    transfer: str
    attempt: int


@dataclass(frozen=True, slots=True)
class Span:
    """One stage, in unix seconds."""

    stage: Stage
    begin: float
    end: float


@dataclass(frozen=True, slots=True)
class Life:
    """One sequence, from its arrival to the last that was logged of it. Unix seconds."""

    transfer: str
    begin: float
    end: float
    first_token: float | None
    spans: tuple[Span, ...]

    @property
    def was_computed(self) -> bool:
        """Some pass had part of it; else it was only ever queued."""
        return any(span.stage is not Stage.QUEUE for span in self.spans)


_BEGIN = {
    "received": Stage.QUEUE,
    "queued": Stage.QUEUE,
    "context_begin": Stage.PREFILL,
    "migration_begin": Stage.TRANSFER,
    "decoding_begin": Stage.DECODE,
}
_END = {
    "context_begin": Stage.QUEUE,
    "context_end": Stage.PREFILL,
    "migration_end": Stage.TRANSFER,
    "decoding_end": Stage.DECODE,
}


_LINE_BEGIN = b'{"t":'


def read_log(path: Path) -> list[Line]:
    """Raises ValueError, naming the line, where it is no request log; what is left of lines that
    were torn, at the end or by a full disk, is left out."""
    decoder = msgspec.json.Decoder(Line)
    *whole, _torn = path.read_bytes().split(b"\n")
    lines: list[Line] = []
    for number, text in enumerate(whole, 1):
        try:
            lines.append(decoder.decode(text))
        except msgspec.DecodeError as error:
            if not text or (text.startswith(_LINE_BEGIN) and "truncated" in str(error)):
                continue
            raise ValueError(f"{path}, line {number}: {error}") from error
    return lines


def lives(lines: Iterable[Line], *, begin: float = 0.0, end: float = float("inf")) -> list[Life]:
    """Those that arrived between `begin` and `end` (unix seconds), in order of arrival."""
    by_transfer: defaultdict[str, list[Line]] = defaultdict(list)
    for line in lines:
        by_transfer[line.transfer].append(line)
    found = [_life(sorted(own, key=lambda line: line.t)) for own in by_transfer.values()]
    return sorted(
        (life for life in found if begin <= life.begin <= end), key=lambda life: life.begin
    )


def _life(lines: Sequence[Line]) -> Life:
    """`lines`: of one transfer, in order of time. A stage begins once an attempt; one that is open
    when its attempt is given up ends there."""
    spans: list[Span] = []
    since: dict[Stage, float] = {}
    begun: set[Stage] = set()
    attempt = 0
    for line in lines:
        if line.attempt < attempt:  # given up, but it goes on for a moment
            continue
        if line.attempt > attempt:
            waiting = since.pop(Stage.QUEUE, line.t)
            spans += [Span(stage, begin, line.t) for stage, begin in since.items()]
            since, begun, attempt = {Stage.QUEUE: waiting}, {Stage.QUEUE}, line.attempt
        ended, begins = _END.get(line.event), _BEGIN.get(line.event)
        if ended is not None and ended in since:
            spans.append(Span(ended, since.pop(ended), line.t))
        if begins is not None and begins not in begun:
            since[begins] = line.t
            begun.add(begins)
    last = lines[-1].t
    spans += [Span(stage, begin, last) for stage, begin in since.items()]
    first_token = next((line.t for line in lines if line.event == "first_token"), None)
    return Life(lines[0].transfer, lines[0].t, last, first_token, tuple(spans))
