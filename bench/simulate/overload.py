"""Early rejection under overload: by no load, by what there is now, by what is predicted.

    python -m bench.simulate.overload

Four prefill and four decode workers, under twice the highest rate at which nine of ten requests
keep both their targets where nobody is refused. Requests state their targets; the gateway refuses
by each of its policies in turn (`--admission`), and does not know how long answers will be. Costs
are those of OPT-13B on one A100 each (`bench.simulate.published`); the traffic is made up: long
prompts, so that what is let in reaches the decode workers seconds later. The last line is JSON.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from bench import reasons
from bench.flag_types import Parser
from bench.measures import MS, Goodput
from bench.simulate.published import (
    A100_80G,
    OPT_13B,
    PAGE_TOKENS,
    LogNormal,
    costs_of,
    n_pages,
)
from bench.simulate.shape import Shape
from bench.simulate.timed import Ask, Run, attainment, serve
from common.ids import Role
from common.values import AdmissionPolicy

POLICIES: tuple[AdmissionPolicy, ...] = get_args(AdmissionPolicy)
KEPT = 0.9  # of all requests, at a rate that keeps the targets
OVERLOAD = 2.0
LOWEST_RATE, HIGHEST_RATE, ROUNDS = 5.0, 9.0, 3
WARM_S = 30.0  # of a run, before its loads count
GAIN = 1.1  # in goodput, of predicting over refusing nobody


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """Independent requests, Poisson arrivals. Lengths are log-normal with these means."""

    prompt_tokens: int = 2500
    prompt_sigma: float = 0.3
    output_tokens: int = 150
    output_sigma: float = 0.6
    max_tokens: int = 1024
    ttft_s: float = 10.0
    tpot_s: float = 0.04
    seconds: float = 130.0
    seed: int = 0

    def asks(self, rate: float) -> list[Ask]:
        """One seed is one sequence of lengths at every rate."""
        n = int(rate * self.seconds)
        arrivals_s = np.random.default_rng((self.seed, 1)).exponential(1 / rate, n).cumsum()
        prompts = self._lengths(n, self.prompt_tokens, self.prompt_sigma, 2)
        outputs = self._lengths(n, self.output_tokens, self.output_sigma, 3)
        return [
            Ask(
                at_s=float(at_s),
                prompt=(0,) * n_prompt,
                output_tokens=min(n_output, self.max_tokens),
                max_tokens=self.max_tokens,
                ttft_s=self.ttft_s,
                tpot_s=self.tpot_s,
            )
            for at_s, n_prompt, n_output in zip(arrivals_s, prompts, outputs, strict=True)
        ]

    def _lengths(self, n: int, mean: int, sigma: float, stream: int) -> list[int]:
        rng = np.random.default_rng((self.seed, stream))
        return np.maximum(2, LogNormal.of_mean(mean, sigma).tokens(rng, n)).tolist()

    @property
    def slo(self) -> Goodput:
        """Both its targets."""
        return Goodput(ttft_ms=self.ttft_s * MS, tpot_ms=self.tpot_s * MS)


SHAPE = Shape(
    prefills=4,
    decodes=4,
    prefill_pages=n_pages(OPT_13B, A100_80G),
    decode_pages=n_pages(OPT_13B, A100_80G),
    page_tokens=PAGE_TOKENS,
    chunk_tokens=512,
    budget_tokens=512,
    max_num_seqs=256,
    max_waiting=100_000,
    caching=False,
    disaggregate="always",
    costs=costs_of(OPT_13B, A100_80G),
)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Of one policy."""

    goodput: float  # requests a second that met both targets
    refused: float  # share of all
    missed: float  # share of all: taken, and not served as they are owed
    queued_tokens: float  # of prompts, in the mean
    queued_deviation: float  # of the same, over time
    held_pages: float  # by decode workers
    held_deviation: float


def keeps(traffic: Traffic, rate: float) -> bool:
    """Nobody is refused, and nine of ten are served as they are owed."""
    run = serve(traffic.asks(rate), replace(SHAPE, admission="none"))
    return attainment(run, traffic.slo) >= KEPT


def highest_rate(traffic: Traffic) -> float:
    """That is kept, to within a tenth. Raises ValueError if the lowest is not."""
    low, high = LOWEST_RATE, HIGHEST_RATE
    if not keeps(traffic, low):
        raise ValueError(f"{low:g} requests/s are too many already")
    for _ in range(ROUNDS):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if keeps(traffic, middle) else (low, middle)
    return low


@dataclass(frozen=True, kw_only=True)
class Pools:
    """Both pools' load over time [T times], up to the last arrival."""

    at_s: NDArray[np.float64]
    queued_tokens: NDArray[np.int64]  # of prompts, not computed
    held_pages: NDArray[np.int64]  # by decode workers: their passes take as long as that is much

    @staticmethod
    def of(run: Run) -> "Pools":
        at_s = run.loads[0].at_s
        seen = at_s <= run.served[-1].ask.at_s
        queued = [one.queued_tokens for one in run.loads if one.role is Role.PREFILL]
        held = [one.held_pages for one in run.loads if one.role is Role.DECODE]
        return Pools(
            at_s=at_s[seen],
            queued_tokens=np.sum(queued, axis=0)[seen],
            held_pages=np.sum(held, axis=0)[seen],
        )


def outcome(traffic: Traffic, run: Run) -> Outcome:
    """Loads count from when the pools have filled."""
    pools = Pools.of(run)
    warm = pools.at_s >= min(WARM_S, pools.at_s[-1])
    queued, held = pools.queued_tokens[warm], pools.held_pages[warm]
    end_s = run.served[-1].ask.at_s
    n, n_kept = len(run.served), sum(one.meets(traffic.slo) for one in run.served)
    n_refused = sum(one.refused for one in run.served)
    return Outcome(
        goodput=n_kept / end_s,
        refused=n_refused / n,
        missed=(n - n_kept - n_refused) / n,
        queued_tokens=float(queued.mean()),
        queued_deviation=float(queued.std()),
        held_pages=float(held.mean()),
        held_deviation=float(held.std()),
    )


def plot(runs: dict[str, Run], path: Path) -> None:
    """Both pools' load over time, a policy a row."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 7), layout="constrained")
    rows = figure.subplots(len(runs), 1, sharex=True, squeeze=False)
    for (axes,), (policy, run) in zip(rows, runs.items(), strict=True):
        pools = Pools.of(run)
        axes.plot(pools.at_s, pools.queued_tokens / 1e3, "C0", lw=0.8)
        axes.set_ylabel("thousand tokens\nof prompts queued", color="C0")
        axes.set_ylim(0, None)
        axes.set_title(f"--admission {policy}", loc="left")
        other = axes.twinx()
        other.plot(pools.at_s, pools.held_pages / 1e3, "C1", lw=0.8)
        other.set_ylabel("thousand pages\nheld by decode", color="C1")
        other.set_ylim(0, SHAPE.decodes * SHAPE.decode_pages / 1e3)
    rows[-1][0].set_xlabel("seconds")
    figure.savefig(path, dpi=100)


def passed(outcomes: dict[str, Outcome]) -> bool:
    """Predicting gives more than refusing nobody, and swings less than looking at the present."""
    none, load, predicted = (outcomes[policy] for policy in ("none", "load", "predicted"))
    return (
        predicted.goodput >= GAIN * none.goodput
        and predicted.queued_deviation < load.queued_deviation
        and predicted.held_deviation < load.held_deviation
    )


def main(argv: Sequence[str]) -> int:
    """Returns 1 unless predicting gives 1.1 times the goodput of refusing nobody, and the loads of
    both pools deviate less over time than where the present load decides."""
    parser = Parser(prog="python -m bench.simulate.overload", description=main.__doc__)
    for name, value in asdict(Traffic()).items():
        parser.add_argument("--" + name.replace("_", "-"), type=type(value), default=value)
    parser.add_argument("--plot", type=Path, help="both pools' load over time, as PNG")
    flags = vars(parser.parse_all(argv))
    path: Path | None = flags.pop("plot")
    traffic = Traffic(**flags)
    try:
        if path is not None:
            reasons.must_be_drawable("--plot", path)
        rate = OVERLOAD * highest_rate(traffic)
    except ValueError as error:
        parser.error(str(error))
    asks = traffic.asks(rate)
    print(f"{len(asks)} requests at {rate:.2f}/s, {OVERLOAD:g} x the highest rate that is kept")
    runs = {policy: serve(asks, replace(SHAPE, admission=policy)) for policy in POLICIES}
    outcomes = {policy: outcome(traffic, run) for policy, run in runs.items()}
    print(f"{'':18}" + "".join(f"{policy:>12}" for policy in POLICIES))
    for name in asdict(outcomes["none"]):
        values = (getattr(outcomes[policy], name) for policy in POLICIES)
        print(f"{name:18}" + "".join(f"{value:12,.5g}" for value in values))
    if path is not None:
        plot(runs, path)
    result = {
        "traffic": asdict(traffic),
        "rate": round(rate, 3),
        "outcomes": {policy: asdict(one) for policy, one in outcomes.items()},
        "passed": passed(outcomes),
    }
    print(json.dumps({"benchmark": "overload", **result}))
    return 0 if passed(outcomes) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
