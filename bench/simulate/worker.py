"""A virtual worker: the real core of its role over a virtual device."""

from collections import deque
from collections.abc import Sequence
from typing import Any

from bench.simulate.device import CheckedPool, Device
from bench.simulate.laws import check_queue, require
from bench.simulate.process import Process, World
from bench.simulate.promises import Accepts, Key, Promises, ended_by_itself
from bench.simulate.pulls import Pulls, announce, host_memory_of
from bench.simulate.shape import Shape
from common.engine.events import (
    Action,
    Cancel,
    Connect,
    Launch,
    Note,
    Pull,
    Send,
    Spill,
    StepDone,
    StepFailed,
    TicketFinal,
)
from common.ids import HostId, InstanceId, Role, TransferId
from common.kv.host import HostMemory
from common.kv.pages import PagePool
from common.messages import (
    PROTOCOL,
    Accept,
    AnyMessage,
    Handoff,
    Hello,
    Limits,
    ModelIdentity,
    PagesReady,
    Peer,
    RegionKey,
)
from decode.compute import DecodeOptions
from decode.core import DecodeCore
from prefill.core import PrefillCore, PrefillOptions

FINGERPRINT = "f"
MOST_UNANSWERED = 2  # passes: one that is computed, and the next


class WorkerProcess(Process):
    """Passes and pulls take a while; what the weather says may go wrong with them."""

    core: PrefillCore | DecodeCore

    def __init__(self, world: World, role: Role, name: str, *, address: str | None = None) -> None:
        """`address`: where it listens; None: at one of its own."""
        shape = world.shape
        instance = InstanceId(name)
        hello = hello_of(shape, role, instance, address or name)
        self.device = Device(shape.part(role).n_pages, shape.page_tokens, rounding=shape.rounding)
        world.devices[instance] = self.device
        self.pool = CheckedPool(self.device, world.meaning)
        self.host_pool, host_device = None, None
        if role is Role.DECODE and shape.host_pages:
            host_device = Device(shape.host_pages, shape.page_tokens)
            world.devices[host_memory_of(instance)] = host_device
            self.host_pool = PagePool(shape.host_pages, host_device.generations)
        self.core = core_of(shape, hello, self.pool, self.host_pool)
        self._pulls = Pulls(world, instance, self.device, host_device, self._pulled)
        self._unanswered: deque[Launch] = deque()
        self._accepts = Accepts()
        self._promises = Promises(shape.lost_after_s, self._is_known, self._is_needed)
        super().__init__(world, hello, self.core)
        self.links.join("gateway", world.clock.now)
        self.ring()

    @property
    def address(self) -> str:
        return self.hello.peer.endpoints[0]

    def judge(self, events: Sequence[Any], actions: Sequence[Any]) -> None:
        assert self.hello.limits is not None
        check_queue(self.hello.limits, self.role, actions)
        self._accepts.stepped(events, actions)
        world = self.world
        excused, calm_since = ended_by_itself(actions), world.network.calm_since
        self._promises.stepped(world.clock.now, set(self.core.held()), excused, calm_since)

    def _is_known(self, key: Key, owner: InstanceId) -> bool:
        """What it holds for that process is known there."""
        process = self.world.living.get(owner)
        return process is not None and process.knows(self.instance, *key)

    def _is_needed(self, key: Key, owner: InstanceId) -> bool:
        """By its gateway and, of a prefill side, by whoever reads it."""
        if not self.links.hello_of(owner) or not self._is_known(key, owner):
            return False
        who = {p.role for p in self.world.living.values() if p.knows(self.instance, *key)}
        return who >= ({Role.GATEWAY, Role.DECODE} if self.role is Role.PREFILL else {Role.GATEWAY})

    def knows(self, worker: InstanceId, transfer: TransferId, attempt: int) -> bool:
        core = self.core
        return isinstance(core, DecodeCore) and core.reads(worker, (transfer, attempt))

    def act(self, action: Action) -> None:
        now = self.world.clock.now
        match action:
            case Send(peer, message):
                self._announce(message)
                self.links.send(peer, message, now)
            case Connect(peer):
                self.links.dial(peer, now)
                self.ring()
            case Launch():
                self._launch(action)
            case Pull():
                self._pulls.pull(action)
            case Spill():
                self._pulls.spill(action)
            case Cancel(ticket):
                self._pulls.cancel(ticket)
            case Note(name=name):
                self.world.network.counts[name] += 1

    def _announce(self, message: AnyMessage) -> None:
        match message:
            case PagesReady(pages=refs) | Handoff(pages=refs) | Accept(held=refs):
                announce(self.world, self.instance, self.device, refs)
            case _:
                pass

    def _launch(self, launch: Launch) -> None:
        """Passes are computed in order."""
        self._unanswered.append(launch)
        require(len(self._unanswered) <= MOST_UNANSWERED, "too many passes are unanswered")
        if len(self._unanswered) == 1:
            self._begin_pass()

    def _begin_pass(self) -> None:
        world, plan = self.world, self._unanswered[0].plan
        world.rows += plan.n_rows
        self.device.begin(plan)
        if world.weather.hung and world.random.random() < world.weather.hung:
            world.network.counts["hung"] += 1
            return
        world.clock.at(world.random.uniform(0.001, 0.01), self._end_pass)

    def _end_pass(self) -> None:
        if not self.alive:
            return
        world, launch = self.world, self._unanswered.popleft()
        if world.deadly and self.device.is_poison(launch.plan):
            world.network.counts["crashed"] += 1
            world.on_crash(self.instance)
            return
        if world.random.random() < world.weather.raised or not self.device.can_finish(launch.plan):
            world.network.counts["raised"] += 1
            self.device.fail(launch.plan, world.random)
            self.post(StepFailed(launch.step, "raised"))
        else:
            self.post(StepDone(launch.step, self.device.finish(launch.plan)))
        if self._unanswered:
            self._begin_pass()

    def _pulled(self, final: TicketFinal) -> None:
        if self.alive:
            self.post(final)


def hello_of(shape: Shape, role: Role, instance: InstanceId, address: str) -> Hello:
    """A worker's: its limits are those of its part of the shape."""
    part = shape.part(role)
    host = HostId(instance if shape.far else "h")
    return Hello(
        protocol=PROTOCOL,
        peer=Peer(instance=instance, role=role, host=host, endpoints=(address,)),
        model=ModelIdentity(
            name="m", fingerprint=FINGERPRINT, kv_dtype="int64", page_layout="1", kernel_path=""
        ),
        limits=Limits(
            n_pages=part.n_pages,
            page_tokens=shape.page_tokens,
            max_model_len=shape.max_model_len,
            max_num_seqs=part.max_num_seqs,
            max_num_batched_tokens=part.budget_tokens,
            max_waiting=shape.max_waiting,
        ),
        pool=_region(instance, host, part.n_pages),
    )


def _region(owner: InstanceId, host: HostId, n_pages: int) -> RegionKey:
    return RegionKey(owner=owner, host=host, region=0, n_pages=n_pages, page_bytes=4096, doors={})


def core_of(
    shape: Shape, hello: Hello, pool: PagePool, host_pool: PagePool | None, most_repeats: int = 1
) -> PrefillCore | DecodeCore:
    """What decides in the worker that says this hello."""
    peer, limits = hello.peer, hello.limits
    assert limits is not None
    chunk_tokens = shape.part(peer.role).chunk_tokens
    if peer.role is Role.PREFILL:
        options = PrefillOptions(
            fingerprint=FINGERPRINT,
            chunk_tokens=chunk_tokens,
            enable_prefix_caching=shape.caching,
            plan_ahead=shape.plan_ahead,
            heartbeat_s=shape.heartbeat_s,
        )
        return PrefillCore(limits, pool, options)
    options = DecodeOptions(
        fingerprint=FINGERPRINT,
        chunk_tokens=chunk_tokens,
        enable_prefix_caching=shape.caching,
        plan_ahead=shape.plan_ahead,
        most_repeats=most_repeats,
        heartbeat_s=shape.heartbeat_s,
    )
    host = None
    if host_pool is not None:
        owner = host_memory_of(peer.instance)
        host = HostMemory(_region(owner, peer.host, host_pool.n_pages), host_pool)
    return DecodeCore(limits, pool, options, host=host)
