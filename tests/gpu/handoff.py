"""How long the second token waits for its pages, and how much of a decode worker's time is steps: a
prefill and a decode worker of Llama-3-8B's shape on one GPU, asked as a gateway asks them."""

import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import torch

from common.engine.events import Received
from common.messages import Tokens
from common.model.spec import ModelSpec
from tests.gpu.model_file import file_bytes, write_model
from tests.gpu.rows import Row, each, emit, say
from tests.gpu.steps import LLAMA_3_8B, MORE_CONTEXT
from tests.gpu.worker_logs import say_logs, say_memory
from tests.system.pairs import ask, workers
from tests.system.workers import Gateway

N_ASKED, PROMPT_TOKENS, N_OUT = 14, 4096, 24
N_WARM = 2  # of those asked: whatever is made ready at the first
N_TOGETHER, TOGETHER_TOKENS, TOGETHER_OUT = 64, 2048, 700
LEAST_STEPS = 3  # together
LOG = "requests.jsonl"


class TimedGateway(Gateway):
    """And when each token came."""

    pause_s = 0.0

    def __init__(self, run_dir: Path) -> None:
        super().__init__(run_dir)
        self.at_s: dict[str, list[float]] = {}

    def _take(self, event: Received) -> None:
        super()._take(event)
        if isinstance(event.message, Tokens):
            now = time.perf_counter()
            for run in event.message.runs:
                at_s = self.at_s.setdefault(run.transfer, [])
                at_s += [now] * (len(self.tokens[run.transfer]) - len(at_s))

    def answer(self, prompts: Mapping[str, list[int]], n_out: int) -> None:
        """All of them at once, to their ends."""
        ask(self, prompts, n_out)
        self.until(lambda: self.complaints != [] or prompts.keys() <= self.finished.keys())
        assert self.complaints == []
        for name in prompts:
            self.end(name)


def measure(found: Mapping[str, float]) -> bool:
    with tempfile.TemporaryDirectory(dir=_roomy(file_bytes(LLAMA_3_8B))) as name:
        directory = Path(name)
        began = time.perf_counter()
        write_model(directory / "model", LLAMA_3_8B, torch.device("cuda"))
        torch.cuda.empty_cache()
        emit(Row(name="writing the model's file", measured=time.perf_counter() - began, unit="s"))
        try:
            return _with_workers(directory, found)
        finally:
            say_logs(directory)


def _with_workers(directory: Path, found: Mapping[str, float]) -> bool:
    began = time.perf_counter()
    with workers(
        directory,
        TimedGateway(directory / "r"),
        dtype="bfloat16",
        devices="cuda:0",
        max_model_len=8192,
        max_num_seqs=64,
        max_num_batched_tokens=4096,
        chunk_tokens=1024,
        kv_cache_memory_bytes=26 << 30,
        request_log=str(directory / LOG),
    ) as gateway:
        emit(Row(name="workers are ready", measured=time.perf_counter() - began, unit="s"))
        say_memory()
        return each(
            [
                partial(second_tokens, gateway, LLAMA_3_8B, directory / LOG),
                partial(together, gateway, LLAMA_3_8B, found),
            ]
        )


def second_tokens(
    gateway: TimedGateway,
    spec: ModelSpec,
    log: Path,
    *,
    n_asked: int = N_ASKED,
    n_tokens: int = PROMPT_TOKENS,
) -> None:
    """One prompt after the other."""
    rng = random.Random(1)
    delays: dict[str, float] = {}
    firsts: list[float] = []
    steps: list[float] = []
    for n in range(n_asked):
        name = f"alone {n}"
        prompt = rng.choices(range(spec.vocab_size), k=n_tokens)
        began = time.perf_counter()
        gateway.answer({name: prompt}, N_OUT)
        if n < N_WARM:
            continue
        first, second, *later = gateway.at_s[name]
        step = statistics.median(b - a for a, b in zip([second, *later], later, strict=False))
        delays[name] = (second - first - step) * 1e3
        firsts.append((first - began) * 1e3)
        steps.append(step * 1e3)
    emit(Row.of("second token", statistics.median(delays.values())))
    emit(Row(name="the worst of those", measured=max(delays.values())))
    emit(Row(name=f"first token, prompt of {n_tokens}", measured=statistics.median(firsts)))
    emit(Row(name="a decode worker's step, 1 sequence", measured=statistics.median(steps)))
    say_events(log, sorted(delays, key=lambda name: delays[name])[len(delays) // 2])


def say_events(log: Path, name: str) -> None:
    """Of one request, as its workers noted them."""
    noted = [json.loads(line) for line in log.read_text().splitlines()]
    noted = sorted((n for n in noted if n["transfer"] == name), key=lambda n: n["mono"])
    say(f"the request of the median, {name}:")
    for n in noted:
        kept = {k: v for k, v in n.items() if k not in _COMMON}
        ms = (n["mono"] - noted[0]["mono"]) * 1e3
        say(f"  {ms:10.3f} ms {n['role']:<8} {n['event']:<18} {kept or ''}")


_COMMON = ("t", "mono", "event", "transfer", "attempt", "role", "instance")


def together(
    gateway: TimedGateway,
    spec: ModelSpec,
    found: Mapping[str, float],
    *,
    n: int = N_TOGETHER,
    n_tokens: int = TOGETHER_TOKENS,
    n_out: int = TOGETHER_OUT,
) -> None:
    """A step while so many sequences run, from the last one's beginning to the first one's end,
    beside the device's own time of it."""
    rng = random.Random(2)
    prompts = {f"together {i}": rng.choices(range(spec.vocab_size), k=n_tokens) for i in range(n)}
    gateway.answer(prompts, n_out)
    at_s = [gateway.at_s[name] for name in prompts]
    began, ended = max(times[1] for times in at_s), min(times[-1] for times in at_s)
    inside = [[at for at in times if began <= at <= ended] for times in at_s]
    if min(map(len, inside)) < LEAST_STEPS:
        say(f"{n} sequences hardly ran together: answers of {n_out} tokens are too short")
        return
    step_s = statistics.fmean((times[-1] - times[0]) / (len(times) - 1) for times in inside)
    context = n_tokens + statistics.fmean(
        sum(at < began for at in times) + len(of_one) / 2
        for times, of_one in zip(at_s, inside, strict=True)
    )
    say(f"{n} sequences ran together at {context:.0f} tokens in the mean")
    emit(Row.of("busy", step_s * 1e3, floor=_device_ms(found, n, context)))


def _device_ms(found: Mapping[str, float], n: int, context: float) -> float | None:
    """Of a step, between those that were measured."""
    name = f"the device's own time of a step, {n} at {{}}"
    short, long = (found.get(name.format(at)) for at in (TOGETHER_TOKENS, MORE_CONTEXT))
    if short is None or long is None:
        return None
    return short + (long - short) * (context - TOGETHER_TOKENS) / (MORE_CONTEXT - TOGETHER_TOKENS)


def _roomy(n_bytes: int) -> str:
    """Where a file of that size is in memory, if that can be."""
    there = "/dev/shm"
    if not Path(there).is_dir():
        return tempfile.gettempdir()
    found = os.statvfs(there)
    return there if found.f_bavail * found.f_frsize > 1.1 * n_bytes else tempfile.gettempdir()
