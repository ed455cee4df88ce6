"""The engine's bars, in one run: passes alone, requests over HTTP, and peers on the same cores.

    python -m bench.engine MODEL [--rounds 5]
        [--openvino-python PYTHON --openvino-model F16.gguf]
        [--llama-server PATH --llama-model BF16.gguf]

Every round measures every configuration and every peer in turn, so that a machine's moods fall on
all alike; a figure is the median over the rounds. Prompts are distinct random words, the prefix
cache is off, sampling is greedy. Floors come from `bench.steps` in the same run. The last line is
JSON. Uses the commands and HTTP of whatever it measures, and two CPUs, the client's included.
"""

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench import server
from bench.bars import Row, rows
from bench.engine_load import Load
from bench.flag_types import Parser, model_path, positive
from bench.footprint import CpuSeconds, cpu_seconds, memory_bytes, workers
from bench.peers import llama_server, openvino
from bench.program import exit_status
from common.errors import SetupError

COMMON = ("--dtype", "bfloat16", "--no-enable-prefix-caching", "--max-model-len", "4096")
COLOCATED = (*COMMON, "--prefill", "0", "--decode", "1", "--threads", "2")
SPLIT = (
    *(*COMMON, "--prefill", "1", "--decode", "1", "--threads", "1"),
    *("--prefill.cpus", "0", "--decode.cpus", "1", "--disaggregate", "always"),
)
SOLO_PROMPTS = (64, 512, 2048)
AT_ONCE = {8: 24, 32: 64}  # requests of each

Figures = dict[str, float]


def colocated(model: Path) -> Figures:
    figures: Figures = {}
    with server.running([*COLOCATED, "--model", str(model)]) as running:
        figures |= _at_rest("colocated", running.pid)
        load = Load(running.url)
        for n_tokens in SOLO_PROMPTS:
            ttft_ms, tpot_ms = load.solo(n_tokens)
            figures[f"ttft_{n_tokens}_ms"], figures[f"tpot_{n_tokens}_ms"] = ttft_ms, tpot_ms
        for n, n_requests in AT_ONCE.items():
            before = cpu_seconds(running.pid)
            figures |= _named("colocated", n, load.at_once(n, n_requests))
            figures |= _spent("colocated", n, cpu_seconds(running.pid) - before)
        figures |= _named("sampled", 32, load.at_once(32, AT_ONCE[32], sampled=True))
    return figures


def split(model: Path) -> Figures:
    figures: Figures = {}
    with server.running([*SPLIT, "--model", str(model)]) as running:
        figures |= _at_rest("split", running.pid)
        load = Load(running.url)
        for n, n_requests in AT_ONCE.items():
            before = cpu_seconds(running.pid)
            figures |= _named("split", n, load.at_once(n, n_requests))
            figures |= _spent("split", n, cpu_seconds(running.pid) - before)
        figures["handoff_gap_ms"], figures["handoff_step_ms"] = load.handoff()
    return figures


def steps(model: Path) -> Figures:
    """What `bench.steps` says, flat."""
    command = [sys.executable, "-m", "bench.steps", str(model), "--threads", "2"]
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if ended.returncode:  # it has said why
        raise SetupError(f"bench.steps ended with {ended.returncode}")
    said = json.loads(ended.stdout.splitlines()[-1])
    figures: Figures = {name: value for name, value in said.items() if name != "rows"}
    for row in said["rows"]:
        figures[f"{row['work']}: ms"] = row["p50_ms"]
        figures[f"{row['work']}: floor_ms"] = row["floor_ms"]
    return figures


def _named(prefix: str, n: int, figures: Mapping[str, float]) -> Figures:
    return {f"{prefix}_{name}_{n}": value for name, value in figures.items()}


def _spent(prefix: str, n: int, spent: CpuSeconds) -> Figures:
    return {
        f"{prefix}_overhead_{n}": spent.overhead,
        f"{prefix}_gateway_cpu_s_{n}": spent.gateway,
        f"{prefix}_control_cpu_s_{n}": spent.control,
        f"{prefix}_compute_cpu_s_{n}": spent.compute,
    }


def _at_rest(prefix: str, gateway: int) -> Figures:
    processes = {"gateway": gateway, **workers(gateway)}
    return {
        f"{prefix}_{name}_{kind}_mb": n_bytes / 2**20
        for name, pid in processes.items()
        for kind, n_bytes in memory_bytes(pid).items()
    }


def medians(rounds: Sequence[Mapping[str, float]]) -> Figures:
    return {name: statistics.median(r[name] for r in rounds) for name in rounds[0]}


def _show(row: Row) -> None:
    over = f"{row.over_floor:5.2f} x floor" if row.over_floor is not None else ""
    print(f"{'ok  ' if row.met else 'MISS'} {row.name:<46} {row.measured:9.1f}  bar {row.bar:9.1f}"
          f" {row.unit:<6} {over}  {row.note}")  # fmt: skip


def one_round(options: argparse.Namespace) -> Figures:
    """Everything once, in turn."""
    figures = steps(options.model) | colocated(options.model) | split(options.model)
    if options.openvino_python:
        peer = openvino(options.openvino_python, options.openvino_model)
        figures |= {f"openvino_{name}": value for name, value in peer.items()}
    if options.llama_server:
        with llama_server(options.llama_server, options.llama_model) as url:
            load = Load(url, keep_alive=False)
            for n_tokens in (64, 2048):
                _, figures[f"llama_tpot_{n_tokens}_ms"] = load.solo(n_tokens)
    return figures


def report(rounds: Sequence[Figures]) -> None:
    """The table, and the line of JSON."""
    figures = medians(rounds)
    table = rows(figures)
    for row in table:
        _show(row)
    for name, value in figures.items():
        if name.endswith("_mb"):
            print(f"at rest  {name:<44} {value:9.1f}")
    result = {"benchmark": "engine", "rounds": len(rounds)}
    print(json.dumps(result | {"rows": [row.as_dict() for row in table], "figures": figures}))


def main(argv: Sequence[str]) -> int:
    """Returns 1 where no round was whole."""
    parser = Parser(prog="python -m bench.engine", description=__doc__)
    parser.add_argument("model", type=model_path)
    parser.add_argument("--rounds", type=positive, default=5)
    parser.add_argument("--openvino-python", type=Path)
    parser.add_argument("--openvino-model", type=Path)
    parser.add_argument("--llama-server", type=Path)
    parser.add_argument("--llama-model", type=Path)
    options = parser.parse_all(argv)
    print("colocated:", " ".join(COLOCATED))
    print("1 x 1:    ", " ".join(SPLIT), flush=True)
    rounds: list[Figures] = []
    try:
        for number in range(options.rounds):
            rounds.append(one_round(options))
            print(f"round {number + 1} of {options.rounds}", file=sys.stderr, flush=True)
    except KeyboardInterrupt:
        print("stopped: of the rounds that are whole", file=sys.stderr)
    if not rounds:
        return 1
    report(rounds)
    return 0


if __name__ == "__main__":
    sys.exit(exit_status(main, sys.argv[1:]))
