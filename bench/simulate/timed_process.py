"""The processes of a timed run: real cores, one for each, that hear each other after a while.

Nothing goes wrong here: no message is lost, no pass raises, nobody dies. So there are no links to
be made and nothing to be checked after each step, and a device only takes time: what it would
compute is no matter. `bench.simulate.process` and its like are for what goes wrong.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from bench.simulate.clock import Clock
from bench.simulate.costs import Costs
from bench.simulate.shape import Shape
from bench.simulate.worker import core_of, hello_of
from common.engine.events import (
    Action,
    Cancel,
    Connect,
    Launch,
    Note,
    PeerUp,
    Pull,
    Received,
    Send,
    Spill,
    StepDone,
    TicketFinal,
)
from common.engine.plan import Drawn, PassResult
from common.errors import InvariantBroken
from common.ids import InstanceId, Role, TransferId
from common.kv.pages import PagePool
from common.messages import AnyMessage, Hello, Snapshot
from decode.core import DecodeCore

TOKEN = Drawn(token=1)  # what every device draws
MOST_REPEATS = 32  # of a pass: pages are taken for as many tokens ahead


class Decided(Protocol):
    """What cores answer with."""

    @property
    def actions(self) -> Sequence[Any]: ...

    @property
    def wake_at(self) -> float | None: ...


class Core(Protocol):
    def step(self, now: float, events: Sequence[Any]) -> Decided: ...


@dataclass(eq=False)
class Exchange:
    """Who is there. Messages arrive in order, `message_s` after they were sent."""

    clock: Clock
    message_s: float
    processes: "dict[InstanceId, TimedProcess]" = field(
        default_factory=dict[InstanceId, "TimedProcess"]
    )
    second_at: dict[TransferId, float] = field(default_factory=dict[TransferId, float])
    """When a second token was drawn, if the third was told with it."""

    def join(self, process: "TimedProcess") -> None:
        self.processes[process.hello.peer.instance] = process

    def send(self, sender: InstanceId, to: InstanceId, message: AnyMessage) -> None:
        other = self.processes[to]
        self.clock.at(self.message_s, lambda: other.hear(Received(sender, message)))

    def introduce(self, one: "TimedProcess", other: InstanceId) -> None:
        """Both are up for each other: a hello there, a welcome back."""
        peer = self.processes[other]
        self.clock.at(self.message_s, lambda: peer.hear(PeerUp(one.hello)))
        self.clock.at(2 * self.message_s, lambda: one.hear(PeerUp(peer.hello)))


class TimedProcess:
    """A core, called as soon as something has come or it wants to be. It takes no time."""

    def __init__(self, exchange: Exchange, hello: Hello, core: Core) -> None:
        self.hello = hello
        self.instance = hello.peer.instance
        self._exchange = exchange
        self._clock = exchange.clock
        self._core = core
        self._come: list[Any] = []
        self._wakes_at = np.inf  # the next timer's; those before it have rung
        exchange.join(self)

    def hear(self, event: Any) -> None:  # noqa: ANN401  each kind of core has its own
        """Whatever else happens at this moment is heard together with it."""
        if not self._come:
            self._clock.at(0.0, self.turn)
        self._come.append(event)

    def act(self, action: Any) -> None:  # noqa: ANN401
        raise NotImplementedError

    def send(self, to: InstanceId, message: AnyMessage) -> None:
        self._exchange.send(self.instance, to, message)

    def meet(self, other: InstanceId) -> None:
        self._exchange.introduce(self, other)

    def turn(self) -> None:
        events, self._come = self._come, []
        decision = self._core.step(self._clock.now, events)
        for action in decision.actions:
            self.act(action)
        wake_at = decision.wake_at
        if wake_at is not None and wake_at < self._wakes_at:
            self._wakes_at = wake_at
            self._clock.at(wake_at - self._clock.now, lambda: self._ring(wake_at))

    def _ring(self, at: float) -> None:
        if at == self._wakes_at:  # else an earlier one was asked for since, and has rung
            self._wakes_at = np.inf
            if not self._come:
                self.turn()


@dataclass(slots=True, eq=False)
class _Computing:
    """The running pass, computed so often. Each time takes longer than the last, by as much."""

    launch: Launch
    began: float
    first_s: float
    growth_s: float
    n_rounds: int

    def seconds(self, n_rounds: int) -> float:
        return n_rounds * self.first_s + self.growth_s * n_rounds * (n_rounds - 1) / 2

    @property
    def ends_at(self) -> float:
        return self.began + self.seconds(self.n_rounds)

    def stop(self, now: float) -> bool:
        """With the round that is being computed. False: that is the last one anyway."""
        n_rounds = 1
        while n_rounds < self.n_rounds and self.began + self.seconds(n_rounds) < now:
            n_rounds += 1
        shorter, self.n_rounds = n_rounds < self.n_rounds, n_rounds
        return shorter

    def done(self) -> StepDone:
        plan, n_rounds = self.launch.plan, self.n_rounds
        drawn = (TOKEN,) * len(plan.draws)
        seconds = self.seconds(n_rounds) / n_rounds
        result = PassResult(drawn=drawn, seconds=seconds, again=(drawn,) * (n_rounds - 1))
        return StepDone(self.launch.step, result)


class TimedWorker(TimedProcess):
    """A worker of either role, its device and its pulls."""

    def __init__(
        self,
        exchange: Exchange,
        shape: Shape,
        role: Role,
        name: str,
        reported: Callable[[float, Snapshot], object],
    ) -> None:
        """`reported`: told of each snapshot that it sends."""
        part = shape.part(role)
        if part.costs is None:
            raise ValueError("a timed run needs costs")
        hello = hello_of(shape, role, InstanceId(name), name)
        pool, host_pool = _pool(part.n_pages), None
        if role is Role.DECODE and shape.host_pages:
            host_pool = _pool(shape.host_pages)
        self._core = core_of(shape, hello, pool, host_pool, MOST_REPEATS)
        super().__init__(exchange, hello, self._core)
        self._costs: Costs = part.costs
        self._reported = reported
        self._computing: _Computing | None = None
        self._link_free_at = 0.0

    def act(self, action: Action) -> None:
        match action:
            case Send(to, message):
                if isinstance(message, Snapshot):
                    self._reported(self._clock.now, message)
                self.send(to, message)
            case Launch():
                self._compute(action)
            case Pull() | Spill():
                self._copy(action)
            case Connect(peer):
                self.meet(peer.instance)
            case Note() | Cancel():  # a ticket is final when it would have been
                pass

    def turn(self) -> None:
        super().turn()
        computing = self._computing
        if computing is None or computing.n_rounds == 1 or not isinstance(self._core, DecodeCore):
            return
        if self._core.batch_changes and computing.stop(self._clock.now):
            self._end(computing)

    def _compute(self, launch: Launch) -> None:
        """Nobody plans ahead here: one pass at a time."""
        if self._computing is not None:
            raise InvariantBroken("two passes at once")
        now, plan, costs = self._clock.now, launch.plan, self._costs
        first_s, n_rounds = costs.pass_s(plan), plan.repeats
        if n_rounds > 1:
            indices = [draw.index for draw in plan.draws]
            if 0 in indices:  # of a prompt of one token
                n_rounds = 1
            elif 1 in indices:
                second = (draw.transfer for draw in plan.draws if draw.index == 1)
                self._exchange.second_at.update(dict.fromkeys(second, now + first_s))
        growth_s = costs.decode.per_context_token_s * plan.n_rows
        self._computing = _Computing(launch, now, first_s, growth_s, n_rounds)
        self._end(self._computing)

    def _end(self, computing: _Computing) -> None:
        at = computing.ends_at
        self._clock.at(at - self._clock.now, lambda: self._ended(computing, at))

    def _ended(self, computing: _Computing, at: float) -> None:
        if computing is self._computing and at == computing.ends_at:  # else it has ended before
            self._computing = None
            self.hear(computing.done())

    def _copy(self, action: Pull | Spill) -> None:
        """One after the other: what is copied at the same time shares the link."""
        now, transfer = self._clock.now, self._costs.transfer
        self._link_free_at = max(now, self._link_free_at)
        self._link_free_at += len(action.copies) * self._costs.page_bytes / transfer.bytes_per_s
        final = TicketFinal(action.ticket, ok=True)
        at = self._link_free_at + transfer.latency_s
        self._clock.at(at - now, lambda: self.hear(final))


def _pool(n_pages: int) -> PagePool:
    return PagePool(n_pages, np.zeros(n_pages, np.uint64))
