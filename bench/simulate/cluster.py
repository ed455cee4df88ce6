"""A whole Baton in one thread: the real cores and links under a virtual clock.

Only the edges are made here: a clock, a network that loses messages, and devices (see
`bench.simulate.device`).
"""

from collections.abc import Callable, Sequence
from random import Random

from bench.simulate.client import Client
from bench.simulate.clock import Clock
from bench.simulate.gateway import GatewayProcess
from bench.simulate.laws import check_forgotten, require
from bench.simulate.network import Network
from bench.simulate.process import Process, Watch, World
from bench.simulate.shape import FAIR, Shape, Weather
from bench.simulate.worker import WorkerProcess
from common.engine.events import Drain
from common.errors import InvariantBroken
from common.ids import InstanceId, Role
from launch.gateway.events import Crashed
from launch.gateway.transfers import Generate

NOTICED_AFTER_S = 0.02  # a supervisor sees its child die
BACK_AFTER_S = 0.2  # and starts another
BEGINS_AT_S = 0.5  # by then everyone has met


class Cluster:
    """Submit, `run`, look at the clients; `settle` at the end."""

    def __init__(
        self, shape: Shape, seed: int = 0, weather: Weather = FAIR, *, watches: Sequence[Watch] = ()
    ) -> None:
        random = Random(seed)
        self.clock = Clock()
        self.network = Network(self.clock, random, shape.high_water)
        self.world = World(shape, random, self.clock, self.network, watches=list(watches))
        self.workers: list[WorkerProcess] = []
        self._n_lives = 0
        self.world.on_hung = self._hung
        self.world.on_crash = self._crashed
        self.gateway = GatewayProcess(self.world, "gateway-0")
        for role, count in ((Role.PREFILL, shape.prefills), (Role.DECODE, shape.decodes)):
            for _ in range(count):
                self.start(role)
        self.run(BEGINS_AT_S)
        self._begin(weather)

    # --- time --------------------------------------------------------------------------------

    @property
    def now(self) -> float:
        return self.clock.now

    def run(self, seconds: float, until: Callable[[], bool] = lambda: False) -> None:
        """Let time pass; stop early when `until` holds."""
        end = self.clock.now + seconds
        while not until():
            at = self.clock.next_at
            if at is None or at > end:
                self.clock.now = end
                return
            self.clock.next()

    def settle(self) -> None:
        """The weather clears; whatever was lost is found out; then everything is free."""
        self.network.heal()
        self.run(2 * self.world.shape.lost_after_s + 5.0)
        self.check_idle()

    # --- processes ---------------------------------------------------------------------------

    def start(self, role: Role, address: str | None = None) -> WorkerProcess:
        self._n_lives += 1
        worker = WorkerProcess(self.world, role, f"{role}-{self._n_lives}", address=address)
        self.workers.append(worker)
        return worker

    def kill(self, worker: WorkerProcess, *, noticed: bool = True) -> None:
        """`noticed`: the gateway is told at once, and need not wait for its silence."""
        worker.kill()
        self.workers.remove(worker)
        if noticed:
            self.clock.at(NOTICED_AFTER_S, lambda: self._tell_gateway(worker))

    def replace(self, worker: WorkerProcess, *, noticed: bool = True) -> None:
        """It dies; its next life starts soon after."""
        self.kill(worker, noticed=noticed)
        address = worker.address if self.world.shape.same_address else None
        self.clock.at(BACK_AFTER_S, lambda: self.start(worker.role, address))

    def _hung(self, instance: InstanceId) -> None:
        """The supervisor is told."""
        for worker in [w for w in self.workers if w.instance == instance]:
            self.replace(worker)

    def _crashed(self, instance: InstanceId) -> None:
        """As by its own SIGSEGV: the supervisor sees its exit code."""
        gateway = self.gateway
        self._hung(instance)
        self.clock.at(NOTICED_AFTER_S / 2, lambda: gateway.post(Crashed(instance)))

    def _tell_gateway(self, worker: WorkerProcess) -> None:
        self.gateway.links.lost(worker.instance, self.now)
        self.gateway.ring()

    def drain(self, worker: WorkerProcess) -> None:
        """As SIGTERM: it finishes what it has, says goodbye and leaves."""
        worker.post(Drain())

        def leave_if_idle() -> None:
            if not worker.alive:
                return
            if not worker.core.idle:
                self.clock.at(0.05, leave_if_idle)
                return
            worker.links.leave()
            self.kill(worker)

        self.clock.at(0.05, leave_if_idle)

    def restart_gateway(self) -> GatewayProcess:
        """A new life at the same address. Returns the old one."""
        old = self.gateway
        old.kill()
        self._n_lives += 1
        self.gateway = GatewayProcess(self.world, f"gateway-{self._n_lives}")
        return old

    def of(self, role: Role) -> list[WorkerProcess]:
        return [worker for worker in self.workers if worker.role is role]

    @property
    def processes(self) -> list[Process]:
        return [self.gateway, *self.workers]

    # --- clients -----------------------------------------------------------------------------

    def submit(self, *requests: Generate, every_s: float = 0.0) -> None:
        for i, request in enumerate(requests):
            self.clock.at(i * every_s, lambda r=request: self.gateway.submit(r))

    def client(self, request: Generate) -> Client:
        return self.gateway.clients[request.request]

    def answer(self, requests: Sequence[Generate], seconds: float = 300.0) -> None:
        """Run until all of them are over."""
        waiting = [request.request for request in requests]

        def none_waits() -> bool:
            clients = self.gateway.clients
            while waiting and waiting[-1] in clients and clients[waiting[-1]].over:
                waiting.pop()
            return not waiting

        self.run(seconds, until=none_waits)
        if not none_waits():
            raise InvariantBroken(f"{waiting[-1]} waits for ever")

    # --- weather -----------------------------------------------------------------------------

    def _begin(self, weather: Weather) -> None:
        self.network.weather = weather
        for every_s, strike in (
            (weather.cut_every_s, self._cut_some),
            (weather.pause_every_s, self._pause_some),
            (weather.kill_every_s, self._kill_some),
            (weather.drain_every_s, self._drain_some),
            (weather.restart_every_s, self.restart_gateway),
        ):
            if every_s:
                self._strike_again(weather, every_s, strike)

    def _strike_again(self, weather: Weather, every_s: float, strike: Callable[[], object]) -> None:
        def now() -> None:
            if self.network.weather is weather:
                self.network.counts[getattr(strike, "__name__", "")] += 1
                strike()
                self._strike_again(weather, every_s, strike)

        self.clock.at(self.world.random.expovariate(1 / every_s), now)

    def _cut_some(self) -> None:
        draw = self.world.random
        if not self.workers:
            return
        one, other = draw.sample(self.processes, 2)
        seconds = draw.uniform(*self.world.weather.cut_s)
        self.network.cut(one.instance, other.instance, seconds)
        if draw.random() < 0.7:  # else one way only
            self.network.cut(other.instance, one.instance, seconds)

    def _pause_some(self) -> None:
        draw = self.world.random
        weather = self.world.weather
        who = [process for process in self.processes if process.role in weather.pauses]
        if who:
            draw.choice(who).pause(draw.uniform(*weather.pause_s))

    def _kill_some(self) -> None:
        draw = self.world.random
        if self.workers:
            self.replace(draw.choice(self.workers), noticed=draw.random() < 0.7)

    def _drain_some(self) -> None:
        if self.workers:
            old = self.world.random.choice(self.workers)
            self.start(old.role)
            self.drain(old)

    # --- the laws ----------------------------------------------------------------------------

    def check_idle(self) -> None:
        """With nothing in flight, every living pool holds no page (law 1), nobody is owed, and
        what has ended is forgotten."""
        require(self.gateway.core.idle, "the gateway is not idle")
        check_forgotten(self.gateway.core, self.gateway.instance)
        for worker in self.workers:
            worker.core.check()
            held = worker.pool.n_held
            held += 0 if worker.host_pool is None else worker.host_pool.n_held
            require(held == 0, f"{worker.instance} holds {held} pages at idle")
            require(worker.core.idle, f"{worker.instance} is not idle")
            check_forgotten(worker.core, worker.instance)
            self._check_view(worker)

    def _check_view(self, worker: WorkerProcess) -> None:
        """The gateway has not missed what it was told last."""
        instance, known = worker.instance, self.gateway.core.fleet
        view, pool = known.view(instance), worker.pool
        told = None if view is None else view.snapshot
        if told is None or told.free_pages != pool.n_available or told.running or told.waiting:
            raise InvariantBroken(f"{instance} is idle, and is taken for {told}")
        every = self.world.meaning
        found = {one for one in every if known.prefixes.leading(instance, (one,))}
        if found != pool.published():
            raise InvariantBroken(f"{instance}: {len(pool.published())} pages, not {len(found)}")
