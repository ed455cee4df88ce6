"""A decode worker's real process, alone: it computes prompts itself, for a gateway that is us."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from common.config import ServeConfig, WorkerConfig, resolve_worker
from common.engine.events import PeerUp, Received
from common.engine.links import Links
from common.ids import InstanceId, Role, TransferId
from common.messages import (
    PROTOCOL,
    Ack,
    AnyMessage,
    End,
    Expect,
    FinishReason,
    Heartbeat,
    Hello,
    Listed,
    Metrics,
    ModelIdentity,
    Peer,
    Phase,
    Refused,
    Resume,
    SamplingParams,
    Snapshot,
    Tokens,
    TokensAck,
)
from common.rundir import host_id
from common.wire import Mailbox

ROOT = Path(__file__).parents[2]
G = InstanceId("9" * 32)
N_OUT = 24

STARTER = """
import os, subprocess, sys
worker = subprocess.Popen(
    [sys.executable, "-P", "-m", "decode.worker", "--config-fd", sys.argv[1],
     "--parent", str(os.getpid())],
    pass_fds=[int(sys.argv[1])],
)
print(worker.pid, flush=True)
worker.wait()
"""


class Gateway:
    """Collects what the worker sends; acknowledges tokens, and lists what is in progress."""

    def __init__(self, run_dir: Path, reference: ModelIdentity | None = None) -> None:
        self.mailbox = Mailbox(G, Role.GATEWAY, run_dir=run_dir, listen="127.0.0.1:0")
        peer = Peer(instance=G, role=Role.GATEWAY, host=host_id(), endpoints=self.mailbox.endpoints)
        hello = Hello(protocol=PROTOCOL, peer=peer, model=None, limits=None, pool=None)
        self.links = Links(self.mailbox, hello, reference=reference)
        self.worker: Hello | None = None
        self.live: set[TransferId] = set()
        self.tokens: dict[str, list[int]] = {}
        self.finished: dict[str, FinishReason] = {}
        self.refused: list[Refused] = []
        self.last: dict[type[AnyMessage], AnyMessage] = {}
        self._beat_at = 0.0

    def send(self, message: AnyMessage) -> None:
        assert self.worker is not None
        if isinstance(message, Expect):
            self.live.add(message.transfer)
        elif isinstance(message, End):
            self.live.discard(message.transfer)
        assert self.links.send(self.worker.peer.instance, message, time.monotonic())

    def until(self, done: Callable[[], bool], within_s: float = 120.0) -> None:
        deadline = time.monotonic() + within_s
        while not done():
            now = time.monotonic()
            assert now < deadline, (self.tokens, self.last)
            for event in self.links.hear(now):
                if isinstance(event, PeerUp):
                    self.worker = event.hello
                elif isinstance(event, Received):
                    self._take(event.message)
            if self.worker is not None and now >= self._beat_at:
                self._beat_at = now + 0.5
                listed = tuple(
                    Listed(name, 0, Phase.WAITING, ((0, len(self.tokens.get(name, ()))),))
                    for name in self.live
                )
                beat = Heartbeat(transfers=listed, credit_tokens=10_000)
                self.links.send(self.worker.peer.instance, beat, now)
            time.sleep(0.002)

    def _take(self, message: AnyMessage) -> None:
        self.last[type(message)] = message
        if isinstance(message, Refused):
            self.refused.append(message)
        if not isinstance(message, Tokens):
            return
        for run in message.runs:
            outputs = self.tokens.setdefault(run.transfer, [])
            assert run.index <= len(outputs)
            outputs += run.tokens[len(outputs) - run.index :]
            if run.finish is not None:
                self.finished[run.transfer] = run.finish
            ack = Ack(run.transfer, run.attempt, run.sample, len(outputs))
            self.send(TokensAck(acks=(ack,)))

    def free_pages(self) -> int | None:
        snapshot = self.last.get(Snapshot)
        return snapshot.free_pages if isinstance(snapshot, Snapshot) else None


def configured(model: Path, run_dir: Path, join: str, **options: int | str) -> WorkerConfig:
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
    return resolve_worker(config, Role.DECODE, index=0, name="decode-0", join=join, threads=1)


def config_pipe(config: WorkerConfig) -> int:
    reader, writer = os.pipe()
    os.write(writer, msgspec.json.encode(config))
    os.close(writer)
    return reader


@contextmanager
def started(config: WorkerConfig) -> Iterator["subprocess.Popen[str]"]:
    """A worker's process, killed in the end if it still lives."""
    reader = config_pipe(config)
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "decode.worker", "--config-fd", str(reader)],
        cwd="/",
        pass_fds=[reader],
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(reader)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Gateway]:
    gateway = Gateway(tmp_path / "r")
    yield gateway
    gateway.mailbox.close()


def expect(name: str, prompt: list[int]) -> Expect:
    return Expect(
        transfer=TransferId(name),
        attempt=0,
        prompt=tuple(prompt),
        samples=(Resume(0),),
        params=SamplingParams(max_tokens=N_OUT, seed=1, temperature=0.0),
        prefill=None,
    )


def check_greedy(model: Path, prompts: dict[str, list[int]], outputs: dict[str, list[int]]) -> None:
    """Each token is the oracle's choice after those before it, up to ties of 1e-3 in logit."""
    import torch
    from transformers import AutoModelForCausalLM

    oracle = AutoModelForCausalLM.from_pretrained(
        model.parent, gguf_file=model.name, dtype=torch.float32
    )
    for name, prompt in prompts.items():
        ids = torch.tensor([prompt + outputs[name]])
        with torch.inference_mode():
            logits = oracle(ids, attention_mask=torch.ones_like(ids)).logits[0].float()
        for at, token in enumerate(outputs[name], start=len(prompt) - 1):
            assert logits[at, token] >= logits[at].max() - 1e-3, (name, at)


@pytest.mark.slow
def test_it_answers_as_the_oracle_does_and_leaves_nothing(
    default_model: Path, gateway: Gateway, tmp_path: Path
) -> None:
    prompts = {
        "one token": [504],
        "one page": list(range(500, 516)),
        "chunks": [(7 * n * n + 11) % 40_000 + 100 for n in range(200)],
    }
    config = configured(default_model, tmp_path / "r", gateway.mailbox.endpoints[0])
    with started(config) as worker:
        gateway.until(lambda: gateway.worker is not None)
        for name, prompt in prompts.items():
            gateway.send(expect(name, prompt))
        gateway.until(lambda: gateway.finished.keys() == prompts.keys())
        assert set(gateway.finished.values()) == {FinishReason.LENGTH}
        for name in prompts:
            assert len(gateway.tokens[name]) == N_OUT
            gateway.send(End(transfer=TransferId(name), attempt=0))
        assert gateway.worker is not None and gateway.worker.limits is not None
        n_pages = gateway.worker.limits.n_pages
        gateway.until(lambda: gateway.free_pages() == n_pages)
        gateway.last.pop(Metrics, None)
        gateway.until(lambda: Metrics in gateway.last)
        metrics = gateway.last[Metrics]
        assert isinstance(metrics, Metrics)
        assert dict(metrics.values)["engine_step_tokens_total"] >= 217 + 3 * (N_OUT - 1)
        worker.send_signal(signal.SIGTERM)
        _, text = worker.communicate(timeout=30)
    assert worker.returncode == 0, text
    assert "event=memory model=tiny dtype=float32" in text
    assert f"kv_tokens={n_pages * 16} " in text
    assert "event=drained" in text
    gateway.mailbox.close()
    left = [f.name for f in (tmp_path / "r").iterdir() if not f.name.startswith("weights-")]
    assert left == []
    check_greedy(default_model, prompts, gateway.tokens)


@pytest.mark.slow
def test_it_dies_with_who_started_it(default_model: Path, gateway: Gateway, tmp_path: Path) -> None:
    reader = config_pipe(configured(default_model, tmp_path / "r", gateway.mailbox.endpoints[1]))
    starter = subprocess.Popen(
        [sys.executable, "-P", "-c", STARTER, str(reader)],
        pass_fds=[reader],
        stdout=subprocess.PIPE,
        text=True,
    )
    os.close(reader)
    assert starter.stdout is not None
    worker = int(starter.stdout.readline())
    gateway.until(lambda: gateway.worker is not None)
    starter.kill()
    starter.communicate()
    gateway.until(lambda: is_gone(worker), within_s=10)


def is_gone(process: int) -> bool:
    """Ended, reaped or not."""
    try:
        stat = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return True
    return stat.rpartition(")")[2].split()[0] in "ZX"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "numbers"),
    [
        ({"kv_cache_memory_bytes": 2**20}, ("1048576 holds 16 tokens", "--max-model-len 512")),
        ({"max_model_len": 9000}, ("--max-model-len 9000", "8192")),
    ],
)
def test_what_does_not_fit_is_said_with_both_numbers(
    default_model: Path, tmp_path: Path, options: dict[str, int], numbers: tuple[str, str]
) -> None:
    config = configured(default_model, tmp_path / "r", "ipc:///nowhere", **options)
    with started(config) as worker:
        _, text = worker.communicate(timeout=60)
    assert worker.returncode == 2
    assert all(number in text for number in numbers), text


@pytest.mark.slow
def test_a_gateway_that_serves_another_model_refuses_it(
    default_model: Path, tmp_path: Path
) -> None:
    other = ModelIdentity(
        name="tiny", fingerprint="other", kv_dtype="", page_layout="", kernel_path=""
    )
    gateway = Gateway(tmp_path / "r", reference=other)
    config = configured(default_model, tmp_path / "r", gateway.mailbox.endpoints[0])
    with started(config) as worker:
        gateway.until(lambda: worker.poll() is not None)
        _, text = worker.communicate(timeout=60)
    gateway.mailbox.close()
    assert worker.returncode == 2
    assert "model fingerprint differs" in text and "theirs is other" in text
