"""A virtual process: the real links around a core, in a loop as the real shells are."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Protocol, cast

from bench.simulate.clock import Clock
from bench.simulate.device import Device
from bench.simulate.laws import require
from bench.simulate.network import Network, VirtualMailbox
from bench.simulate.shape import Shape, Weather
from common.engine.links import Links
from common.ids import InstanceId, PageHash, PageId, Role, TransferId
from common.messages import Hello
from common.wire import Mailbox

MAX_TURNS_AT_ONCE = 1000  # without time passing: beyond it, a core asks to be woken for nothing


class Decided(Protocol):
    """What cores answer with."""

    @property
    def actions(self) -> Sequence[Any]: ...

    @property
    def wake_at(self) -> float | None: ...


class Core(Protocol):
    def step(self, now: float, events: Sequence[Any]) -> Decided: ...

    def check(self) -> None: ...


Life = tuple[InstanceId, PageId, int]
"""Of a page: whose, which, and its generation."""

Watch = Callable[["Process", Sequence[Any], Sequence[Any]], None]
"""Told of each step of a core, before its actions are performed: who, events, actions."""


@dataclass(eq=False)
class World:
    """What virtual processes share."""

    shape: Shape
    random: Random
    clock: Clock
    network: Network
    devices: dict[InstanceId, Device] = field(default_factory=dict[InstanceId, Device])
    living: dict[InstanceId, "Process"] = field(default_factory=dict[InstanceId, "Process"])
    meaning: dict[PageHash, bytes] = field(default_factory=dict[PageHash, bytes])
    announced: dict[Life, bytes] = field(default_factory=dict["Life", bytes])
    watches: list[Watch] = field(default_factory=list["Watch"])
    pulled_pages: int = 0
    rows: int = 0  # computed by all passes
    n_steps: int = 0  # of all cores
    deadly: bool = False  # poison kills the worker that computes it
    on_crash: Callable[[InstanceId], None] = lambda _: None  # a worker has died by itself
    on_hung: Callable[[InstanceId], None] = lambda _: None  # a gateway has found out

    @property
    def weather(self) -> Weather:
        return self.network.weather


class Process:
    """One life of one process."""

    def __init__(self, world: World, hello: Hello, core: Core) -> None:
        self.world = world
        self.hello = hello
        self.alive = True
        self.paused_until = 0.0
        self.mailbox = VirtualMailbox(
            world.network, self.instance, self.role, hello.peer.endpoints[0], self.ring
        )
        self.links = Links(
            cast("Mailbox", self.mailbox), hello, peer_lost_after_s=world.shape.lost_after_s
        )
        self._core = core
        self._posted: list[Any] = []
        self._core_wake_at: float | None = None
        self._timer = 0
        self._rung = False
        self._turns_at = (-1.0, 0)
        world.living[self.instance] = self

    @property
    def instance(self) -> InstanceId:
        return self.hello.peer.instance

    @property
    def role(self) -> Role:
        return self.hello.peer.role

    def act(self, action: Any) -> None:  # noqa: ANN401 - each kind of core has its own
        raise NotImplementedError

    def judge(self, events: Sequence[Any], actions: Sequence[Any]) -> None:
        """Raise if a step breaks a law that the core itself cannot see broken."""
        raise NotImplementedError

    def knows(self, worker: InstanceId, transfer: TransferId, attempt: int) -> bool:
        """Whether it still has that attempt going at that worker."""
        raise NotImplementedError

    def kill(self) -> None:
        """As kill -9: its memory stays readable, nothing of it is heard again."""
        self.alive = False
        del self.world.living[self.instance]
        del self.world.network.bound[self.mailbox.endpoint]

    def pause(self, seconds: float) -> None:
        self.paused_until = self.world.clock.now + seconds

    def post(self, event: Any) -> None:  # noqa: ANN401
        """Something has come from inside the process."""
        self._posted.append(event)
        self.ring()

    def ring(self) -> None:
        """Take a turn, at once or a little later together with what comes meanwhile."""
        if not self._rung:
            self._rung = True
            self.world.clock.at(self.world.random.choice((0.0, 0.0, 0.0005)), self._turn)

    def _turn(self) -> None:
        self._rung = False
        now = self.world.clock.now
        if not self.alive:
            return
        if now < self.paused_until:
            self._rung = True
            self.world.clock.at(self.paused_until - now, self._turn)
            return
        self._count_turn(now)
        posted, self._posted = self._posted, []
        events = [*posted, *self.links.hear(now)]
        if events or (self._core_wake_at is not None and self._core_wake_at <= now):
            self._step(now, events)
        self._sleep(now)

    def _step(self, now: float, events: Sequence[Any]) -> None:
        decision = self._core.step(now, events)
        self._core.check()
        self._core_wake_at = decision.wake_at
        self.world.n_steps += 1
        self.judge(events, decision.actions)
        for watch in self.world.watches:
            watch(self, events, decision.actions)
        for action in decision.actions:
            self.act(action)

    def _count_turn(self, now: float) -> None:
        at, n = self._turns_at
        self._turns_at = (now, n + 1 if at == now else 1)
        require(self._turns_at[1] < MAX_TURNS_AT_ONCE, f"{self.instance} spins")

    def _sleep(self, now: float) -> None:
        wake_at = self.links.wake_at(now)
        if self._core_wake_at is not None:
            wake_at = min(wake_at, self._core_wake_at)
        self._timer += 1
        timer = self._timer

        def due() -> None:
            if timer == self._timer:
                self._turn()

        self.world.clock.at(max(0.0, wake_at - now), due)
