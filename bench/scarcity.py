"""What it costs to have half the pages that the sequences of a batch need.

    python -m bench.scarcity MODEL [--rounds 3]

Starts servers itself, one after the other, round by round, on the same CPUs: with all the pages
that are needed, with half of them, and with half of them and host memory for the others. Each is
first taught short answers, so that decode lets in more than can stay, then asked for long ones, all
at once. Told is output tokens a second, beside what gave way and how. One JSON line last. Imports
nothing of the engine but what tells the size of a page.
"""

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from statistics import median
from urllib.request import urlopen

from bench.arrivals import Arrivals
from bench.client import Request, Target
from bench.flag_types import Parser, model_path, positive
from bench.load import run
from bench.program import exit_status
from bench.server import Server, running
from common.engine.sizing import kv_spec
from common.kv.layout import pages_for
from common.model.description import read_spec

BAR = 0.8  # of the throughput with all the pages
PAGE_TOKENS = 16
N_LESSONS, LESSON = 64, 1_000  # short answers; the token that they consist of
GENERATION_BYTES = 8
TOLD_AGAIN_S = 1.3  # workers tell their counters every second
COUNTERS = (
    "num_preemptions_total",
    "kv_spills_total",
    "kv_spill_bytes_total",
    "kv_restores_total",
    "engine_step_tokens_total",
)
_MODEL = "model"


@dataclass(frozen=True, slots=True)
class Work:
    """What is asked for at once."""

    n_requests: int
    prompt_tokens: int
    output_tokens: int

    @property
    def n_pages(self) -> int:
        """With which nobody has to give way."""
        return self.n_requests * pages_for(self.prompt_tokens + self.output_tokens, PAGE_TOKENS)


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one server in one round; counts are decode's."""

    output_tokens_per_s: float
    counts: dict[str, float]


def flags(model: Path, work: Work, dtype: str, n_pages: int, n_host_pages: int) -> list[str]:
    """Colocated, so that there is one pool; no prefixes are kept, so that nothing is found."""
    spec = read_spec(model)
    kv = kv_spec(spec, dtype, PAGE_TOKENS)
    page_bytes = kv.page_bytes + GENERATION_BYTES
    return [
        *("--model", str(model), "--served-model-name", _MODEL, "--dtype", dtype),
        *("--prefill", "0", "--max-num-seqs", str(work.n_requests)),
        *("--block-size", str(PAGE_TOKENS), "--no-enable-prefix-caching"),
        *("--max-model-len", str(work.prompt_tokens + work.output_tokens)),
        *("--kv-cache-memory-bytes", str(n_pages * page_bytes)),
        *("--kv-host-memory-bytes", str(n_host_pages * page_bytes)),
    ]


async def measure(server: Server, work: Work, seed: int) -> Figures:
    lesson = Target(
        base_url=server.url,
        model=_MODEL,
        extra_body={"logit_bias": {str(LESSON): 100}, "stop_token_ids": [LESSON]},
    )
    short = Request(prompt=[LESSON], max_tokens=work.output_tokens)
    await run(lesson, [short] * N_LESSONS, Arrivals())
    await asyncio.sleep(TOLD_AGAIN_S)
    before = counters(server)
    draw = Random(seed)
    long = [
        Request(
            prompt=[draw.randrange(1_000, 30_000) for _ in range(work.prompt_tokens)],
            max_tokens=work.output_tokens,
        )
        for _ in range(work.n_requests)
    ]
    began = time.perf_counter()
    outcomes = await run(Target(base_url=server.url, model=_MODEL), long, Arrivals())
    seconds = time.perf_counter() - began
    said = sum(outcome.output_tokens for outcome in outcomes)
    if said != work.n_requests * work.output_tokens:
        raise RuntimeError(f"{said} tokens came of {work.n_requests * work.output_tokens}")
    await asyncio.sleep(TOLD_AGAIN_S)
    counts = {name: value - before[name] for name, value in counters(server).items()}
    return Figures(said / seconds, counts)


def counters(server: Server) -> dict[str, float]:
    """As decode last told them."""
    with urlopen(f"{server.url}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return {
        name: sum(
            float(line.rpartition(" ")[2])
            for line in lines
            if line.startswith(f"baton:{name}{{") and 'role="decode"' in line
        )
        for name in COUNTERS
    }


def main(argv: Sequence[str]) -> int:
    """Returns 1 if half the pages with host memory do not reach the bar."""
    parser = Parser(prog="python -m bench.scarcity", description=main.__doc__)
    parser.add_argument("model", type=model_path)
    parser.add_argument("--rounds", type=positive, default=3)
    parser.add_argument("--num-prompts", type=positive, default=32)
    parser.add_argument("--prompt-tokens", type=positive, default=64)
    parser.add_argument("--output-tokens", type=positive, default=512)
    parser.add_argument("--dtype", default="bfloat16")
    options = parser.parse_all(argv)
    work = Work(options.num_prompts, options.prompt_tokens, options.output_tokens)
    half = work.n_pages // 2
    setups = {"ample": (work.n_pages, 0), "half": (half, 0), "half, host": (half, half)}
    rounds: dict[str, list[Figures]] = {name: [] for name in setups}
    for seed in range(options.rounds):
        for name, (n_pages, n_host_pages) in setups.items():
            with running(
                flags(options.model, work, options.dtype, n_pages, n_host_pages)
            ) as server:
                figures = asyncio.run(measure(server, work, seed))
            rounds[name].append(figures)
            print(
                f"{name:12} {n_pages:6} pages {figures.output_tokens_per_s:8.1f} tokens/s  ", end=""
            )
            print(" ".join(f"{n}={v:g}" for n, v in figures.counts.items()), flush=True)
    ratios = {
        name: median(
            one.output_tokens_per_s / ample.output_tokens_per_s
            for one, ample in zip(rounds[name], rounds["ample"], strict=True)
        )
        for name in setups
    }
    for name, ratio in ratios.items():
        print(f"{name:12} {ratio:6.2f} of ample (bar {BAR})")
    told = {name: [asdict(figures) for figures in of] for name, of in rounds.items()}
    print(json.dumps({"benchmark": "scarcity", "bar": BAR, "of_ample": ratios, "rounds": told}))
    return 0 if ratios["half, host"] >= BAR else 1


if __name__ == "__main__":
    sys.exit(exit_status(main, sys.argv[1:]))
