"""A load that was measured, and the same load simulated: what both say of attainment. Pure.

Prompts have the lengths, and come at the times, that the client saw; their tokens are other random
ones, so nothing that they shared is shared here. Must not measure anything.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import median
from typing import Literal, TypeVar, cast

import msgspec
import numpy as np

from bench import measures
from bench.client import Outcome
from bench.measures import Goodput
from bench.simulate.costs_file import APART, CostsFile, DecodeFields, PrefillFields
from bench.simulate.shape import Shape
from bench.simulate.timed import Ask, Run, attainment, serve
from bench.store import Point

TOLERANCE = 0.05  # of attainment, 0 to 1
TELLING = (0.5, 0.95)  # measured attainment between them tells most
PERCENTILES = (50, 90, 99)
_VOCABULARY = 30_000
GRID_FROM, GRID_STEP, GRID_MOST = 0.15, 1.3, 20  # of the rates that are tried
GRID_REQUESTS = 200  # at each
Metric = Literal["ttft", "tpot"]
Fields = TypeVar("Fields", PrefillFields, DecodeFields)


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One rate at one set-up. Attainment 0 to 1, one a round; percentiles in ms, of all rounds."""

    setup: str
    rate: float
    n_requests: int  # of all rounds
    measured: tuple[float, ...]
    predicted: tuple[float, ...]
    measured_ms: dict[Metric, tuple[float, ...]]
    predicted_ms: dict[Metric, tuple[float, ...]]

    @property
    def off(self) -> float:
        """What is predicted less what is measured, of the medians."""
        return median(self.predicted) - median(self.measured)

    @property
    def spread(self) -> float:
        """Of the measured rounds."""
        return max(self.measured) - min(self.measured)

    @property
    def holds(self) -> bool:
        return abs(self.off) <= max(TOLERANCE, self.spread)

    @property
    def is_telling(self) -> bool:
        low, high = TELLING
        return low <= median(self.measured) <= high


def shape_of(file: CostsFile) -> Shape:
    """The cluster that was profiled: one worker a pool."""
    told = file.measured
    budget_tokens = int(told.get("budget_tokens", 512))
    return Shape(
        prefills=1 if told.get("pools") == APART else 0,
        decodes=1,
        prefill_pages=file.n_pages,
        decode_pages=file.n_pages,
        page_tokens=file.page_tokens,
        chunk_tokens=int(told.get("prefill_chunk_tokens", 512)),
        budget_tokens=budget_tokens,
        decode_chunk_tokens=int(told.get("decode_chunk_tokens", 128)),
        decode_budget_tokens=budget_tokens,
        max_num_seqs=int(told.get("max_num_seqs", 64)),
        costs=replace(file.costs, overlaps=True),
        disaggregate="always",
        request_s=file.request_s,
        token_s=file.token_s,
    )


def asks_of(outcomes: Sequence[Outcome], seed: int = 0) -> list[Ask]:
    """In the order of sending. One that failed is taken for as long as the others are."""
    well = [outcome for outcome in outcomes if outcome.ok]
    if not well:
        raise ValueError("a point where no request ended well cannot be simulated")
    usual_prompt = round(median(outcome.input_tokens for outcome in well))
    usual_output = round(median(outcome.output_tokens for outcome in well))
    rng = np.random.default_rng(seed)
    return [
        Ask(
            at_s=outcome.sent_s,
            prompt=_tokens(rng, outcome.input_tokens or usual_prompt),
            output_tokens=outcome.output_tokens or usual_output,
        )
        for outcome in sorted(outcomes, key=lambda outcome: outcome.sent_s)
    ]


def poisson(rate: float, n_requests: int, n_prompt: int, n_output: int, seed: int = 0) -> list[Ask]:
    """Equal requests, before any were measured."""
    rng = np.random.default_rng(seed)
    times_s = np.cumsum(rng.exponential(1 / rate, n_requests)).tolist()
    return [
        Ask(at_s=at_s, prompt=_tokens(rng, n_prompt), output_tokens=n_output) for at_s in times_s
    ]


def _tokens(rng: np.random.Generator, n: int) -> tuple[int, ...]:
    return tuple(rng.integers(0, _VOCABULARY, n).tolist())


def simulate(asks: Sequence[Ask], file: CostsFile) -> Run:
    """With what pools on one machine do to each other: what is slowed down by as much as it meets
    the other, in the mean of a first run."""
    run = serve(asks, shape_of(file))
    slowed = beside_each_other(file, run)
    return run if slowed == file else serve(asks, shape_of(slowed))


def beside_each_other(file: CostsFile, run: Run) -> CostsFile:
    """The same costs, under the load of that run.

    `CostsFile.measured` has `prefill_slowdown`, of a pass beside streams that run all the time, and
    `decode_slowdown`, of a step beside prompts that are computed all the time. What a step takes
    from the other pool (memory bandwidth, the turns of whoever sends its tokens) is nearly the same
    for one sequence as for several: so it is time that counts, and not tokens.
    """
    shares = {"prefill": _decoding(run), "decode": _computing_prompts(run, file)}
    prefill_x, decode_x = (
        1 + (float(file.measured.get(f"{role}_slowdown", 1.0)) - 1) * share
        for role, share in shares.items()
    )
    return msgspec.structs.replace(
        file, prefill=_times(file.prefill, prefill_x), decode=_times(file.decode, decode_x)
    )


def _times(fields: Fields, factor: float) -> Fields:
    """All its seconds."""
    slower = {name: value * factor for name, value in msgspec.structs.asdict(fields).items()}
    return type(fields)(**slower)


def _decoding(run: Run) -> float:
    """The share of the time in which somebody is between first and last token: 0 to 1."""
    spans = sorted(
        (one.ask.at_s + one.ttft_s, one.ask.at_s + one.e2e_s)
        for one in run.served
        if one.ttft_s is not None and one.e2e_s is not None
    )
    total_s = until_s = 0.0
    for begin_s, end_s in spans:
        total_s += max(0.0, end_s - max(begin_s, until_s))
        until_s = max(until_s, end_s)
    return total_s / run.seconds if run.seconds else 0.0


def _computing_prompts(run: Run, file: CostsFile) -> float:
    """The share of the time in which prompts are computed: 0 to 1."""
    lengths = [len(one.ask.prompt) for one in run.served]
    busy_s = sum(file.costs.prefill.seconds(n, n * (n + 1) / 2) for n in lengths)
    return min(1.0, busy_s / run.seconds) if run.seconds else 0.0


def row(points: Sequence[Point], file: CostsFile, slo: Goodput) -> Row:
    """`points`: those of one set-up and rate, one a round."""
    runs = [simulate(asks_of(point.outcomes), file) for point in points]
    setting = points[0].setting
    return Row(
        setup=setting.server,
        rate=cast("float", setting.rate),
        n_requests=sum(len(point.outcomes) for point in points),
        measured=tuple(measures.attainment(point.outcomes, slo) for point in points),
        predicted=tuple(attainment(run, slo) for run in runs),
        measured_ms=_percentiles_ms([o for point in points for o in point.outcomes if o.ok]),
        predicted_ms=_percentiles_ms([one for run in runs for one in run.served]),
    )


def _percentiles_ms(
    seen: "Sequence[Outcome] | Sequence[object]",
) -> dict[Metric, tuple[float, ...]]:
    """Of whoever has a `ttft_s` and a `tpot_s`."""
    names: tuple[Metric, ...] = ("ttft", "tpot")
    found: dict[Metric, tuple[float, ...]] = {}
    for name in names:
        values_s = [value for one in seen if (value := getattr(one, f"{name}_s")) is not None]
        found[name] = tuple((np.percentile(values_s, PERCENTILES) * measures.MS).tolist())
    return found


def rows(
    points: Sequence[Point], files: "dict[str, CostsFile]", slos: "dict[str, Goodput]"
) -> Iterator[Row]:
    """By set-up, then by rate."""
    for setup, file in files.items():
        own = [p for p in points if p.setting.server == setup and p.setting.rate is not None]
        for rate in sorted({cast("float", point.setting.rate) for point in own}):
            yield row([p for p in own if p.setting.rate == rate], file, slos[setup])


def verdict(found: Sequence[Row]) -> bool:
    """Every rate holds, and each set-up has two that tell."""
    telling = [
        sum(one.is_telling for one in found if one.setup == setup)
        for setup in {one.setup for one in found}
    ]
    return bool(found) and all(one.holds for one in found) and min(telling) >= 2


def alone(file: CostsFile, n_prompt: int, n_output: int) -> tuple[float, float]:
    """TTFT and TPOT of one request with nothing beside it, in ms."""
    (one,) = serve(poisson(1.0, 1, n_prompt, n_output), shape_of(file)).served
    if one.ttft_s is None or one.tpot_s is None:
        raise ValueError(f"a prompt of {n_prompt} tokens is refused")
    return one.ttft_s * measures.MS, one.tpot_s * measures.MS


def rates_for(
    targets: Sequence[float],
    file: CostsFile,
    slo: Goodput,
    n_prompt: int,
    n_output: int,
    *,
    n_requests: int = GRID_REQUESTS,
) -> list[float]:
    """Requests/s at which so many (0 to 1) of equal requests meet the SLO, as predicted. Raises
    ValueError where more do at any rate that is tried."""
    grid: list[float] = []
    curve: list[float] = []
    rate = GRID_FROM / file.costs.prefill.seconds(n_prompt, n_prompt**2 / 2)
    while not curve or curve[-1] > min(targets):
        asks = poisson(rate, n_requests, n_prompt, n_output, seed=len(grid))
        grid.append(rate)
        curve.append(min([attainment(simulate(asks, file), slo), *curve[-1:]]))
        rate *= GRID_STEP
        if len(grid) > GRID_MOST:
            raise ValueError(f"{slo} is met by more than {min(targets):.0%} at {rate:.3g} req/s")
    found = np.interp([-target for target in targets], [-one for one in curve], grid)
    return [float(f"{one:.3g}") for one in found]
