"""Real worker processes, and a gateway that a test plays, message by message."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import msgspec

from common.config import ServeConfig, WorkerConfig, resolve
from common.engine.events import PeerDown, PeerUp, Received
from common.engine.links import Links
from common.ids import InstanceId, Role, TransferId
from common.messages import (
    PROTOCOL,
    Ack,
    AnyMessage,
    End,
    Expect,
    Failed,
    Heartbeat,
    Hello,
    Listed,
    Metrics,
    ModelIdentity,
    Peer,
    Phase,
    Prefill,
    Refused,
    Resume,
    Snapshot,
    Tokens,
    TokensAck,
)
from common.params import FinishReason, SamplingParams
from common.rundir import host_id
from common.wire import Mailbox

G = InstanceId("9" * 32)
BEAT_S = 0.3


class Gateway:
    """Opens no second attempt. Acknowledges tokens, and lists what is in progress."""

    pause_s = 0.001  # between two looks at what has come

    def __init__(self, run_dir: Path, reference: ModelIdentity | None = None) -> None:
        self.mailbox = Mailbox(G, Role.GATEWAY, run_dir=run_dir, listen="127.0.0.1:0")
        peer = Peer(instance=G, role=Role.GATEWAY, host=host_id(), endpoints=self.mailbox.endpoints)
        hello = Hello(protocol=PROTOCOL, peer=peer, model=None, limits=None, pool=None)
        self.links = Links(self.mailbox, hello, reference=reference)
        self.workers: dict[Role, Hello] = {}
        self.tokens: dict[str, list[int]] = {}
        self.finished: dict[str, FinishReason] = {}
        self.complaints: list[Refused | Failed] = []
        self._live: set[tuple[Role, TransferId]] = set()
        self._last: dict[tuple[Role, type[AnyMessage]], AnyMessage] = {}
        self._beat_at = 0.0

    def send(self, role: Role, message: AnyMessage) -> None:
        if isinstance(message, Prefill | Expect):
            self._live.add((role, message.transfer))
        elif isinstance(message, End):
            self._live.discard((role, message.transfer))
        peer = self.workers[role].peer.instance
        assert self.links.send(peer, message, time.monotonic())

    def end(self, name: str) -> None:
        """At every worker that has it."""
        for role, transfer in list(self._live):
            if transfer == name:
                self.send(role, End(transfer=transfer, attempt=0))

    def until(self, done: Callable[[], bool], within_s: float = 120.0) -> None:
        deadline = time.monotonic() + within_s
        while not done():
            now = time.monotonic()
            assert now < deadline, (self.tokens, self.complaints, self._last)
            for event in self.links.hear(now):
                if isinstance(event, PeerUp):
                    self.workers[event.hello.peer.role] = event.hello
                elif isinstance(event, Received):
                    self._take(event)
                elif isinstance(event, PeerDown):
                    self.workers = {
                        role: hello
                        for role, hello in self.workers.items()
                        if hello.peer.instance != event.instance
                    }
            if now >= self._beat_at:
                self._beat_at = now + BEAT_S
                self._beat(now)
            time.sleep(self.pause_s)

    def n_pages(self, role: Role) -> int:
        limits = self.workers[role].limits
        assert limits is not None
        return limits.n_pages

    def free_pages(self, role: Role) -> int | None:
        """As last told."""
        snapshot = self._last.get((role, Snapshot))
        return snapshot.free_pages if isinstance(snapshot, Snapshot) else None

    def metrics(self, role: Role) -> dict[str, float]:
        """As last told."""
        metrics = self._last.get((role, Metrics))
        return dict(metrics.values) if isinstance(metrics, Metrics) else {}

    def forget(self) -> None:
        """Nothing has been told yet."""
        self._last.clear()

    def _beat(self, now: float) -> None:
        for role, hello in self.workers.items():
            listed = tuple(
                Listed(name, 0, Phase.WAITING, ((0, len(self.tokens.get(name, ()))),))
                for of_role, name in self._live
                if of_role is role
            )
            beat = Heartbeat(transfers=listed, credit_tokens=10_000)
            self.links.send(hello.peer.instance, beat, now)

    def _take(self, event: Received) -> None:
        message = event.message
        role = next(r for r, h in self.workers.items() if h.peer.instance == event.sender)
        self._last[role, type(message)] = message
        if isinstance(message, Refused | Failed):
            self.complaints.append(message)
        if not isinstance(message, Tokens):
            return
        for run in message.runs:
            outputs = self.tokens.setdefault(run.transfer, [])
            assert run.index <= len(outputs)
            outputs += run.tokens[len(outputs) - run.index :]
            if run.finish is not None:
                self.finished[run.transfer] = run.finish
            ack = Ack(run.transfer, run.attempt, run.sample, len(outputs))
            self.links.send(event.sender, TokensAck(acks=(ack,)), time.monotonic())


def configured(
    role: Role, model: Path, run_dir: Path, join: str, **options: float | str | None
) -> WorkerConfig:
    """The first worker of its pool, on one thread, in float32, whose pages are few."""
    config = msgspec.convert(
        {
            "model": str(model),
            "served_model_name": "tiny",
            "run_dir": str(run_dir),
            "dtype": "float32",
            "max_model_len": 512,
            "kv_cache_memory_bytes": 64 * 2**20,
            "chunk_tokens": 64,
            "shutdown_timeout": 10.0,
            **options,
        },
        ServeConfig,
    )
    return resolve(config, role, join=join, cpus=(0, 1))[0]


def config_pipe(config: WorkerConfig) -> int:
    """A descriptor to read the configuration from."""
    reader, writer = os.pipe()
    os.write(writer, msgspec.json.encode(config))
    os.close(writer)
    return reader


@contextmanager
def started(
    config: WorkerConfig, stderr: int | IO[str] = subprocess.PIPE
) -> Iterator["subprocess.Popen[str]"]:
    """A worker's process, killed in the end if it still lives. `stderr`: where its log goes."""
    reader = config_pipe(config)
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", f"{config.role}.worker", "--config-fd", str(reader)],
        cwd="/",
        pass_fds=[reader],
        stderr=stderr,
        text=True,
    )
    os.close(reader)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def greedy(max_tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, seed=1, temperature=0.0)


def expect(name: str, prompt: list[int], max_tokens: int, prefill: Peer | None = None) -> Expect:
    return Expect(
        transfer=TransferId(name),
        attempt=0,
        prompt=tuple(prompt),
        samples=(Resume(0),),
        params=greedy(max_tokens),
        prefill=prefill,
    )


def prefill(name: str, prompt: list[int], max_tokens: int, decode: InstanceId) -> Prefill:
    return Prefill(
        transfer=TransferId(name),
        attempt=0,
        prompt=tuple(prompt),
        samples=(Resume(0),),
        params=greedy(max_tokens),
        decode=decode,
    )
