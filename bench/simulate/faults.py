"""Hunt for broken laws: the real cores, in clusters and weathers that seeds draw.

    python -m bench.simulate.faults --seeds 2000
    python -m bench.simulate.faults --seed 1234 --trace

Each seed is one cluster's life (`bench.simulate.scenario`). A seed that breaks a law is printed;
it replays exactly. The last line is JSON.
"""

import argparse
import json
import os
import struct
import sys
import time
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

from bench.simulate.process import Process, Watch
from bench.simulate.scenario import Outcome, live, scenario

BATCH = 20  # seeds that a process is given at once
FAULTS = (
    "lost",
    "repeated",
    "delayed",
    "reordered",
    "late",
    "unsent",
    "not_pulled",
    "slow",
    "raised",
    "hung",
    "crashed",
    "preempted",
    "spilled",
    "_cut_some",
    "_pause_some",
    "_kill_some",
    "_drain_some",
    "restart_gateway",
)


@dataclass(frozen=True, kw_only=True)
class Life:
    """Of one seed. `broken`: the law or the error, in one line; None: every law held."""

    seed: int
    digest: int  # of every step: equal lives have equal digests
    broken: str | None
    outcome: Outcome | None


@dataclass(kw_only=True)
class Recorder:
    """Follows a life: its digest, and where it was when something broke."""

    digest: int = 0
    _last: tuple[int, str, float] | None = None  # step, of whom, at which second

    def watch(self, process: Process, events: Sequence[Any], actions: Sequence[Any]) -> None:
        now, instance = process.world.clock.now, process.instance
        self._last = (process.world.n_steps, instance, now)
        step = struct.pack("<dII", now, len(events), len(actions)) + instance.encode()
        self.digest = zlib.crc32(step, self.digest)

    @property
    def where(self) -> str:
        if self._last is None:
            return "as it began"
        step, instance, now = self._last
        return f"after step {step}, of {instance} at {now:.6f} s"


def trace(process: Process, events: Sequence[Any], actions: Sequence[Any]) -> None:
    """Print a step."""
    print(f"{process.world.clock.now:.6f} {process.instance}")
    for event in events:
        print(f"    <- {event}")
    for action in actions:
        print(f"    -> {action}")


def run(seed: int, watches: Sequence[Watch] = ()) -> Life:
    """One life, whatever becomes of it."""
    recorder = Recorder()
    outcome, broken = None, None
    try:
        outcome = live(scenario(seed), (*watches, recorder.watch))
    except Exception as error:  # noqa: BLE001  any: a core that raises is what is hunted
        broken = f"{recorder.where}: {type(error).__name__}: {error}"
    return Life(seed=seed, digest=recorder.digest, broken=broken, outcome=outcome)


def run_all(seeds: Sequence[int]) -> list[Life]:
    return [run(seed) for seed in seeds]


def hunt(seeds: Iterable[int]) -> Life | None:
    """The first of them that breaks a law."""
    lives = map(run, seeds)
    return next((life for life in lives if life.broken is not None), None)


def lives(seeds: Sequence[int], processes: int) -> Iterator[Life]:
    """In the order of the seeds."""
    if processes == 1:
        yield from map(run, seeds)
        return
    batches = [seeds[at : at + BATCH] for at in range(0, len(seeds), BATCH)]
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        for batch in pool.map(run_all, batches):
            yield from batch


def summary(all_lives: Iterable[Life], began: float) -> dict[str, Any]:
    """Prints what broke; returns what was seen."""
    counts: Counter[str] = Counter()
    clients: Counter[str] = Counter()
    broken: list[int] = []
    n_lives = digest = 0
    for life in all_lives:
        n_lives += 1
        digest = zlib.crc32(life.digest.to_bytes(4, "little"), digest)
        if life.broken is not None:
            broken.append(life.seed)
            print(f"seed {life.seed}: {life.broken}", flush=True)
            print(f"    python -m bench.simulate.faults --seed {life.seed} --trace", flush=True)
        outcome = life.outcome
        if outcome is not None:
            counts += outcome.counts
            for name in ("answered", "refused", "cut_off", "quitted", "steps", "virtual_s"):
                clients[name] += getattr(outcome, name)
    return {
        "benchmark": "faults",
        "seeds": n_lives,
        "broken": broken,
        "digest": f"{digest:08x}",
        **{name: round(n) for name, n in clients.items()},
        "faults": {name.strip("_"): counts[name] for name in FAULTS},
        "seconds": round(time.monotonic() - began, 1),
        "passed": not broken,
    }


def main(argv: Sequence[str]) -> int:
    """Hunt for broken laws; returns 1 if one was found."""
    began = time.monotonic()
    parser = argparse.ArgumentParser(
        allow_abbrev=False, prog="python -m bench.simulate.faults", description=main.__doc__
    )
    parser.add_argument("--seeds", type=int, default=200, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--seed", type=int, help="this one alone")
    parser.add_argument("--trace", action="store_true", help="print every step (with --seed)")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    args = parser.parse_args(argv)
    if args.seed is not None:
        watches = (trace,) if args.trace else ()
        print(scenario(args.seed))
        found = summary([run(args.seed, watches)], began)
    else:
        seeds = range(args.first, args.first + args.seeds)
        found = summary(lives(seeds, args.processes), began)
    print(json.dumps(found))
    return 0 if found["passed"] else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
