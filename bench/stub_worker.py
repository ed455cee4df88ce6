"""Decode workers that compute nothing: what a gateway costs, with nothing behind it that is slow.

Started by `bench.gateway`, which writes a Plan (JSON) on its stdin. Real control sockets and
messages: a worker takes whatever it is sent, and every step gives each of its streams one token,
all in one message. No two workers step equally often, so that their steps meet in every way there
is. It notes when each token was sent, and by which gateway its request came. Must not import what
is no part of the protocol.
"""

import select
import signal
import sys
import tempfile
import time
import uuid
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from types import FrameType

import msgspec
import numpy as np

from common.config import ServeConfig
from common.engine.events import PeerDown, Received
from common.engine.identity import wanted
from common.engine.links import Links
from common.ids import InstanceId, Role, TransferId
from common.messages import (
    PROTOCOL,
    Accepted,
    End,
    Expect,
    Heartbeat,
    Hello,
    Limits,
    Listed,
    ModelIdentity,
    Peer,
    Phase,
    RegionKey,
    Snapshot,
    TokenRun,
    Tokens,
)
from common.model.description import read_spec
from common.model.fingerprint import fingerprint
from common.params import FinishReason
from common.rundir import host_id
from common.wire import Mailbox

FIRST_PROMPT = 1000  # stream n's prompt is this token and n
SPREAD = 0.017  # a worker's step takes so much longer than that of the one before it
BEAT_S = 0.25
SNAPSHOT_S = 0.05
_TOKENS = range(1000, 30_000)
_POOL = {"n_pages": 1_000_000}


class Plan(msgspec.Struct, frozen=True):
    """What is played."""

    join: str
    model: str  # a path
    name: str  # as the server serves it
    n_workers: int
    n_streams: int
    step_s: float
    notes: str  # a file: `sent_ns` [streams, tokens] int64, `gateway` [streams] int64
    n_tokens: int  # of a stream


@dataclass(slots=True)
class _Job:
    expect: Expect
    stream: int
    gateway: InstanceId
    n_sent: int = 0


@dataclass(eq=False)
class Notes:
    """When what was sent, by the clock that all processes of a host share; -1: it was not."""

    sent_ns: np.ndarray
    gateway: np.ndarray  # number, by the order in which they were first heard of
    numbers: dict[InstanceId, int] = field(default_factory=dict[InstanceId, int])

    def began(self, stream: int, gateway: InstanceId) -> None:
        self.gateway[stream] = self.numbers.setdefault(gateway, len(self.numbers))


class Worker:
    """One of them. Its calls come from one thread."""

    def __init__(self, number: int, plan: Plan, identity: ModelIdentity, run_dir: Path) -> None:
        instance = InstanceId(uuid.uuid4().hex)
        self._plan = plan
        self._mailbox = Mailbox(instance, Role.DECODE, run_dir=run_dir)
        self._links = Links(self._mailbox, _hello(instance, self._mailbox, identity))
        self._links.join(plan.join, time.monotonic())
        self._jobs: dict[TransferId, _Job] = {}
        self._sequence: dict[InstanceId, count[int]] = {}
        self._draws = np.random.default_rng(number).choice(_TOKENS, 4096).tolist()
        self._step_s = plan.step_s * (1 + SPREAD * number)
        self._due = [time.monotonic() + plan.step_s * number / plan.n_workers, 0.0, 0.0]
        self.fd = self._mailbox.fd

    @property
    def wake_at(self) -> float:
        return min(self._due)

    def turn(self, now: float, notes: Notes) -> None:
        """Hear, and send what is due."""
        heard = True
        while heard:
            heard = self._links.hear(now)
            for event in heard:
                match event:
                    case Received(sender, message):
                        self._take(sender, message, now, notes)
                    case PeerDown(instance):
                        self._jobs = {
                            t: job for t, job in self._jobs.items() if job.gateway != instance
                        }
                    case _:
                        pass
        step, beat, snapshot = self._due
        if now >= step:
            self._due[0] = max(step + self._step_s, now)
            self._step(now, notes)
        if now >= beat:
            self._due[1] = now + BEAT_S
            for gateway in self._links.gateways:
                lines = tuple(
                    Listed(transfer, job.expect.attempt, Phase.ACCEPTED)
                    for transfer, job in self._jobs.items()
                    if job.gateway == gateway
                )
                self._links.send(gateway, Heartbeat(transfers=lines), now)
        if now >= snapshot:
            self._due[2] = now + SNAPSHOT_S
            for gateway in self._links.gateways:
                self._links.send(gateway, self._snapshot(gateway), now)

    def close(self) -> None:
        self._links.leave()
        self._mailbox.close()

    def _take(self, sender: InstanceId, message: object, now: float, notes: Notes) -> None:
        match message:
            case Expect(transfer=transfer, attempt=attempt, prompt=(_, stream)):
                notes.began(stream, sender)
                self._jobs[transfer] = _Job(message, stream, sender)
                self._links.send(sender, Accepted(transfer=transfer, attempt=attempt), now)
            case End(transfer=transfer):
                self._jobs.pop(transfer, None)
            case _:
                pass

    def _step(self, now: float, notes: Notes) -> None:
        runs: dict[InstanceId, list[TokenRun]] = {}
        streams: list[tuple[int, int]] = []
        for transfer, job in self._jobs.items():
            n, last = job.n_sent, self._plan.n_tokens - 1
            if n > last:
                continue  # until the gateway has ended it
            token = self._draws[(n + 61 * job.stream) % len(self._draws)]
            runs.setdefault(job.gateway, []).append(
                TokenRun(
                    transfer,
                    job.expect.attempt,
                    0,
                    n,
                    (token,),
                    FinishReason.LENGTH if n == last else None,
                    cached_tokens=0 if n == 0 else None,
                )
            )
            streams.append((job.stream, n))
            job.n_sent += 1
        sent_ns = time.perf_counter_ns()
        for gateway, those in runs.items():
            self._links.send(gateway, Tokens(runs=tuple(those)), now)
        for at in streams:
            notes.sent_ns[at] = sent_ns

    def _snapshot(self, gateway: InstanceId) -> Snapshot:
        numbers = self._sequence.setdefault(gateway, count(1))
        sequence = next(numbers)
        return Snapshot(
            sequence=sequence,
            whole=sequence == 1,
            n_pages=_POOL["n_pages"],
            free_pages=_POOL["n_pages"] - len(self._jobs),
            cached_pages=0,
            running=len(self._jobs),
            waiting=0,
            queued_tokens=0,
            step_s=self._step_s,
            tokens_per_s=10_000.0,
        )


def _hello(instance: InstanceId, mailbox: Mailbox, identity: ModelIdentity) -> Hello:
    host = host_id()
    return Hello(
        protocol=PROTOCOL,
        peer=Peer(instance=instance, role=Role.DECODE, host=host, endpoints=mailbox.endpoints),
        model=identity,
        limits=Limits(
            page_tokens=16,
            max_model_len=8192,
            max_num_seqs=1024,
            max_num_batched_tokens=1024,
            max_waiting=4096,
            **_POOL,
        ),
        pool=RegionKey(owner=instance, host=host, region=0, page_bytes=4096, doors={}, **_POOL),
    )


def main() -> int:
    """Until SIGTERM: then what was noted is written."""
    plan = msgspec.json.decode(sys.stdin.buffer.readline(), type=Plan)
    stopped: list[int] = []

    def stop(number: int, _frame: FrameType | None) -> None:
        stopped.append(number)

    signal.signal(signal.SIGTERM, stop)
    path = Path(plan.model)
    config = ServeConfig(model=plan.model, served_model_name=plan.name)
    identity = wanted(config, read_spec(path), fingerprint(path))
    notes = Notes(
        np.full((plan.n_streams, plan.n_tokens), -1, np.int64),
        np.full(plan.n_streams, -1, np.int64),
    )
    with tempfile.TemporaryDirectory(prefix="bs-") as run_dir:
        workers = [Worker(n, plan, identity, Path(run_dir)) for n in range(plan.n_workers)]
        fds = [worker.fd for worker in workers]
        while not stopped:
            now = time.monotonic()
            for worker in workers:
                worker.turn(now, notes)
            wait_s = min(worker.wake_at for worker in workers) - time.monotonic()
            select.select(fds, [], [], max(0.0, wait_s))
        for worker in workers:
            worker.close()
    with Path(plan.notes).open("wb") as file:
        np.savez(file, sent_ns=notes.sent_ns, gateway=notes.gateway)
    return 0


if __name__ == "__main__":
    sys.exit(main())
