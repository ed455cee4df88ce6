"""What is written down of a run of chaos. Records, no decisions.

Times are seconds since the chaos began.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.chaos.plan import Ask, Fault, Prompt, Struck
from bench.client import Outcome


@dataclass(frozen=True, slots=True)
class Answer:
    """What one request got, in the end: a refused one was sent again."""

    ask: Ask
    outcome: Outcome
    n_refused: int = 0


@dataclass(frozen=True, slots=True)
class Sample:
    """A process at one moment."""

    at_s: float
    anonymous_bytes: int  # memory of its own; pages and weights, which are shared, are not in it


@dataclass(frozen=True, slots=True)
class Settings:
    """What is to be done."""

    flags: tuple[str, ...]  # of the server, beside its own
    seed: int
    seconds: float
    n_clients: int
    prompts: Sequence[Prompt]
    faults: Sequence[Fault]


@dataclass(frozen=True, slots=True)
class Census:
    """A server at rest."""

    descriptors: dict[str, int]  # open ones by process: "gateway", "decode 1234"
    files: int  # in its run directory


@dataclass(slots=True)
class Record:
    """What happened. Seconds since the chaos began."""

    settings: Settings
    began: float = 0.0  # by this host's monotonic clock
    before: list[Answer] = field(default_factory=list[Answer])  # each prompt, undisturbed
    during: list[Answer] = field(default_factory=list[Answer])
    after: list[Answer] = field(default_factory=list[Answer])  # each prompt once more
    struck: list[Struck] = field(default_factory=list[Struck])
    n_spared: int = 0  # faults for which there was no worker
    samples: dict[str, list[Sample]] = field(default_factory=dict[str, list[Sample]])
    at_first: Census | None = None
    at_last: Census | None = None
    rested_after_s: float | None = None  # the end of the chaos; None: it never did
    left: list[str] = field(default_factory=list[str])  # after the server's end
    request_log: Path = Path()
    server_log: Path = Path()
