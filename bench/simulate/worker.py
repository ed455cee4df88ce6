"""A virtual worker: the real core of its role over a virtual device."""

from bench.simulate.device import GARBAGE, CheckedPool, Device
from bench.simulate.process import Process, World
from common.engine.events import (
    Action,
    Cancel,
    Connect,
    Launch,
    Note,
    Pull,
    Send,
    StepDone,
    StepFailed,
    TicketFinal,
)
from common.ids import HostId, InstanceId, PageId, Role, TicketId
from common.messages import PROTOCOL, Hello, Limits, ModelIdentity, Peer, RegionKey
from decode.compute import DecodeOptions
from decode.core import DecodeCore
from prefill.core import PrefillCore, PrefillOptions

FINGERPRINT = "f"


class WorkerProcess(Process):
    """Passes and pulls take a while; what the weather says may go wrong with them."""

    core: PrefillCore | DecodeCore

    def __init__(self, world: World, role: Role, name: str) -> None:
        shape = world.shape
        n_pages = shape.prefill_pages if role is Role.PREFILL else shape.decode_pages
        hello = _hello(world, role, InstanceId(name), n_pages)
        self.device = world.devices[hello.peer.instance] = Device(n_pages, shape.page_tokens)
        self.pool = CheckedPool(self.device, world.meaning)
        self.core = _core(world, hello, self.pool)
        self._pulls: dict[TicketId, Pull] = {}
        self.passing = False
        super().__init__(world, hello, self.core)
        self.links.join("gateway", world.clock.now)
        self.ring()

    def act(self, action: Action) -> None:
        now = self.world.clock.now
        match action:
            case Send(peer, message):
                self.links.send(peer, message, now)
            case Connect(peer):
                self.links.dial(peer, now)
                self.ring()
            case Launch():
                self._launch(action)
            case Pull():
                self._pull(action)
            case Cancel(ticket):
                self._finish(ticket, ok=False)
            case Note():
                pass

    def _launch(self, launch: Launch) -> None:
        world, plan = self.world, launch.plan
        assert not self.passing, "two passes at once"
        self.passing = True
        world.rows += plan.n_rows
        self.device.begin(plan)
        raises = world.random.random() < world.weather.raised

        def done() -> None:
            self.passing = False
            if not self.alive:
                return
            if raises:
                self.device.fail(plan, world.random)
                self.post(StepFailed(launch.step, "raised"))
            else:
                self.post(StepDone(launch.step, self.device.finish(plan)))

        world.clock.at(world.random.uniform(0.001, 0.01), done)

    def _pull(self, pull: Pull) -> None:
        world, draw = self.world, self.world.random
        assert pull.ticket not in self._pulls
        self._pulls[pull.ticket] = pull
        longest = 1.0 if draw.random() < world.weather.slow else 0.01
        seconds = draw.uniform(0.0005, longest)
        for ref, local in pull.copies:
            self.device.slots[local] = GARBAGE
            world.clock.at(
                draw.uniform(0.0, seconds), lambda r=ref.page, n=local: self._copy(pull, r, n)
            )
        torn = draw.random() < world.weather.torn
        world.clock.at(seconds, lambda: self._finish(pull.ticket, ok=not torn))

    def _copy(self, pull: Pull, remote: PageId, local: PageId) -> None:
        if pull.ticket in self._pulls:
            owner = self.world.devices[pull.remote.owner]
            self.device.slots[local] = owner.slots[remote]

    def _finish(self, ticket: TicketId, *, ok: bool) -> None:
        """Idempotent. Pages count if none has begun another life."""
        pull = self._pulls.pop(ticket, None)
        if pull is None or not self.alive:
            return
        generations = self.world.devices[pull.remote.owner].generations
        ok = ok and all(int(generations[r.page]) == r.generation for r, _ in pull.copies)
        if ok:
            self.world.pulled_pages += len(pull.copies)
        self.post(TicketFinal(ticket, ok, "" if ok else "torn"))


def _hello(world: World, role: Role, instance: InstanceId, n_pages: int) -> Hello:
    shape, host = world.shape, HostId("h")
    return Hello(
        protocol=PROTOCOL,
        peer=Peer(instance=instance, role=role, host=host, endpoints=(instance,)),
        model=ModelIdentity(
            name="m", fingerprint=FINGERPRINT, kv_dtype="int64", page_layout="1", kernel_path=""
        ),
        limits=Limits(
            n_pages=n_pages,
            page_tokens=shape.page_tokens,
            max_model_len=shape.max_model_len,
            max_num_seqs=shape.max_num_seqs,
            max_num_batched_tokens=shape.budget_tokens,
            max_waiting=shape.max_waiting,
        ),
        pool=RegionKey(
            owner=instance, host=host, region=0, n_pages=n_pages, page_bytes=4096, doors={}
        ),
    )


def _core(world: World, hello: Hello, pool: CheckedPool) -> PrefillCore | DecodeCore:
    shape, limits = world.shape, hello.limits
    assert limits is not None
    if hello.peer.role is Role.PREFILL:
        options = PrefillOptions(
            fingerprint=FINGERPRINT,
            chunk_tokens=shape.chunk_tokens,
            enable_prefix_caching=shape.caching,
        )
        return PrefillCore(limits, pool, options)
    return DecodeCore(
        limits,
        pool,
        DecodeOptions(
            fingerprint=FINGERPRINT,
            chunk_tokens=shape.chunk_tokens,
            enable_prefix_caching=shape.caching,
        ),
    )
