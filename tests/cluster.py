"""A whole Baton in one thread: the real cores under a virtual clock, over links that lose messages.

Only the edges are made here: a clock, links (in order or not at all), and devices. A device is
memory that holds token ids where a real one holds KV: a pass writes ids into slots, and draws a
token by reading its whole sequence back through its page table. Whatever reads a page too early,
too late, or of another life therefore draws another token.
"""

import heapq
import random
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

import numpy as np

from common.engine.events import (
    Action,
    Cancel,
    Connect,
    Launch,
    Note,
    PeerDown,
    PeerUp,
    Pull,
    Received,
    Send,
    StepDone,
    TicketFinal,
)
from common.engine.plan import Drawn, PassPlan, PassResult
from common.ids import HostId, InstanceId, PageHash, PageId, Role, TransferId
from common.kv.pages import PagePool
from common.kv.prefix import page_hashes
from common.messages import (
    PROTOCOL,
    AnyMessage,
    Hello,
    Limits,
    ModelIdentity,
    Peer,
    PeerLost,
    RegionKey,
)
from common.params import SamplingParams
from decode.compute import DecodeOptions
from decode.core import DecodeCore
from launch.gateway.attempts import GatewayOptions
from launch.gateway.core import GatewayCore
from launch.gateway.events import Delta, GatewayAction, Quit, Rejected, Submit
from launch.gateway.transfers import Generate, RequestId
from prefill.core import PrefillCore, PrefillOptions

VOCABULARY = 50_000


def next_token(sequence: Iterable[int], sample: int) -> int:
    """The model: a hash of everything before, and of the sample."""
    data = np.fromiter((*sequence, sample), np.int64).tobytes()
    return zlib.crc32(data) % VOCABULARY


def expected(generate: Generate, sample: int) -> list[int]:
    """What an undisturbed single process would answer."""
    sequence = list(generate.prompt)
    outputs: list[int] = []
    params = generate.params
    while len(outputs) < params.max_tokens:
        token = next_token(sequence, sample)
        outputs.append(token)
        sequence.append(token)
        if token in params.end_token_ids:
            break
    return outputs


class CheckedPool(PagePool):
    """A pool that sees what it publishes: equal hashes must mean equal content, in all pools."""

    def __init__(self, device: "Device", meaning: dict[PageHash, bytes]) -> None:
        super().__init__(len(device.slots), device.generations)
        self._device = device
        self._meaning = meaning

    def publish(self, page: PageId, page_hash: PageHash) -> bool:
        content = self._device.slots[page].tobytes()
        assert self._meaning.setdefault(page_hash, content) == content, f"page {page}"
        return super().publish(page, page_hash)


class Device:
    """Pages of token ids, and a pass over them."""

    def __init__(self, n_pages: int, page_tokens: int) -> None:
        self.page_tokens = page_tokens
        self.generations = np.zeros(n_pages, np.uint64)
        self.slots = np.full((n_pages, page_tokens), -1, np.int64)

    def run(self, plan: PassPlan) -> PassResult:
        for source, destination in plan.copies:
            self.slots[destination] = self.slots[source]
        self.slots.reshape(-1)[plan.slots_T] = plan.tokens_T
        drawn: list[Drawn] = []
        for draw in plan.draws:
            b = int(np.searchsorted(plan.start_B1, draw.row, side="right")) - 1
            n = int(plan.positions_T[draw.row]) + 1
            table = plan.tables_BM[b, : -(-n // self.page_tokens)]
            drawn.append(Drawn(token=next_token(self.slots[table].reshape(-1)[:n], draw.sample)))
        return PassResult(drawn=tuple(drawn), seconds=0.001)


@dataclass
class Worker:
    """One life of one worker process."""

    hello: Hello
    core: PrefillCore | DecodeCore
    pool: PagePool
    device: Device
    alive: bool = True
    wake_at: float | None = None
    known: set[InstanceId] = field(default_factory=set[InstanceId])

    @property
    def instance(self) -> InstanceId:
        return self.hello.peer.instance


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What a cluster is made of, and how bad its links are."""

    prefills: int = 1
    decodes: int = 1
    prefill_pages: int = 64
    decode_pages: int = 64
    page_tokens: int = 4
    chunk_tokens: int = 8
    caching: bool = True
    drop: float = 0.0  # share of messages that are lost
    max_num_seqs: int = 8


class Cluster:
    """Run with `run()`; look at `answers`, `errors`; `check_idle()` at the end."""

    def __init__(self, shape: Shape, seed: int) -> None:
        self.shape = shape
        self.random = random.Random(seed)
        self.now = 0.0
        self._queue: list[tuple[float, int, Callable[[], object]]] = []
        self._count = 0
        self._last_arrival: dict[tuple[InstanceId, InstanceId], float] = {}
        self.lossy = True
        self.gateway_id = InstanceId("gateway")
        self.gateway = GatewayCore(
            GatewayOptions(), lambda: TransferId(f"t{self.random.getrandbits(64):016x}")
        )
        self._gateway_wake: float | None = None
        self._meaning: dict[PageHash, bytes] = {}
        self.workers: dict[InstanceId, Worker] = {}
        self.answers: dict[tuple[RequestId, int], list[int]] = {}
        self.cached: dict[RequestId, int] = {}
        self.errors: dict[RequestId, Exception] = {}
        self.finished: set[RequestId] = set()
        self.pulled_pages = 0
        self.rows = 0
        for role, count in ((Role.PREFILL, shape.prefills), (Role.DECODE, shape.decodes)):
            for _ in range(count):
                self.start(role)

    # --- time --------------------------------------------------------------------------------

    def at(self, delay_s: float, what: Callable[[], object]) -> None:
        self._count += 1
        heapq.heappush(self._queue, (self.now + delay_s, self._count, what))

    def run(self, seconds: float, until: Callable[[], bool] = lambda: False) -> None:
        """Let time pass; stop early when `until` holds."""
        end = self.now + seconds
        while not until():
            wakes = [w.wake_at for w in self.workers.values() if w.alive and w.wake_at is not None]
            wakes += [] if self._gateway_wake is None else [self._gateway_wake]
            head = self._queue[0][0] if self._queue else end
            at = min([head, *wakes, end])
            self.now = max(self.now, at)
            if self.now >= end:
                return
            if self._queue and self._queue[0][0] <= self.now:
                heapq.heappop(self._queue)[2]()
                continue
            for worker in list(self.workers.values()):
                if worker.alive and worker.wake_at is not None and worker.wake_at <= self.now:
                    self._step(worker, [])
            if self._gateway_wake is not None and self._gateway_wake <= self.now:
                self._step_gateway([])

    # --- processes ---------------------------------------------------------------------------

    def start(self, role: Role) -> Worker:
        shape = self.shape
        n_pages = shape.prefill_pages if role is Role.PREFILL else shape.decode_pages
        instance = InstanceId(f"{role}-{len(self.workers)}")
        device = Device(n_pages, shape.page_tokens)
        pool = CheckedPool(device, self._meaning)
        limits = Limits(
            n_pages=n_pages,
            page_tokens=shape.page_tokens,
            max_model_len=min(shape.prefill_pages, shape.decode_pages) * shape.page_tokens,
            max_num_seqs=shape.max_num_seqs,
            max_num_batched_tokens=32,
            max_waiting=1000,
        )
        peer = Peer(instance=instance, role=role, host=HostId("h"), endpoints=(instance,))
        hello = Hello(
            protocol=PROTOCOL,
            peer=peer,
            model=ModelIdentity(
                name="m", fingerprint="f", kv_dtype="int64", page_layout="1", kernel_path=""
            ),
            limits=limits,
            pool=RegionKey(
                owner=instance,
                host=HostId("h"),
                region=0,
                n_pages=n_pages,
                page_bytes=4096,
                doors={},
            ),
        )
        core: PrefillCore | DecodeCore
        if role is Role.PREFILL:
            core = PrefillCore(
                limits,
                pool,
                PrefillOptions(
                    fingerprint="f",
                    chunk_tokens=shape.chunk_tokens,
                    enable_prefix_caching=shape.caching,
                ),
            )
        else:
            core = self._decode_core(hello, pool)
        worker = self.workers[instance] = Worker(hello, core, pool, device)
        self._introduce(worker)
        return worker

    def _decode_core(self, hello: Hello, pool: PagePool) -> DecodeCore:
        assert hello.limits is not None
        return DecodeCore(
            hello.limits,
            pool,
            DecodeOptions(
                fingerprint="f",
                chunk_tokens=self.shape.chunk_tokens,
                enable_prefix_caching=self.shape.caching,
            ),
        )

    def _introduce(self, worker: Worker) -> None:
        gateway = Hello(
            protocol=PROTOCOL,
            peer=Peer(
                instance=self.gateway_id, role=Role.GATEWAY, host=HostId("h"), endpoints=("g",)
            ),
            model=None,
            limits=None,
            pool=None,
        )
        worker.known.add(self.gateway_id)
        self.at(0.001, lambda: self._step(worker, [PeerUp(gateway)]))
        self.at(0.001, lambda: self._step_gateway([PeerUp(worker.hello)]))

    def kill(self, worker: Worker) -> None:
        """As kill -9: its memory stays readable, nothing of it is heard again."""
        worker.alive = False
        self.at(0.02, lambda: self._step_gateway([PeerDown(worker.instance)]))

    def living(self, role: Role) -> list[Worker]:
        return [w for w in self.workers.values() if w.alive and w.hello.peer.role is role]

    def submit(self, generate: Generate) -> None:
        hashes = page_hashes(generate.prompt, self.shape.page_tokens, fingerprint="f", salt="")
        self._step_gateway([Submit(replace(generate, hashes=hashes))])

    def quit(self, request: RequestId) -> None:
        self._step_gateway([Quit(request)])

    # --- steps and their actions -------------------------------------------------------------

    def _step(self, worker: Worker, events: list) -> None:
        if not worker.alive:
            return
        decision = worker.core.step(self.now, events)
        worker.core.check()
        worker.wake_at = decision.wake_at
        for action in decision.actions:
            self._act(worker, action)

    def _act(self, worker: Worker, action: Action) -> None:
        match action:
            case Send(peer, message):
                self._send(worker.instance, peer, message)
            case Connect(peer):
                self._connect(worker, peer)
            case Launch(step, plan):
                self.rows += plan.n_rows
                seconds = self.random.uniform(0.001, 0.01)

                def done() -> None:
                    if worker.alive:
                        self._step(worker, [StepDone(step, worker.device.run(plan))])

                self.at(seconds, done)
            case Pull():
                self._pull(worker, action)
            case Cancel() | Note():
                pass

    def _connect(self, worker: Worker, peer: Peer) -> None:
        other = self.workers.get(peer.instance)
        if other is None or peer.instance in worker.known:
            return

        def meet() -> None:
            if other.alive and worker.alive:
                worker.known.add(other.instance)
                other.known.add(worker.instance)
                self._step(other, [PeerUp(worker.hello)])
                self._step(worker, [PeerUp(other.hello)])

        self.at(0.002, meet)

    def _pull(self, worker: Worker, pull: Pull) -> None:
        owner = self.workers[pull.remote.owner].device
        copied: dict[PageId, np.ndarray] = {}

        def copy() -> None:
            for ref, local in pull.copies:
                copied[local] = owner.slots[ref.page].copy()

        def check() -> None:
            ok = all(int(owner.generations[r.page]) == r.generation for r, _ in pull.copies)
            for local, content in copied.items():
                worker.device.slots[local] = content
            self.pulled_pages += len(copied) if ok else 0
            self._step(worker, [TicketFinal(pull.ticket, ok)])

        first, second = sorted(self.random.uniform(0.0005, 0.01) for _ in range(2))
        self.at(first, copy)
        self.at(second, check)

    def _send(self, sender: InstanceId, to: InstanceId, message: AnyMessage) -> None:
        if self.lossy and self.random.random() < self.shape.drop:
            return
        link = (sender, to)
        arrival = max(
            self.now + self.random.uniform(0.0001, 0.005), self._last_arrival.get(link, 0.0)
        )
        self._last_arrival[link] = arrival
        self.at(arrival - self.now, lambda: self._arrive(sender, to, message))

    def _arrive(self, sender: InstanceId, to: InstanceId, message: AnyMessage) -> None:
        if to == self.gateway_id:
            self._step_gateway([Received(sender, message)])
            return
        worker = self.workers[to]
        if isinstance(message, PeerLost):
            worker.known.discard(message.instance)
            self._step(worker, [PeerDown(message.instance)])
        elif sender in worker.known:
            self._step(worker, [Received(sender, message)])

    def _step_gateway(self, events: list) -> None:
        decision = self.gateway.step(self.now, events)
        self._gateway_wake = decision.wake_at
        for action in decision.actions:
            self._act_gateway(action)

    def _act_gateway(self, action: GatewayAction) -> None:
        match action:
            case Send(peer, message):
                if peer in self.workers:
                    self._send(self.gateway_id, peer, message)
            case Delta():
                answer = self.answers.setdefault((action.request, action.sample), [])
                assert action.index == len(answer), f"{action}: {len(answer)} had"
                answer.extend(action.tokens)
                if action.cached_tokens is not None:
                    self.cached.setdefault(action.request, action.cached_tokens)
            case Rejected(request, error):
                self.errors[request] = error
            case Note(_, _, "finished", fields):
                self.finished.add(RequestId(str(fields["request"])))
            case _:
                pass

    # --- the laws ----------------------------------------------------------------------------

    def check_idle(self) -> None:
        """With nothing in flight, every living pool holds no page (law 1)."""
        for worker in self.workers.values():
            if worker.alive:
                worker.core.check()
                held = worker.pool.n_held
                assert held == 0, f"{worker.instance} holds {held} pages at idle"
                assert worker.core.idle, f"{worker.instance} is not idle"


def generate(name: str, prompt: list[int], max_tokens: int, n: int = 1) -> Generate:
    """A request with defaults."""
    params = SamplingParams(max_tokens=max_tokens, seed=0, temperature=0.0)
    return Generate(request=RequestId(name), prompt=tuple(prompt), n=n, params=params)
