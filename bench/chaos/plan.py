"""What a run of chaos does, as a function of its seed: who asks what, and what befalls a worker.

Pure. Which processes there are is told by others; times are seconds since the run began.
"""

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum, auto
from itertools import count

from bench.client import Request

PEER_LOST_S = 10.0  # of silence: a server then takes a worker for dead
LONG_S = (12.0, 20.0)  # long enough for that
LONG_SHARE = 0.25  # of the faults that last
STREAMED, LEAVING = 0.6, 0.25  # shares of the requests
LEAVES_S = (0.05, 3.0)
THINKS_S = (0.0, 1.0)  # between a client's requests
PROMPT_TOKENS = (4, 16, 40, 90, 200, 420)
OUTPUT_TOKENS = (8, 48)
VOCABULARY = (1000, 30_000)


class Kind(StrEnum):
    """A fault of one worker."""

    KILL = auto()  # SIGKILL
    STOP = auto()  # SIGSTOP, and SIGCONT later
    CUT = auto()  # all its connections are dropped, and new ones again and again


WEIGHTS = {Kind.KILL: 0.25, Kind.STOP: 0.375, Kind.CUT: 0.375}
SHORT_S = {Kind.STOP: (0.5, 6.0), Kind.CUT: (0.05, 3.0)}


@dataclass(frozen=True, slots=True)
class Worker:
    """A worker's process."""

    role: str
    pid: int
    instance: str


@dataclass(frozen=True, slots=True)
class Fault:
    """To be done to a worker."""

    number: int
    at_s: float
    kind: Kind
    lasts_s: float
    pick: float  # which worker: 0 to 1, 1 not included

    @property
    def is_long(self) -> bool:
        """The server takes the worker for dead meanwhile, though it lives."""
        return self.lasts_s > PEER_LOST_S


@dataclass(frozen=True, slots=True)
class Struck:
    """A fault that was done."""

    fault: Fault
    worker: Worker
    at_s: float

    @property
    def until_s(self) -> float:
        return self.at_s + self.fault.lasts_s

    def __str__(self) -> str:
        lasts = f" for {self.fault.lasts_s:.1f} s" if self.fault.lasts_s else ""
        who = f"{self.worker.role} worker {self.worker.instance[:8]}"
        return f"fault {self.fault.number} ({self.fault.kind} {who} at {self.at_s:.1f} s{lasts})"


@dataclass(frozen=True, slots=True)
class Prompt:
    """One of the few that all requests ask, so that each answer is known beforehand."""

    request: Request
    sampling: dict[str, float]  # further fields of the body


@dataclass(frozen=True, slots=True)
class Ask:
    """One request of one client."""

    name: str  # "c3/17": the client, and which of its requests
    prompt: int  # index
    stream: bool
    leaves_after_s: float | None  # None: it stays to the end
    thinks_s: float  # before it is sent


def faults(seed: int, *, seconds: float, every_s: float, kinds: Sequence[Kind]) -> list[Fault]:
    """One each `every_s`, of those kinds; all are over when the run is."""
    draw = random.Random(f"faults {seed}")
    times_s = (every_s * number for number in range(1, math.ceil(seconds / every_s)))
    return [_fault(draw, number, at_s, seconds, kinds) for number, at_s in enumerate(times_s)]


def _fault(
    draw: random.Random, number: int, at_s: float, ends_s: float, kinds: Sequence[Kind]
) -> Fault:
    kind = draw.choices(kinds, [WEIGHTS[one] for one in kinds])[0]
    is_long, length, pick = draw.random() < LONG_SHARE, draw.random(), draw.random()
    if kind is Kind.KILL:
        return Fault(number, at_s, kind, 0.0, pick)
    low, high = LONG_S if is_long else SHORT_S[kind]
    return Fault(number, at_s, kind, min(low + length * (high - low), ends_s - at_s), pick)


def target(fault: Fault, workers: Sequence[Worker], busy: frozenset[int]) -> Worker | None:
    """Whom it befalls: one of those that no other fault still lasts for (`busy`: their process
    ids). None: there is none."""
    free = sorted((w for w in workers if w.pid not in busy), key=lambda w: (w.role, w.pid))
    return free[int(fault.pick * len(free))] if free else None


def prompts(seed: int, n: int) -> list[Prompt]:
    """Of random tokens, short ones and long ones; half are answered greedily, half by draws."""
    draw = random.Random(f"prompts {seed}")
    made: list[Prompt] = []
    for number in range(n):
        n_tokens = PROMPT_TOKENS[number % len(PROMPT_TOKENS)]
        request = Request(
            prompt=[draw.randrange(*VOCABULARY) for _ in range(n_tokens)],
            max_tokens=draw.randint(*OUTPUT_TOKENS),
            prompt_tokens=n_tokens,
        )
        drawn = {"temperature": 0.9, "seed": number}
        made.append(Prompt(request, drawn if draw.random() < 0.5 else {"temperature": 0.0}))
    return made


def asks(seed: int, client: int, n_prompts: int) -> Iterator[Ask]:
    """All that one client will ever ask."""
    draw = random.Random(f"client {client} of {seed}")
    for number in count():
        prompt, stream, leaves = draw.randrange(n_prompts), draw.random(), draw.random()
        after_s, thinks_s = draw.uniform(*LEAVES_S), draw.uniform(*THINKS_S)
        yield Ask(
            name=f"c{client}/{number}",
            prompt=prompt,
            stream=stream < STREAMED,
            leaves_after_s=after_s if leaves < LEAVING else None,
            thinks_s=thinks_s,
        )
