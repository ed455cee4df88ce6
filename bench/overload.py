"""What is left of goodput when far more is asked for than can be done?

    python -m bench.overload [MODEL] [--seconds 30] [--factors 0.5 0.75 1 2 5]

Starts a server whose requests are all owed an SLO. A closed loop that is owed nothing tells what it
can do; then requests come in an open loop at so many times of that, for some seconds each, and
those that are refused do not come again. Told are, for each rate, the requests a second that kept
the SLO, and the part of the taken ones that did. Bars: at the highest rate at least 0.9 of the best
goodput of any, and 0.9 of those taken keep their SLO. One JSON line last. Exit code 1: a bar is
missed. Imports nothing of the engine.
"""

import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from bench.arrivals import Arrivals
from bench.client import Outcome, Request, Target
from bench.exits import FAILED_EXIT
from bench.flag_types import Parser, above, positive
from bench.load import run
from bench.measures import MS, Goodput, throughput
from bench.program import exit_status
from bench.prompts import Prompts
from bench.server import Server, running
from bench.stdout import show

LEAST_OF_PEAK = 0.9
LEAST_KEPT = 0.9
REFUSED = "http_429"
_OWED_NOTHING_MS = 86_400_000
_MODEL = "model"
_LOOP_CLIENTS, _LOOP_REQUESTS = 16, 96
_VOCABULARY = 30_000


@dataclass(frozen=True, slots=True)
class Work:
    """What each request asks, and what it is owed."""

    input_len: int
    output_len: int
    slo: Goodput

    def requests(self, n: int, seed: int) -> list[Request]:
        drawn = Prompts(
            np.random.default_rng(seed), vocab_size=_VOCABULARY, tokenizer=None, as_text=False
        )
        return [
            drawn.request(drawn.ids(self.input_len), self.output_len, prefix=None) for _ in range(n)
        ]


@dataclass(frozen=True, slots=True)
class Point:
    """What was seen at one rate."""

    factor: float  # of what the server can do
    rate: float  # requests/s that came
    sent: int
    refused: int
    failed: int  # otherwise
    taken: int
    kept: int  # of the taken ones, their SLO
    goodput: float  # requests/s that kept it
    p90_ttft_ms: float  # of the taken ones
    p90_tpot_ms: float


def point(factor: float, rate: float, outcomes: Sequence[Outcome], slo: Goodput) -> Point:
    """Goodput is over the time in which requests came: what was taken then is answered later."""
    refused = sum(outcome.error == REFUSED for outcome in outcomes)
    failed = sum(bool(outcome.error) for outcome in outcomes) - refused
    kept = sum(map(slo.met_by, outcomes))
    good = [outcome for outcome in outcomes if outcome.ok]
    return Point(
        factor=factor,
        rate=rate,
        sent=len(outcomes),
        refused=refused,
        failed=failed,
        taken=len(outcomes) - refused - failed,
        kept=kept,
        goodput=kept / (len(outcomes) / rate),
        p90_ttft_ms=_p90([outcome.ttft_s for outcome in good]),
        p90_tpot_ms=_p90([outcome.tpot_s or 0.0 for outcome in good]),
    )


def _p90(seconds: Sequence[float]) -> float:
    return MS * float(np.percentile(seconds or [0.0], 90))


@dataclass(frozen=True, slots=True)
class Verdict:
    """Of the highest rate."""

    of_peak: float  # its goodput, of the best of all
    kept_of_taken: float
    missed: tuple[str, ...]  # a line for each bar that is


def verdict(points: Sequence[Point]) -> Verdict:
    last = max(points, key=lambda one: one.rate)
    of_peak = last.goodput / (max(one.goodput for one in points) or 1.0)
    kept = last.kept / (last.taken or 1)
    n_failed = sum(one.failed for one in points)
    bars = (
        (of_peak >= LEAST_OF_PEAK, f"goodput is {of_peak:.2f} of the best, of {LEAST_OF_PEAK}"),
        (kept >= LEAST_KEPT, f"{kept:.2f} of those taken kept the SLO, of {LEAST_KEPT}"),
        (n_failed == 0, f"{n_failed} requests were neither answered nor refused"),
    )
    return Verdict(of_peak, kept, tuple(line for holds, line in bars if not holds))


async def capacity(server: Server, work: Work) -> float:
    """Requests/s of a closed loop that is owed nothing, its second half."""
    nothing = {"ttft_ms": _OWED_NOTHING_MS, "tpot_ms": _OWED_NOTHING_MS}
    target = Target(base_url=server.url, model=_MODEL, extra_body={"slo": nothing})
    loop = Arrivals(max_concurrency=_LOOP_CLIENTS)
    await run(target, work.requests(_LOOP_REQUESTS // 2, 0), loop)
    return throughput(await run(target, work.requests(_LOOP_REQUESTS, 1), loop))


def measure(server: Server, work: Work, factors: Sequence[float], seconds: float) -> list[Point]:
    can = asyncio.run(capacity(server, work))
    show(f"a closed loop of {_LOOP_CLIENTS}: {can:.2f} requests/s")
    target = Target(base_url=server.url, model=_MODEL)
    points: list[Point] = []
    for number, factor in enumerate(factors):
        rate = factor * can
        requests = work.requests(max(1, round(rate * seconds)), 2 + number)
        arrivals = Arrivals(request_rate=rate, seed=number)
        points.append(point(factor, rate, asyncio.run(run(target, requests, arrivals)), work.slo))
        show(_line(points[-1]))
    return points


def _line(made: Point) -> str:
    return (
        f"{made.factor:5g} x = {made.rate:6.2f} requests/s: goodput {made.goodput:5.2f}, "
        f"{made.kept} of {made.taken} taken kept the SLO, {made.refused} refused, "
        f"{made.failed} failed; p90 TTFT {made.p90_ttft_ms:.0f} ms, TPOT {made.p90_tpot_ms:.1f} ms"
    )


def main(argv: Sequence[str]) -> int:
    """Returns 1 where a bar is missed. Raises NotReady where the server does not start."""
    parser = Parser(prog="python -m bench.overload", description=__doc__)
    parser.add_argument("model", nargs="?", help="as `baton serve --model` takes it [its default]")
    parser.add_argument("--seconds", type=above(0), default=30.0, help="at each rate [30]")
    parser.add_argument("--factors", type=above(0), nargs="+", default=[0.5, 0.75, 1, 2, 5])
    parser.add_argument("--ttft-ms", type=above(0), default=1000.0, help="the SLO [1000]")
    parser.add_argument("--tpot-ms", type=above(0), default=60.0, help="the SLO [60]")
    parser.add_argument("--input-len", type=positive, default=128, help="tokens [128]")
    parser.add_argument("--output-len", type=positive, default=32, help="tokens [32]")
    parser.add_argument("--flag", action="append", default=[], help="another one of the server")
    options = parser.parse_all(argv)
    slo = Goodput(ttft_ms=options.ttft_ms, tpot_ms=options.tpot_ms)
    model = () if options.model is None else ("--model", options.model)
    flags = [
        *(*model, "--served-model-name", _MODEL, "--prefill", "1", "--decode", "1"),
        *("--slo-ttft", str(options.ttft_ms), "--slo-tpot", str(options.tpot_ms)),
        *options.flag,
    ]
    with running(flags) as server:
        points = measure(
            server,
            Work(options.input_len, options.output_len, slo),
            options.factors,
            options.seconds,
        )
    told = verdict(points)
    for line in told.missed:
        show(f"missed: {line}")
    result = {**asdict(told), "points": [asdict(one) for one in points]}
    show(json.dumps({"benchmark": "overload", **result}))
    return FAILED_EXIT if told.missed else 0


if __name__ == "__main__":
    sys.exit(exit_status(main, sys.argv[1:]))
