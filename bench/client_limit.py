"""How many events a second one client process takes in before it distorts what it measures.

    python -m bench.client_limit [--rates 2000,4000,8000,16000,32000] [--rounds 3]

A stub server, in a process of its own, writes into every event the moment at which it sent it; what
lies between that and the moment that the client notes is the path through the kernel and this
client's delay. The limit is the highest rate that keeps the delay's 99th percentile under 1 ms, in
the median of the rounds. Stub and client need a core each: where others want these too, the
scheduler's slices of milliseconds are measured, not the client (`chrt -f 10 python ...` keeps both
ahead of others). Last line JSON. Imports nothing of the engine.
"""

import asyncio
import json
import math
import statistics
import sys
import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import uvloop

from bench.arrivals import Arrivals
from bench.client import Outcome, Request, Target
from bench.flag_types import Parser, above, list_of, positive
from bench.sender import Sender, open_session
from bench.stub import started

LIMIT_MS = 1.0
GAP_S = 0.02
SECONDS = 2.0  # of a round
START_S = 0.4  # in which its streams begin
STEADY_S = 0.6  # when they run


class Round(NamedTuple):
    events_per_s: float  # that came about
    delays_ms: np.ndarray  # of every event, from when all streams run
    cpu_us: float  # of this process, an event


async def measure(base_url: str, events_per_s: float) -> Round:
    n_streams = max(1, round(events_per_s * GAP_S))
    per_stream = math.ceil(SECONDS / GAP_S)
    target = Target(base_url=base_url, model="stub", extra_body={"stub": {"gap_s": GAP_S}})
    requests = [Request(prompt=[1], max_tokens=per_stream)] * n_streams
    arrivals = Arrivals(request_rate=n_streams / START_S)  # at random: not all in step
    due = list(zip(range(n_streams), requests, arrivals.times_s(requests), strict=True))
    began, cpu_began_s = time.perf_counter(), time.process_time()
    async with open_session(target) as session:
        sender = Sender(session, target, began=began, on_outcome=lambda _: None)
        outcomes = await sender.run(due, None, asyncio.Event())
    cpu_s = time.process_time() - cpu_began_s
    sent_s, got_s = _moments(outcomes, began)
    steady = (got_s > STEADY_S) & (got_s < SECONDS)
    return Round(
        float(steady.sum()) / (SECONDS - STEADY_S),
        (got_s - sent_s)[steady] * 1e3,
        cpu_s / len(got_s) * 1e6,
    )


def _moments(outcomes: Sequence[Outcome], began: float) -> tuple[np.ndarray, np.ndarray]:
    """When each event was sent and when it was noted, in seconds after `began`."""
    if failed := [outcome for outcome in outcomes if not outcome.ok]:
        raise OSError(f"{len(failed)} streams failed: {failed[0].error} {failed[0].message}")
    sent_ns = [int(word) for outcome in outcomes for word in outcome.text.split()]
    got_s = [at_s for outcome in outcomes for at_s in outcome.chunk_times_s]
    return np.array(sent_ns) / 1e9 - began, np.array(got_s)


def main(argv: Sequence[str]) -> int:
    parser = Parser(prog="python -m bench.client_limit", description=__doc__)
    parser.add_argument(
        "--rates",
        type=list_of(above(0)),
        default=[2000.0, 4000.0, 8000.0, 16000.0, 32000.0],
        help="events/s [2000,4000,8000,16000,32000]",
    )
    parser.add_argument("--rounds", type=positive, default=3)
    options = parser.parse_all(argv)
    rates: list[float] = options.rates
    p99s: dict[float, list[float]] = {rate: [] for rate in rates}
    cpu_us: dict[float, list[float]] = {rate: [] for rate in rates}
    with started() as base_url:
        for _ in range(options.rounds):
            for rate in rates:
                got = uvloop.run(measure(base_url, rate))
                median, p99 = np.percentile(got.delays_ms, (50, 99))
                p99s[rate].append(float(p99))
                cpu_us[rate].append(got.cpu_us)
                print(
                    f"{rate:8.0f} events/s ({got.events_per_s:8.0f}): median {median:6.3f} ms "
                    f"p99 {p99:7.3f} ms, {got.cpu_us:5.1f} us of CPU an event"
                )
    medians = {rate: statistics.median(values) for rate, values in p99s.items()}
    kept = [rate for rate, p99 in medians.items() if p99 < LIMIT_MS]
    result = {
        "benchmark": "client_limit",
        "events_per_s": max(kept, default=0),
        "p99_ms": {f"{rate:.0f}": round(p99, 3) for rate, p99 in medians.items()},
        "cpu_us": {f"{rate:.0f}": round(statistics.median(us), 1) for rate, us in cpu_us.items()},
    }
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
