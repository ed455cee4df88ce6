"""What a gateway costs: CPU and time that lie between a worker's token and its client's event.

    python -m bench.gateway MODEL [--rates 5000,10000,20000] [--gateways 1,2] [--rounds 3]

Starts `baton serve` with no worker of its own; eight workers that compute nothing join it
(`bench.stub_worker`), and as many streams as the rate takes are read off sockets by a process that
only counts events (`bench.sse_load`): one event a token, of text that is one token long. Told are
events a second that came about while all streams ran; CPU time of the gateways an event, and so
what a core could carry; what was added between the moment that a worker sent a token and the one
that its event was read at (p50, p99); and how connections were shared out. With two CPUs or more
the gateways have the last one to themselves, and who loads them the first. Last line JSON.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import IO

import msgspec
import numpy as np

from bench.flag_types import Parser, above, list_of, positive
from bench.footprint import gateways, process_seconds
from bench.program import exit_status
from bench.server import NotReady, Server, free_port, running
from bench.sse_load import Load
from bench.stdout import show
from bench.stub_worker import FIRST_PROMPT, Plan

STEP_S = 0.02  # of a worker; a stream's TPOT
N_WORKERS = 8
SECONDS = 6.0  # of a stream
STREAMS_PER_S = 400.0  # that begin
SAMPLE_S = 0.05
WORKERS_UP_S = 2.0
_NAME = "stub"


@dataclass(frozen=True, slots=True)
class Round:
    """One rate, once. Of the time in which all streams ran."""

    events_per_s: float
    cpu_us: float  # of the gateways, an event
    busy: float  # of one core, by the busiest gateway: 1 is all of it
    p50_ms: float
    p99_ms: float
    split: tuple[float, ...]  # each gateway's share of connections


@dataclass(slots=True, eq=False)
class _Cpu:
    """CPU time of processes over time, sampled by a thread."""

    pids: Sequence[int]
    rows: list[tuple[float, ...]] = field(default_factory=list[tuple[float, ...]])

    @contextmanager
    def sampling(self) -> Iterator[None]:
        over = threading.Event()

        def sample() -> None:
            while not over.wait(SAMPLE_S):
                self.rows.append((time.perf_counter(), *map(process_seconds, self.pids)))

        thread = threading.Thread(target=sample)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def between(self, began_s: float, ended_s: float) -> list[float]:
        """Seconds of each."""
        at_s, *used_s = np.array(self.rows).T
        return [float(np.diff(np.interp((began_s, ended_s), at_s, one))[0]) for one in used_s]


def measure(model: Path, rate: float, n_gateways: int) -> Round:
    """Raises NotReady where the server, or what loads it, does not do its part."""
    n_streams = max(1, round(rate * STEP_S))
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="bg-") as home:
        sent, got = Path(home, "sent.npz"), Path(home, "got.npy")
        plan = Plan(
            join=f"tcp://127.0.0.1:{port}",
            model=str(model),
            name=_NAME,
            n_workers=N_WORKERS,
            n_streams=n_streams,
            n_tokens=round((SECONDS + n_streams / STREAMS_PER_S) / STEP_S),
            step_s=STEP_S,
            notes=str(sent),
        )
        flags = [
            *("--model", str(model), "--served-model-name", _NAME, "--prefill", "0"),
            *("--decode", "0", "--control-port", str(port), "--log-level", "warning"),
            *("--max-waiting-requests", str(n_streams + 1)),
            *(("--gateways", str(n_gateways)) if n_gateways > 1 else ()),
        ]
        with _process("bench.stub_worker", plan) as stub, running(flags) as server:
            pids = _pin(server, n_gateways)
            time.sleep(WORKERS_UP_S)
            cpu = _Cpu(pids)
            load = Load(
                port=int(server.url.rpartition(":")[2]),
                model=_NAME,
                n_streams=n_streams,
                n_tokens=plan.n_tokens,
                first_prompt=FIRST_PROMPT,
                streams_per_s=STREAMS_PER_S,
                notes=str(got),
            )
            with cpu.sampling(), _process("bench.sse_load", load) as reading:
                said = _out(reading).read()
            if said.strip() != b"done":
                raise NotReady(f"the load broke: {said.decode(errors='replace')}")
            stub.terminate()
            stub.wait()
        with np.load(sent) as notes:
            return _round(notes["sent_ns"], notes["gateway"], np.load(got), cpu)


def _round(sent_ns: np.ndarray, gateway: np.ndarray, got_ns: np.ndarray, cpu: _Cpu) -> Round:
    began_ns, ended_ns = got_ns[:, 0].max(), got_ns[:, -1].min()
    steady = (got_ns > began_ns) & (got_ns < ended_ns)
    n_events, seconds = int(steady.sum()), float(ended_ns - began_ns) / 1e9
    delays_ms = (got_ns - sent_ns)[steady] / 1e6
    used_s = cpu.between(began_ns / 1e9, ended_ns / 1e9)
    p50, p99 = np.percentile(delays_ms, (50, 99))
    counts = np.bincount(gateway, minlength=len(cpu.pids))
    return Round(
        events_per_s=n_events / seconds,
        cpu_us=sum(used_s) / n_events * 1e6,
        busy=max(used_s) / seconds,
        p50_ms=float(p50),
        p99_ms=float(p99),
        split=tuple((counts / counts.sum()).round(3).tolist()),
    )


def _pin(server: Server, n_gateways: int) -> list[int]:
    """The gateways' process ids; they have the last CPU, whoever loads them the first."""
    pids = gateways(server.pid)
    if len(pids) != n_gateways:
        raise NotReady(f"{len(pids)} gateways of {n_gateways} are there")
    first, *_, last = sorted(os.sched_getaffinity(0)) * 2
    os.sched_setaffinity(0, {first})  # and so what is started from here on
    for pid in pids:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            os.sched_setaffinity(int(thread.name), {last})
    return pids


@contextmanager
def _process(module: str, told: msgspec.Struct) -> Iterator["subprocess.Popen[bytes]"]:
    """It reads what it is told from its stdin."""
    command = [sys.executable, "-P", "-m", module]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        try:
            process.stdin.write(msgspec.json.encode(told) + b"\n")
            process.stdin.flush()
            yield process
        finally:
            process.kill()


def _out(process: "subprocess.Popen[bytes]") -> IO[bytes]:
    assert process.stdout is not None
    return process.stdout


def _told(rounds: Sequence[Round]) -> dict[str, float]:
    names = ("events_per_s", "cpu_us", "busy", "p50_ms", "p99_ms")
    return {name: round(median(getattr(one, name) for one in rounds), 3) for name in names}


def main(argv: Sequence[str]) -> int:
    parser = Parser(
        prog="python -m bench.gateway",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--rates", type=list_of(above(0)), default=[5000.0, 10_000.0, 20_000.0])
    parser.add_argument("--gateways", type=list_of(positive), default=[1])
    parser.add_argument("--rounds", type=positive, default=3)
    options = parser.parse_all(argv)
    allowed = os.sched_getaffinity(0)
    result: list[dict[str, object]] = []
    for rate in options.rates:
        rounds: dict[int, list[Round]] = {n: [] for n in options.gateways}
        for _ in range(options.rounds):
            for n_gateways, those in rounds.items():
                os.sched_setaffinity(0, allowed)
                one = measure(options.model, rate, n_gateways)
                those.append(one)
                plural = "s" * (n_gateways > 1)
                show(
                    f"{n_gateways} gateway{plural}, {rate:6.0f} events/s "
                    f"({one.events_per_s:6.0f}): {one.cpu_us:5.1f} us of CPU an event, "
                    f"busy {one.busy:4.0%}, "
                    f"added {one.p50_ms:6.2f} ms (p99 {one.p99_ms:6.2f}), split {one.split}",
                )
        for n_gateways, those in rounds.items():
            splits = [one.split for one in those]
            result.append({"gateways": n_gateways, "rate": rate, **_told(those), "splits": splits})
    show(json.dumps({"benchmark": "gateway", "rounds": options.rounds, "results": result}))
    return 0


if __name__ == "__main__":
    sys.exit(exit_status(main, sys.argv[1:]))
