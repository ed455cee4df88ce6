"""What must hold whatever happens. A broken law is raised, and says what it saw.

The cores check themselves after each of their steps (`Core.check`: pages, holds, accounts); what
here follows is what only somebody beside them can see. The numbers are the design's laws.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from bench.simulate.footprint import footprint
from common.engine.events import Received, Send
from common.engine.priority import most_waiting
from common.errors import InvariantBroken
from common.ids import Role, TransferId
from common.messages import Accepted, Expect, Failed, Limits, Prefill, Refused, Snapshot, Tokens

MOST_SAMPLES = 8  # of one request, here
MOST_REMEMBERED = 32  # elements of one container of an idle core: peers, and what is told them


def require(holds: bool, what: str) -> None:  # noqa: FBT001  reads as a sentence
    """Where `what` is long, test first: it is made either way."""
    if not holds:
        raise InvariantBroken(what)


class StaleAttempts:
    """Law 2: what an older attempt says is dropped and counted, even if nobody has seen it yet.

    One gateway's; it is told of each step before its actions are performed.
    """

    def __init__(self) -> None:
        self.n_opened = 0  # the highest attempt so far
        self._newest: dict[TransferId, int] = {}
        self._counted = 0

    def stepped(self, events: Sequence[Any], actions: Sequence[Any], n_counted: int) -> None:
        """`n_counted`: by the core, so far."""
        heard = [e.message for e in events if isinstance(e, Received)]
        n_stale = sum(
            attempt < self._newest.get(transfer, 0)
            for message in heard
            for transfer, attempt in _spoken_of(message)
        )
        counted, self._counted = n_counted - self._counted, n_counted
        if counted < n_stale:
            raise InvariantBroken(f"{n_stale} stale messages heard, {counted} counted")
        for action in actions:
            if isinstance(action, Send) and isinstance(action.message, Prefill | Expect):
                self._newest[action.message.transfer] = action.message.attempt
                self.n_opened = max(self.n_opened, action.message.attempt)


def _spoken_of(message: object) -> Iterator[tuple[TransferId, int]]:
    match message:
        case Tokens(runs=runs):
            yield from ((run.transfer, run.attempt) for run in runs)
        case Accepted() | Refused() | Failed():
            yield message.transfer, message.attempt
        case _:
            pass


def check_queue(limits: Limits, role: Role, actions: Sequence[Any]) -> None:
    """Law 5, by what a worker tells of its queue. Some that it had let in may be there again:
    prompts that were set back had a page each, samples that were preempted a row."""
    again = {Role.PREFILL: limits.n_pages, Role.DECODE: 2 * MOST_SAMPLES * limits.max_num_seqs}
    most = most_waiting(limits.max_waiting) + again[role]
    for action in actions:
        if isinstance(action, Send) and isinstance(action.message, Snapshot):
            n_waiting = action.message.waiting
            if n_waiting > most:
                raise InvariantBroken(f"{n_waiting} of {most} wait")


def check_forgotten(core: object, name: str) -> None:
    """An idle core remembers nothing that grows with the requests it has had."""
    for path, n in footprint(core).items():
        if n > MOST_REMEMBERED:
            raise InvariantBroken(f"{name} is idle and remembers {n} elements in {path}")
