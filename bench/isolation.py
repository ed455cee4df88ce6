"""Does a burst of long prompts disturb the streams that are running, and they it?

    python -m bench.isolation MODEL [--rounds 3] [--plot isolation.png]

Starts servers itself, one after the other, round by round: prefill and decode apart, a core each;
and colocated on the same two cores, with each of several chunk sizes (from the second round on only
the one that did best in the first). Four streams decode, each behind a long prompt, so that what
they gain during the burst is little beside what they have, and for as long before it as it takes to
see what else the machine does; then eight prompts of 2,000 tokens come at once. Told are the gaps
between the streams' tokens during the burst against before it, and the burst's TTFT against that of
a burst with no streams. Client and gateway live on the same cores: apart, they are put beside
prefill. One JSON line last. Knows the engine by its HTTP alone.
"""

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import aiohttp
import numpy as np

from bench import reasons
from bench.client import Outcome, Request, Target, send
from bench.disturbance import Round, gaps, itl_ratio, same_tokens, summarise, verdict
from bench.exits import FAILED_EXIT
from bench.flag_types import Parser, above, positive, whole
from bench.program import exit_status
from bench.sender import open_session
from bench.server import Server, running

N_STREAMS, STREAM_PROMPT_TOKENS, STREAM_TOKENS = 4, 5000, 3150
N_BURST, BURST_PROMPT_TOKENS, BURST_TOKENS = 8, 2000, 8
STEADY_TOKENS = 30  # of every stream, before anything counts
VOCABULARY = range(1000, 30_000)
_MODEL = "model"
_POLL_S = 0.05
_PROBE_S, _PROBE_STEPS = 1.0, 20_000


@dataclass(frozen=True, slots=True)
class Setup:
    """One server to measure."""

    name: str
    flags: tuple[str, ...]
    cpus: tuple[int, int]
    client_cpus: frozenset[int]  # of client and gateway
    control: bool  # the streams are run once more, with no burst


def setups(cpus: tuple[int, int], chunks: Sequence[int]) -> list[Setup]:
    """Apart, then colocated by chunk size, which is the budget of a pass too: stall-free batching
    (Sarathi-Serve) bounds what a stream waits for, not what one prompt is cut to."""
    first, second = cpus
    apart = (
        *("--prefill", "1", "--decode", "1", "--disaggregate", "always"),
        *("--prefill.cpus", str(first), "--decode.cpus", str(second)),
    )
    together = (
        *("--prefill", "0", "--decode", "1"),
        *("--decode.cpus", f"{first},{second}", "--decode.threads", "2"),
    )
    return [
        Setup("apart", apart, cpus, frozenset({first}), control=True),
        *(
            Setup(
                f"colocated, chunks of {chunk}",
                (
                    *together,
                    *("--decode.chunk-tokens", str(chunk)),
                    *("--decode.max-num-batched-tokens", str(chunk)),
                    *("--decode.max-num-seqs", str(N_STREAMS + N_BURST)),
                ),
                cpus,
                frozenset(cpus),
                control=False,
            )
            for chunk in chunks
        ),
    ]


# --- measuring -----------------------------------------------------------------------------------


class Client:
    """What it sends to one server. Raises RuntimeError where a request fails."""

    def __init__(self, session: aiohttp.ClientSession, target: Target, seed: int) -> None:
        self._session = session
        self._target = target
        self._began = time.perf_counter()
        self._rng = np.random.default_rng(seed)

    def now(self) -> float:
        return time.perf_counter() - self._began

    async def burst(self, n: int = N_BURST) -> list[Outcome]:
        """All at once, to their ends."""
        outcomes, tasks = self._send(n, BURST_PROMPT_TOKENS, BURST_TOKENS)
        await asyncio.gather(*tasks)
        _must_be_well(outcomes)
        return outcomes

    @asynccontextmanager
    async def streams(self) -> AsyncIterator[list[Outcome]]:
        """Running from some tokens on; given up at the end."""
        outcomes, tasks = self._send(N_STREAMS, STREAM_PROMPT_TOKENS, STREAM_TOKENS)
        try:
            await until_they_have(outcomes, [STEADY_TOKENS] * len(outcomes))
            yield outcomes
            _must_be_well(outcomes)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _send(
        self, n: int, prompt_tokens: int, max_tokens: int
    ) -> tuple[list[Outcome], list["asyncio.Task[None]"]]:
        outcomes: list[Outcome] = []
        tasks: list[asyncio.Task[None]] = []
        for index in range(n):
            prompt = self._rng.integers(VOCABULARY.start, VOCABULARY.stop, prompt_tokens).tolist()
            request = Request(prompt=prompt, max_tokens=max_tokens)
            outcome = Outcome(index=index, scheduled_s=self.now(), sent_s=self.now())
            sending = send(self._session, self._target, request, outcome, self._began)
            outcomes.append(outcome)
            tasks.append(asyncio.create_task(sending))
        return outcomes, tasks


async def measure(server: Server, setup: Setup, before_s: float, seed: int) -> Round:
    """One round at a server that is running."""
    noise = max(map(_noise, setup.cpus))
    told = {"return_token_ids": True}  # every token as it comes, also one whose text is held back
    target = Target(base_url=server.url, model=_MODEL, extra_body=told)
    async with open_session(target) as session:
        client = Client(session, target, seed)
        await client.burst(1)
        alone = await client.burst()
        async with client.streams() as streams:
            began, cpu_began = client.now(), server.cpu_seconds()
            await asyncio.sleep(before_s)
            sent, cpu_sent = client.now(), server.cpu_seconds()
            loaded = await client.burst()
            ended, cpu_ended = client.now(), server.cpu_seconds()
        control: tuple[tuple[float, float], ...] = ()
        if setup.control:
            async with client.streams() as others:
                await until_they_have(others, [len(o.chunk_times_s) for o in streams])
            control = same_tokens(streams, others, sent, ended)
    return Round(
        alone_ttfts=tuple(outcome.ttft_s for outcome in alone),
        loaded_ttfts=tuple(outcome.ttft_s for outcome in loaded),
        before=gaps(streams, sent, began, sent),
        during=gaps(streams, sent, sent, ended),
        control=control,
        burst_s=ended - sent,
        cpu_before=_parts(cpu_began, cpu_sent, sent - began),
        cpu=_parts(cpu_sent, cpu_ended, ended - sent),
        noise=noise,
    )


def _parts(earlier: dict[str, float], later: dict[str, float], of_s: float) -> dict[str, float]:
    return {name: (later[name] - earlier[name]) / of_s for name in earlier}


async def until_they_have(outcomes: Sequence[Outcome], n_tokens: Sequence[int]) -> None:
    """Raises RuntimeError where one ends before."""
    wanted = list(zip(outcomes, n_tokens, strict=True))
    while any(len(outcome.chunk_times_s) < n for outcome, n in wanted):
        for outcome, n in wanted:
            if outcome.ended_s and len(outcome.chunk_times_s) < n:
                _must_be_well(outcomes)
                raise RuntimeError(f"a stream ended before its token {n}")
        await asyncio.sleep(_POLL_S)


def _must_be_well(outcomes: Sequence[Outcome]) -> None:
    for outcome in outcomes:
        if outcome.error:
            raise RuntimeError(f"{outcome.error}: {outcome.message}")


def _noise(cpu: int) -> float:
    """What else runs on that CPU: 1 is nothing."""
    cpus = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {cpu})
    seconds: list[float] = []
    until = time.perf_counter() + _PROBE_S
    while (began := time.perf_counter()) < until:
        sum(range(_PROBE_STEPS))
        seconds.append(time.perf_counter() - began)
    os.sched_setaffinity(0, cpus)
    return float(np.percentile(seconds, 99)) / median(seconds)


# --- the command ---------------------------------------------------------------------------------


def main(argv: Sequence[str]) -> int:
    """Returns 1 where a server fails. Raises NotReady where it does not start."""
    parser = _parser()
    options = parser.parse_all(argv)
    try:
        if options.plot is not None:
            reasons.must_be_drawable("--plot", options.plot)
    except ValueError as error:
        parser.error(str(error))
    rounds: dict[str, list[Round]] = {}
    try:
        asked = setups(tuple(options.cpus), options.chunks)
        for number in range(options.rounds):
            for setup in asked if number == 0 else _again(asked, rounds):
                made = _round(setup, options, number)
                rounds.setdefault(setup.name, []).append(made)
                print(f"round {number + 1}, {setup.name}: {_told(made)}", flush=True)
    except RuntimeError as error:
        print(f"error: {error}", file=sys.stderr)
        return FAILED_EXIT
    apart, *colocated = rounds
    results = {name: summarise(rounds[name]) for name in rounds}
    told = verdict(results[apart], {name: results[name] for name in colocated})
    if options.plot is not None:
        _plot(rounds, [apart, *([told["colocated_best"]] if colocated else [])], options.plot)
    print(json.dumps(told))
    return 0


def _again(asked: Sequence[Setup], rounds: dict[str, list[Round]]) -> list[Setup]:
    """Apart, and the colocated server whose streams were disturbed least in the first round."""
    apart, *colocated = asked
    best = min(colocated, key=lambda setup: itl_ratio(rounds[setup.name][0]), default=None)
    return [apart] if best is None else [apart, best]


def _round(setup: Setup, options: argparse.Namespace, number: int) -> Round:
    flags = ("--model", options.model, "--served-model-name", _MODEL, *setup.flags)
    everywhere = os.sched_getaffinity(0)
    with running((*flags, *options.flag)) as server:
        server.pin_gateway(setup.client_cpus)
        os.sched_setaffinity(0, setup.client_cpus)
        try:
            return asyncio.run(measure(server, setup, options.before_s, number))
        finally:
            os.sched_setaffinity(0, everywhere)


def _plot(rounds: dict[str, list[Round]], names: Sequence[str], path: Path) -> None:
    """Each server's round that is the median by its ratio."""
    from bench import plots  # matplotlib is an extra

    chosen = {name: _middle(rounds[name]) for name in names}
    plots.gaps_over_time(
        {name: [*made.before, *made.during] for name, made in chosen.items()},
        {name: made.burst_s for name, made in chosen.items()},
        path,
    )


def _middle(rounds: Sequence[Round]) -> Round:
    ordered = sorted(rounds, key=itl_ratio)
    return ordered[len(ordered) // 2]


def _told(made: Round) -> str:
    numbers = summarise([made])
    return (
        f"gaps before {numbers['median_itl_before_ms']:.1f} ms, p99 "
        f"{numbers['p99_itl_before_ms']:.1f}; during {numbers['median_itl_during_ms']:.1f}, p99 "
        f"{numbers['p99_itl_during_ms']:.1f}, ratio {numbers['itl_ratio']:.2f}; mean TTFT "
        f"{numbers['mean_ttft_alone_ms']:.0f} ms alone, {numbers['mean_ttft_ms']:.0f} beside them, "
        f"ratio {numbers['ttft_ratio']:.2f}; noise {made.noise:.2f}"
    )


def _parser() -> Parser:
    parser = Parser(
        prog="python -m bench.isolation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", help="as `baton serve --model` takes it")
    parser.add_argument("--rounds", type=positive, default=3, help="[3]")
    parser.add_argument("--cpus", type=whole, nargs=2, default=[0, 1], help="the two cores [0 1]")
    parser.add_argument(
        "--chunks", type=positive, nargs="*", default=[32, 64, 128, 256], help="[32 64 128 256]"
    )
    parser.add_argument(
        "--before-s", type=above(0), default=15.0, help="seconds before the burst [15]"
    )
    parser.add_argument(
        "--flag", action="append", default=[], help="another flag of all servers, --flag=--x=1"
    )
    parser.add_argument("--plot", type=Path, help="a picture of every gap")
    return parser


if __name__ == "__main__":
    sys.exit(exit_status(main, sys.argv[1:]))
