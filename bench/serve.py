"""`baton bench serve`: load one OpenAI-compatible server and report latencies and throughput.

Drives any such server over HTTP alone. Names and definitions are those of `vllm bench serve`:
TTFT from sending to the first token; TPOT = (E2E - TTFT) / (output tokens - 1); ITL, the gaps
between chunks that carry tokens. Must import nothing of the engine.
"""

import argparse
import asyncio
import json
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import aiohttp
import numpy as np
from tqdm import tqdm

PERCENTILES = (50, 90, 99)
MS = 1e3


@dataclass(slots=True)
class Outcome:
    """One request, as its client saw it. Seconds on this process's clock."""

    sent: float
    first: float = 0.0
    last: float = 0.0
    gaps: list[float] = field(default_factory=list[float])
    input_tokens: int = 0
    output_tokens: int = 0
    error: str = ""

    @property
    def ttft(self) -> float:
        return self.first - self.sent

    @property
    def e2el(self) -> float:
        return self.last - self.sent

    @property
    def tpot(self) -> float:
        return (self.last - self.first) / (self.output_tokens - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where requests go, and what they ask for."""

    base_url: str
    model: str
    output_len: int
    ignore_eos: bool
    temperature: float


def main(argv: Sequence[str]) -> int:
    """Returns 1 if the server failed requests."""
    options = _parser().parse_args(argv)
    try:
        results = asyncio.run(_run(options))
    except (aiohttp.ClientError, OSError, ValueError) as error:
        print(f"error: {options.base_url}: {error}", file=sys.stderr)
        return 1
    print(json.dumps({"benchmark": "serve", "results": results}))
    return 1 if any(result["failed"] for result in results) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="baton bench serve", description=main.__doc__)
    parser.add_argument("--base-url", default="http://127.0.0.1:8000")
    parser.add_argument("--model", help="as the server names it [the first it lists]")
    parser.add_argument(
        "--max-concurrency", type=_numbers, default=[1], help="requests at once, such as 1,8,32"
    )
    parser.add_argument(
        "--num-prompts", type=int, help="requests per concurrency [4 a slot, at least 8]"
    )
    parser.add_argument("--random-input-len", type=int, default=256, help="prompt tokens [256]")
    parser.add_argument("--random-output-len", type=int, default=128, help="output tokens [128]")
    parser.add_argument(
        "--vocab-size", type=int, default=30_000, help="prompts are random ids below it [30000]"
    )
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument(
        "--no-ignore-eos", dest="ignore_eos", action="store_false", help="stop where the model does"
    )
    parser.add_argument("--num-warmups", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    return parser


def _numbers(text: str) -> list[int]:
    parts = text.split(",")
    if not all(part.isascii() and part.isdigit() and int(part) > 0 for part in parts):
        raise argparse.ArgumentTypeError(f"{text}: must be numbers from 1 on, such as 1,8,32")
    return [int(part) for part in parts]


async def _run(options: argparse.Namespace) -> list[dict[str, float]]:
    draw = random.Random(options.seed)
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=None)
    base_url = options.base_url.rstrip("/").removesuffix("/v1")
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        target = Target(
            base_url=base_url,
            model=options.model or await _first_model(session, base_url),
            output_len=options.random_output_len,
            ignore_eos=options.ignore_eos,
            temperature=options.temperature,
        )

        def prompts(n: int) -> list[list[int]]:
            ids = range(min(1000, options.vocab_size // 2), options.vocab_size)
            return [draw.choices(ids, k=options.random_input_len) for _ in range(n)]

        await _load(session, target, prompts(options.num_warmups), 1)
        results: list[dict[str, float]] = []
        for concurrency in options.max_concurrency:
            n = options.num_prompts or max(8, 4 * concurrency)
            began = time.perf_counter()
            outcomes = await _load(session, target, prompts(n), concurrency)
            result = _summary(outcomes, time.perf_counter() - began, concurrency)
            _show(result)
            for error in {o.error for o in outcomes if o.error}:
                print(f"failed: {error}", file=sys.stderr)
            results.append(result)
        return results


async def _first_model(session: aiohttp.ClientSession, base_url: str) -> str:
    """Raises ValueError, with what the server said, if it is no OpenAI-compatible server."""
    async with session.get(f"{base_url}/v1/models") as response:
        text = await response.text()
    try:
        return str(json.loads(text)["data"][0]["id"])
    except (ValueError, KeyError, IndexError, TypeError):
        raise ValueError(f"/v1/models answered {response.status}: {text[:200]}") from None


async def _load(
    session: aiohttp.ClientSession, target: Target, prompts: list[list[int]], concurrency: int
) -> list[Outcome]:
    """A closed loop: `concurrency` clients, each sending its next prompt when one is answered."""
    waiting = iter(prompts)
    outcomes: list[Outcome] = []
    with tqdm(total=len(prompts), desc=f"{concurrency} at once", unit="req") as progress:

        async def client() -> None:
            for prompt in waiting:
                outcomes.append(await _request(session, target, prompt))
                progress.update()

        await asyncio.gather(*(client() for _ in range(concurrency)))
    return outcomes


async def _request(session: aiohttp.ClientSession, target: Target, prompt: list[int]) -> Outcome:
    body = {
        "model": target.model,
        "prompt": prompt,
        "max_tokens": target.output_len,
        "temperature": target.temperature,
        "ignore_eos": target.ignore_eos,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    outcome = Outcome(sent=time.perf_counter())
    try:
        async with session.post(f"{target.base_url}/v1/completions", json=body) as response:
            if response.status != 200:
                outcome.error = f"{response.status}: {(await response.text())[:200]}"
                return outcome
            async for line in response.content:
                if line.startswith(b"data: ") and not line.startswith(b"data: [DONE]"):
                    _take(outcome, json.loads(line[6:]))
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        outcome.error = f"{type(error).__name__}: {error}"
    if not outcome.error and not outcome.output_tokens:
        outcome.error = "no tokens, or no usage, in the answer"
    return outcome


def _take(outcome: Outcome, event: dict) -> None:
    now = time.perf_counter()
    if "error" in event:
        outcome.error = str(event["error"])[:200]
    if event.get("usage"):
        outcome.input_tokens = event["usage"]["prompt_tokens"]
        outcome.output_tokens = event["usage"]["completion_tokens"]
    if not any(choice.get("text") for choice in event.get("choices", ())):
        return
    if outcome.first:
        outcome.gaps.append(now - outcome.last)
    else:
        outcome.first = now
    outcome.last = now


def _summary(outcomes: list[Outcome], duration: float, concurrency: int) -> dict[str, float]:
    """Keys as in `vllm bench serve`'s JSON."""
    good = [o for o in outcomes if not o.error]
    generated = sum(o.output_tokens for o in good)
    result: dict[str, float] = {
        "max_concurrency": concurrency,
        "completed": len(good),
        "failed": len(outcomes) - len(good),
        "duration": duration,
        "total_input_tokens": sum(o.input_tokens for o in good),
        "total_output_tokens": generated,
        "request_throughput": len(good) / duration,
        "output_throughput": generated / duration,
        "total_token_throughput": (generated + sum(o.input_tokens for o in good)) / duration,
    }
    series = {
        "ttft": [o.ttft for o in good],
        "tpot": [o.tpot for o in good if o.output_tokens > 1],
        "itl": [gap for o in good for gap in o.gaps],
        "e2el": [o.e2el for o in good],
    }
    for name, seconds in series.items():
        values = np.array(seconds or [0.0]) * MS
        result[f"mean_{name}_ms"] = float(values.mean())
        result[f"std_{name}_ms"] = float(values.std())
        for p in PERCENTILES:
            key = "median" if p == 50 else f"p{p}"
            result[f"{key}_{name}_ms"] = float(np.percentile(values, p))
    return result


def _show(result: dict[str, float]) -> None:
    rows: list[tuple[str, float, str]] = [
        ("Successful requests:", result["completed"], "d"),
        ("Failed requests:", result["failed"], "d"),
        ("Maximum request concurrency:", result["max_concurrency"], "d"),
        ("Benchmark duration (s):", result["duration"], ".2f"),
        ("Total input tokens:", result["total_input_tokens"], "d"),
        ("Total generated tokens:", result["total_output_tokens"], "d"),
        ("Request throughput (req/s):", result["request_throughput"], ".2f"),
        ("Output token throughput (tok/s):", result["output_throughput"], ".2f"),
        ("Total token throughput (tok/s):", result["total_token_throughput"], ".2f"),
    ]
    print(f"{' Serving Benchmark Result ':=^50}")
    for label, value, spec in rows:
        print(f"{label:<40} {value:<10{spec}}")
    titles = {
        "ttft": "Time to First Token",
        "tpot": "Time per Output Token (excl. 1st token)",
        "itl": "Inter-token Latency",
        "e2el": "End-to-end Latency",
    }
    for name, title in titles.items():
        print(f"{title:-^50}")
        for key in ("mean", "median", "p99"):
            label = f"{key.capitalize()} {name.upper()} (ms):"
            print(f"{label:<40} {result[f'{key}_{name}_ms']:<10.2f}")
    print("=" * 50)
