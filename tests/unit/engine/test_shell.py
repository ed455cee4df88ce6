"""The worker's loop around a tiny core: real sockets, real threads, a real transport."""

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from common.engine.device_thread import DeviceThread
from common.engine.events import (
    Action,
    Decision,
    Drain,
    Event,
    Launch,
    Note,
    PeerDown,
    PeerUp,
    Pull,
    Received,
    Send,
    StepDone,
    StepFailed,
    TicketFinal,
)
from common.engine.journal import Journal
from common.engine.links import Links
from common.engine.plan import PassPlan, PassResult
from common.engine.shell import EXIT_DRAINED, EXIT_STOPPED, Shell
from common.engine.wakeup import Wakeup
from common.errors import InvariantBroken
from common.ids import InstanceId, PageId, Role, StepId, TicketId, TransferId
from common.log import RequestLog
from common.messages import (
    PROTOCOL,
    Accepted,
    AnyMessage,
    End,
    Gone,
    Heartbeat,
    Hello,
    Limits,
    Metrics,
    ModelIdentity,
    PageRef,
    Peer,
    Refused,
)
from common.rundir import host_id
from common.wire import Mailbox
from transfer.memory import SharedPages
from transfer.open import open_transport
from transfer.pulls import Pulls

G, D = InstanceId("g" * 32), InstanceId("d" * 32)
T = TransferId("t")
END = End(transfer=T, attempt=0)
PULL = Gone(transfer=T, attempt=0)
MODEL = ModelIdentity(name="m", fingerprint="f", kv_dtype="float32", page_layout="", kernel_path="")
LIMITS = Limits(
    n_pages=4,
    page_tokens=1,
    max_model_len=4,
    max_num_seqs=1,
    max_num_batched_tokens=3,
    max_waiting=1,
)
PLAN = PassPlan(
    tokens_T=np.zeros(3, np.int64),
    positions_T=np.arange(3),
    slots_T=np.arange(3),
    start_B1=np.array([0, 3], np.int32),
    len_B=np.array([3], np.int32),
    tables_BM=np.zeros((1, 1), np.int32),
)
BEAT = Heartbeat(transfers=())


class TinyCore:
    """A pass for an End, a pull for a Gone, an answer for each, and a heartbeat on a timer."""

    def __init__(self) -> None:
        self.pool = None
        self.idle = True
        self.stale_messages = 0
        self.beat_at: float | None = None
        self.gateway = G
        self.seen: list[Event] = []

    def step(self, now: float, events: Sequence[Event]) -> Decision:
        self.seen += events
        actions: list[Action] = [a for event in events for a in self._take(event)]
        if self.beat_at is None or now >= self.beat_at:
            actions.append(Send(self.gateway, BEAT))
            self.beat_at = now + 0.02
        return Decision(tuple(actions), self.beat_at)

    def _take(self, event: Event) -> list[Action]:
        match event:
            case PeerUp(hello) if hello.pool is not None:
                self.pool = hello.pool
            case Received(_, End()):
                self.idle = False
                return [Launch(StepId(1), PLAN), Note(T, 0, "queued", {"prompt_tokens": 3})]
            case Received(_, Gone()):
                assert self.pool is not None
                refs = ((PageRef(PageId(1), 0), PageId(2)),)
                return [Pull(TicketId(9), self.pool.owner, self.pool, refs)]
            case StepDone() | TicketFinal():
                self.idle = True
                return [Send(self.gateway, Accepted(transfer=T, attempt=0))]
            case StepFailed(_, detail):
                self.idle = True
                return [Send(self.gateway, refused(detail))]
            case _:
                pass
        return []


def refused(reason: str) -> Refused:
    return Refused(transfer=T, attempt=0, reason=reason, retry_after_s=None)


class Worker:
    """A shell in a thread of its own, as it is a process's main thread elsewhere."""

    def __init__(
        self, run_dir: Path, run: Callable[[PassPlan], PassResult], drain_s: float
    ) -> None:
        self.core = TinyCore()
        self.log = run_dir / "requests.jsonl"
        self.memory = SharedPages(4, 4096)
        self.wakeup = Wakeup()
        self.outcome: int | BaseException | None = None
        self._args = (run_dir, run, drain_s)
        self._ready = threading.Event()
        self.thread = threading.Thread(target=self._live)
        self.thread.start()
        assert self._ready.wait(20)

    def _live(self) -> None:
        run_dir, run, drain_s = self._args
        wakeup = self.wakeup
        transport = open_transport(
            "shm",
            instance=D,
            host=host_id(),
            run_dir=run_dir,
            listen_host="127.0.0.1",
            wake=wakeup.ring,
        )
        pulls = Pulls(transport, self.memory)
        mailbox = Mailbox(D, Role.DECODE, run_dir=run_dir)
        self.peer = Peer(instance=D, role=Role.DECODE, host=host_id(), endpoints=mailbox.endpoints)
        hello = Hello(protocol=PROTOCOL, peer=self.peer, model=MODEL, limits=LIMITS, pool=pulls.key)
        device = DeviceThread(run, wakeup.ring)
        self.shell = Shell(
            core=self.core,
            mailbox=mailbox,
            links=Links(mailbox, hello),
            device=device,
            pulls=pulls,
            wakeup=wakeup,
            journal=Journal(RequestLog(str(self.log), D, Role.DECODE)),
            drain_s=drain_s,
        )
        self._ready.set()
        try:
            self.outcome = self.shell.run()
        except InvariantBroken as error:
            self.outcome = error
        pulls.close()
        mailbox.close(linger_ms=500)
        assert device.close(10)
        self.memory.close()

    def ended(self) -> int | BaseException | None:
        self.thread.join(20)
        assert not self.thread.is_alive()
        return self.outcome


class Gateway:
    """The other end, in the test's own thread."""

    def __init__(self, run_dir: Path) -> None:
        self.mailbox = Mailbox(G, Role.GATEWAY, run_dir=run_dir)
        peer = Peer(instance=G, role=Role.GATEWAY, host=host_id(), endpoints=self.mailbox.endpoints)
        self.hello = Hello(protocol=PROTOCOL, peer=peer, model=None, limits=None, pool=None)
        self.links = Links(self.mailbox, self.hello)
        self.events: list[Event] = []

    def until(self, done: Callable[[], bool], within_s: float = 20.0) -> None:
        deadline = time.monotonic() + within_s
        while not done():
            assert time.monotonic() < deadline, self.events
            self.events += self.links.hear(time.monotonic())
            time.sleep(0.001)

    def heard(self, message: AnyMessage) -> Callable[[], bool]:
        return lambda: Received(D, message) in self.events

    def meet(self, worker: Worker) -> None:
        self.links.dial(worker.peer, time.monotonic())
        self.until(lambda: any(isinstance(event, PeerUp) for event in self.events))
        self.events.clear()

    def send(self, message: AnyMessage) -> None:
        assert self.links.send(D, message, time.monotonic())

    def metrics(self) -> dict[str, float]:
        """The last that came."""
        told = [
            event.message
            for event in self.events
            if isinstance(event, Received) and isinstance(event.message, Metrics)
        ]
        return dict(told[-1].values) if told else {}


def computed(_: PassPlan) -> PassResult:
    return PassResult(seconds=0.25)


Start = Callable[..., tuple[Worker, Gateway]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    made: list[tuple[Worker, Gateway]] = []

    def start_pair(
        run: Callable[[PassPlan], PassResult] = computed, drain_s: float = 20.0
    ) -> tuple[Worker, Gateway]:
        (tmp_path / "r").mkdir(mode=0o700)
        worker = Worker(tmp_path / "r", run, drain_s)
        gateway = Gateway(tmp_path / "r")
        made.append((worker, gateway))
        gateway.meet(worker)
        return worker, gateway

    yield start_pair
    for worker, gateway in made:
        worker.shell.stop(at_once=True)
        worker.ended()
        worker.wakeup.close()
        gateway.mailbox.close()
        assert [f.name for f in (tmp_path / "r").iterdir()] == ["requests.jsonl"]


def test_a_message_becomes_a_pass_and_an_answer(start: Start) -> None:
    worker, gateway = start()
    gateway.send(END)
    gateway.until(gateway.heard(Accepted(transfer=T, attempt=0)))
    assert StepDone(StepId(1), PassResult(seconds=0.25)) in worker.core.seen
    [entry] = [json.loads(text) for text in worker.log.read_text().splitlines()]
    assert (entry["event"], entry["transfer"], entry["role"]) == ("queued", "t", "decode")
    gateway.until(lambda: gateway.metrics().get("engine_steps_total") == 1)
    metrics = gateway.metrics()
    assert metrics["engine_step_seconds_total"] == 0.25
    assert metrics["engine_step_tokens_total"] == 3
    assert metrics["prefix_cache_queries_total"] == 3
    assert metrics["control_messages_received_total"] >= 1


def test_a_pull_ends_at_the_core(start: Start, tmp_path: Path) -> None:
    worker, gateway = start()
    memory = SharedPages(4, 4096)
    memory.pages[1] = 5
    owner = InstanceId("o" * 32)
    transport = open_transport(
        "shm",
        instance=owner,
        host=host_id(),
        run_dir=tmp_path / "r",
        listen_host="127.0.0.1",
        wake=lambda: None,
    )
    worker.core.pool = transport.register(memory)  # type: ignore[assignment]
    gateway.send(PULL)
    gateway.until(gateway.heard(Accepted(transfer=T, attempt=0)))
    assert TicketFinal(TicketId(9), ok=True) in worker.core.seen
    assert (worker.memory.pages[2] == 5).all()
    transport.close()
    memory.close()


def test_the_loop_goes_on_while_a_pass_computes(start: Start) -> None:
    release = threading.Event()

    def slow(_: PassPlan) -> PassResult:
        assert release.wait(20)
        return PassResult()

    _, gateway = start(slow)
    gateway.send(END)
    gateway.until(lambda: gateway.events.count(Received(D, BEAT)) >= 5)
    assert not gateway.heard(Accepted(transfer=T, attempt=0))()
    release.set()
    gateway.until(gateway.heard(Accepted(transfer=T, attempt=0)))


def test_a_pass_that_raises_fails_its_step_alone(start: Start) -> None:
    def broken(_: PassPlan) -> PassResult:
        raise ValueError("no such row")

    _, gateway = start(broken)
    gateway.send(END)
    gateway.until(gateway.heard(refused("ValueError: no such row")))
    gateway.events.clear()
    gateway.until(lambda: gateway.metrics().get("engine_step_failures_total") == 1)


def test_a_broken_law_ends_the_process(start: Start) -> None:
    def broken(_: PassPlan) -> PassResult:
        raise InvariantBroken("law 1")

    worker, gateway = start(broken)
    gateway.send(END)
    assert isinstance(worker.ended(), InvariantBroken)


def test_stopped_it_finishes_what_is_there_and_says_goodbye(start: Start) -> None:
    release = threading.Event()

    def slow(_: PassPlan) -> PassResult:
        assert release.wait(20)
        return PassResult()

    worker, gateway = start(slow)
    gateway.send(END)
    gateway.until(lambda: not worker.core.idle)
    worker.shell.stop()
    gateway.until(lambda: Drain() in worker.core.seen)
    assert worker.thread.is_alive()
    release.set()
    assert worker.ended() == EXIT_DRAINED
    gateway.until(lambda: PeerDown(D) in gateway.events)
    assert gateway.heard(Accepted(transfer=T, attempt=0))()


@pytest.mark.parametrize("again", [True, False])
def test_told_twice_or_after_its_time_it_leaves_at_once(start: Start, *, again: bool) -> None:
    release = threading.Event()

    def slow(_: PassPlan) -> PassResult:
        assert release.wait(20)
        return PassResult()

    worker, gateway = start(slow, drain_s=20.0 if again else 0.1)
    gateway.send(END)
    gateway.until(lambda: not worker.core.idle)
    worker.shell.stop()
    if again:
        worker.shell.stop()
    gateway.until(lambda: worker.outcome is not None)
    assert worker.outcome == (EXIT_STOPPED if again else EXIT_DRAINED)
    release.set()


def test_the_next_pass_may_wait_for_one_and_a_third_is_a_bug() -> None:
    release = threading.Event()

    def slow(_: PassPlan) -> PassResult:
        assert release.wait(20)
        return PassResult()

    device = DeviceThread(slow, lambda: None)
    device.launch(StepId(1), PLAN)
    device.launch(StepId(2), PLAN)
    with pytest.raises(InvariantBroken, match="step 3 launched while 1 and 2 are unanswered"):
        device.launch(StepId(3), PLAN)
    assert not device.close(0.01)
    release.set()
    assert device.close(10)
    first, second = device.finals()
    assert [first, second] == [StepDone(StepId(n), PassResult()) for n in (1, 2)]
    assert isinstance(first, StepDone)
    assert isinstance(second, StepDone)
    assert first.ready_s < 0 < second.ready_s
