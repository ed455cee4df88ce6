"""The loop of a worker: events into the core, actions out of it. The process on one screen.

Everything decided is decided by the core; everything slow is another thread's. An exception here
is a bug, and ends the process.
"""

import logging
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, assert_never

from common.engine.device_thread import Passes
from common.engine.events import (
    Action,
    Cancel,
    Connect,
    Decision,
    Drain,
    Event,
    Launch,
    Note,
    Pull,
    Send,
    Spill,
    TicketFinal,
)
from common.engine.journal import Journal
from common.engine.links import Links
from common.engine.wakeup import Wakeup
from common.ids import TicketId
from common.log import line
from common.wire import Mailbox

METRICS_EVERY_S = 1.0
EXIT_DRAINED = 0
EXIT_STOPPED = 143  # as a shell reports a process that SIGTERM ended

_log = logging.getLogger(__name__)


class Core(Protocol):
    """What decides: see `common.engine.events`."""

    @property
    def idle(self) -> bool:
        """Nothing is owed to anybody: a draining process may exit."""
        ...

    @property
    def stale_messages(self) -> int:
        """Of attempts that are over; dropped."""
        ...

    def step(self, now: float, events: Sequence[Event]) -> Decision: ...


class Puller(Protocol):
    """What moves pages for a core, by its own ticket numbers."""

    def start(self, action: Pull | Spill) -> None: ...

    def cancel(self, ticket: TicketId) -> None:
        """Idempotent; of a ticket that is final, nothing."""
        ...

    def finals(self, now: float) -> list[TicketFinal]:
        """What has ended since the last call. To be called as time passes, too."""
        ...

    def hear(self, event: Event, now: float) -> None:
        """Of peers that come and go, whose memory is kept at hand."""
        ...

    def counters(self) -> Mapping[str, float]:
        """By metric's name."""
        ...


@dataclass(slots=True, kw_only=True, eq=False)
class Shell:
    """`run` until stopped. `stop` is for signal handlers; the rest belongs to one thread."""

    core: Core
    mailbox: Mailbox
    links: Links
    device: Passes
    pulls: Puller
    wakeup: Wakeup
    journal: Journal
    drain_s: float  # what is here gets this long to finish
    _stops: int = 0
    _drain_until: float | None = None
    _wake_at: float = -math.inf
    _metrics_at: float = -math.inf
    _rows: dict[int, int] = field(default_factory=dict[int, int])

    def run(self) -> int:
        """The process's exit code."""
        self.wakeup.watch(self.mailbox.fd)
        while True:
            now = time.monotonic()
            self._turn(now)
            code = self._exit_code(now)
            if code is not None:
                self.links.leave()
                return code
            if self.links.drained:
                wake_at = min(self._wake_at, self.links.wake_at(now), self._metrics_at)
                self.wakeup.sleep(wake_at - time.monotonic())

    def stop(self, *, at_once: bool = False) -> None:
        """The first time: finish what is here. Again, or `at_once`: leave."""
        self._stops += 2 if at_once else 1
        self.wakeup.ring()

    def _turn(self, now: float) -> None:
        events = self._events(now)
        if events or now >= self._wake_at:
            decision = self.core.step(now, events)
            self._wake_at = math.inf if decision.wake_at is None else decision.wake_at
            for action in decision.actions:
                self._perform(action, now)
        if now >= self._metrics_at:
            self._tell_metrics(now)

    def _events(self, now: float) -> list[Event]:
        heard = self.links.hear(now)
        for event in heard:
            self.pulls.hear(event, now)
        steps = self.device.finals()
        for final in steps:
            self.journal.step(final, self._rows.pop(final.step))
        events: list[Event] = [*heard, *steps, *self.pulls.finals(now)]
        if self._stops == 1 and self._drain_until is None:
            self._drain_until = now + self.drain_s
            _log.info(line("draining", seconds_at_most=self.drain_s))
            events.append(Drain())
        return events

    def _perform(self, action: Action, now: float) -> None:
        match action:
            case Launch(step, plan):
                self._rows[step] = plan.n_rows
                self.device.launch(step, plan)
            case Pull() | Spill():
                self.pulls.start(action)
            case Cancel(ticket):
                self.pulls.cancel(ticket)
            case Connect(peer):
                self.links.dial(peer, now)
            case Send(peer, message):
                self.links.send(peer, message, now)
            case Note():
                self.journal.note(action)
            case _:
                assert_never(action)

    def _tell_metrics(self, now: float) -> None:
        self._metrics_at = now + METRICS_EVERY_S
        gateways = self.links.gateways
        if gateways:
            counts = {**self.mailbox.counts, "stale": self.core.stale_messages}
            metrics = self.journal.metrics(counts, self.pulls.counters())
            marks = self.journal.marks()
            for gateway in gateways:
                self.links.send(gateway, metrics, now)
                if marks is not None:
                    self.links.send(gateway, marks, now)

    def _exit_code(self, now: float) -> int | None:
        if self._stops > 1:
            return EXIT_STOPPED
        if self._drain_until is None:
            return None
        if self.core.idle:
            _log.info(line("drained"))
            return EXIT_DRAINED
        if now >= self._drain_until:
            _log.warning(line("not_drained", after_s=self.drain_s))
            return EXIT_DRAINED
        return None
