"""A gateway, prefill workers, a device and links around one decode core, under a seeded clock.

Links lose, repeat and delay; in order from one sender, as the real ones do, but for pages'
announcements. Everything that the core owes is checked as it happens: the laws after every event,
the content of every page that is read, each token as it reaches the gateway.
"""

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random

from common.engine.events import (
    Cancel,
    Connect,
    Event,
    Launch,
    PeerDown,
    PeerUp,
    Pull,
    Received,
    Send,
    Spill,
    StepDone,
    StepFailed,
    TicketFinal,
)
from common.ids import InstanceId, TicketId
from common.messages import AnyMessage
from tests.unit.decode.builders import Bench, G, H, hello
from tests.unit.decode.gateway import Gateway
from tests.unit.decode.memory import Memory
from tests.unit.decode.prefill import Prefiller
from tests.unit.decode.real_prefill import RealPrefiller


@dataclass(kw_only=True)
class Weather:
    """How bad it is. All zero: nothing goes wrong."""

    loss: float = 0.0
    repeat: float = 0.0
    torn: float = 0.0  # of pulls
    raised: float = 0.0  # of passes
    crash_every_s: float = 0.0  # of prefill workers


@dataclass
class World:
    bench: Bench
    random: Random
    weather: Weather = field(default_factory=Weather)
    n_events: int = 0
    make_prefill: "Callable[[World, InstanceId], Prefiller | RealPrefiller]" = Prefiller
    transcript: list[str] | None = None  # of actions, if wanted

    def __post_init__(self) -> None:
        self.memory = Memory(self.bench.pool, self.bench.page_tokens)
        host = self.bench.host
        self.host = None if host is None else Memory(host.pool, self.bench.page_tokens)
        self.n_spills = 0
        self.gateway = Gateway(self)
        self.prefills: dict[InstanceId, Prefiller | RealPrefiller] = {}
        self._n_prefills = 0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._n_timers = 0
        self._last_at: dict[tuple[str, str], float] = {}
        self._pulls: dict[TicketId, Pull | Spill] = {}
        self._passes: deque[Launch] = deque()
        self.new_prefill()

    @property
    def now(self) -> float:
        return self.bench.now

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        self._n_timers += 1
        heapq.heappush(self._heap, (self.now + seconds, self._n_timers, call))

    def run(self, seconds: float, until: Callable[[], bool] = lambda: False) -> None:
        """Whatever is due, in order; the core is woken when it asked to be, and not otherwise."""
        end = self.now + seconds
        while not until():
            at = self._heap[0][0] if self._heap else end
            wake_at = self.bench.wake_at
            if wake_at is not None and wake_at < at and wake_at <= end:
                self.bench.now = max(self.now, wake_at)
                self._woken()
            elif at <= end and self._heap:
                self.bench.now, _, call = heapq.heappop(self._heap)
                call()
            else:
                self.bench.now = end
                return

    # --- the core's shell --------------------------------------------------------------------

    def give(self, *events: Event) -> None:
        self.n_events += len(events)
        self.bench.take(*events)
        self._act()

    def _woken(self) -> None:
        """Only an event can let it go on with what it does: a timer merely says things again, or
        plans ahead."""
        running = bool(self.bench.unanswered)
        self.bench.take()
        assert not any(isinstance(a, Pull | Spill | Connect) for a in self.bench.actions)
        assert running or not self.bench.unanswered
        assert self.bench.wake_at is None or self.bench.wake_at > self.now
        self._act()

    def _act(self) -> None:
        if self.transcript is not None:
            self.transcript += map(repr, self.bench.actions)
        for action in self.bench.actions:
            match action:
                case Launch():
                    self.memory.launch(action)
                    self._passes.append(action)
                    if len(self._passes) == 1:
                        self._begin_pass()
                case Pull() | Spill():
                    self._into(action).pull(action)
                    self.n_spills += isinstance(action, Spill)
                    self._pulls[action.ticket] = action
                    self.later(self.random.expovariate(100), self._finish_of(action, torn=False))
                case Cancel(ticket):
                    self.later(0.0, self._finish_of(self._pulls[ticket], torn=True))
                case Connect(peer):
                    self.later(0.01, partial(self._connect, peer.instance))
                case Send(peer, message):
                    self.post("core", peer, message)
                case _:
                    pass

    def _begin_pass(self) -> None:
        launch = self._passes[0]
        begun = self.memory.can_begin(launch)
        if begun:
            self.memory.begin(launch)
        self.later(self.random.uniform(0.001, 0.03), lambda: self._end_pass(begun=begun))

    def _end_pass(self, *, begun: bool) -> None:
        """The next one begins before the core has heard of it."""
        self.bench.unanswered.pop(0)
        launch = self._passes.popleft()
        final: StepDone | StepFailed
        if self.random.random() < self.weather.raised or not begun:
            self.memory.failed(launch)
            final = StepFailed(launch.step, "raised")
        else:
            n_rounds = self.random.randint(1, launch.plan.repeats)
            final = StepDone(launch.step, self.memory.done(launch, n_rounds))
        if self._passes:
            self._begin_pass()
        self.give(final)

    def _into(self, pull: Pull | Spill) -> Memory:
        """Whose pages are written."""
        if isinstance(pull, Pull):
            return self.memory
        assert self.host is not None
        return self.host

    def _owner(self, pull: Pull | Spill) -> Memory | Prefiller | RealPrefiller | None:
        """Whose pages are read; None: it is gone."""
        if isinstance(pull, Spill):
            return self.memory
        return self.host if pull.peer == H else self.prefills.get(pull.peer)

    def _finish_of(self, pull: Pull | Spill, *, torn: bool) -> Callable[[], None]:
        def final() -> None:
            if self._pulls.pop(pull.ticket, None) is None:
                return
            owner = self._owner(pull)
            content = [owner.content(ref) if owner else None for ref, _ in pull.copies]
            ok = None not in content and self.random.random() >= self.weather.torn and not torn
            self._into(pull).pulled(pull, content)
            self.give(TicketFinal(pull.ticket, ok, "" if ok else "torn"))

        return final

    def _connect(self, instance: InstanceId) -> None:
        alive = instance in self.prefills
        self.give(PeerUp(hello(instance)) if alive else PeerDown(instance))

    # --- links -------------------------------------------------------------------------------

    def post(self, sender: str, to: str, message: AnyMessage, *, in_order: bool = True) -> None:
        """One way of one link."""
        if self.random.random() < self.weather.loss:
            return
        at = self.now + self.random.expovariate(500)
        if in_order:
            at = max(at, self._last_at.get((sender, to), 0.0) + 1e-9)
            self._last_at[sender, to] = at
        self.later(at - self.now, lambda: self._arrive(sender, to, message))
        if self.random.random() < self.weather.repeat:
            self.post(sender, to, message, in_order=in_order)

    def _arrive(self, sender: str, to: str, message: AnyMessage) -> None:
        if to == "core":
            if sender == G or sender in self.prefills:
                self.give(Received(InstanceId(sender), message))
        elif to == G:
            self.gateway.hear(sender, message)
        elif to in self.prefills:
            self.prefills[InstanceId(to)].hear(message, sender)

    # --- prefill workers ---------------------------------------------------------------------

    def new_prefill(self) -> None:
        self._n_prefills += 1
        instance = InstanceId(f"prefill-{self._n_prefills}")
        self.prefills[instance] = self.make_prefill(self, instance)
        if self.weather.crash_every_s:
            self.later(
                self.random.expovariate(1 / self.weather.crash_every_s),
                lambda: self._crash(instance),
            )

    def _crash(self, instance: InstanceId) -> None:
        del self.prefills[instance]
        self.new_prefill()
        self.later(0.2, lambda: self.give(PeerDown(instance)))
        self.later(0.2, lambda: self.gateway.prefill_lost(instance))
