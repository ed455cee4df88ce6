"""The highest rate per device at which a layout keeps an SLO, for many SLOs by the same runs.

No request states an SLO, so that no run depends on one: a run is judged by each. (Stated, they
would let both kinds of layout refuse what is late.) What runs cost is time: rates ascend by steps
until even the loosest SLO is lost, and only where a figure is quoted is the gap bisected.
"""

from collections.abc import Sequence
from typing import NamedTuple

from bench.search import Limits, Sample, never_rising, next_rate
from bench.simulate.layouts import Hardware, Layout, Seen, run
from bench.simulate.published import Workload

TARGET = 0.9  # share of requests that must meet an SLO
HOPELESS = 0.5  # attainment of the loosest SLO: no higher rate is tried
TOLERANCE = 0.06  # of a bisected rate


class Slo(NamedTuple):
    """Limits, both to be met."""

    ttft_s: float
    tpot_s: float

    def scaled(self, scale: float) -> "Slo":
        return Slo(self.ttft_s * scale, self.tpot_s * scale)


class Length(NamedTuple):
    """Of a run, for each part of a layout."""

    requests: int  # so that shares of them can be told apart
    seconds: float  # of arrivals, so that the long answers of the first meet those of the last


def crossing(samples: Sequence[Sample], target: float) -> float:
    """Where the curve that fits them and never rises falls to `target`, linear between rates.

    0: no rate keeps it. The highest rate, a bound, where all do.
    """
    curve = never_rising(samples)
    kept = [sample for sample in curve if sample.attainment >= target]
    if not kept:
        return 0.0
    if len(kept) == len(curve):
        return kept[-1].rate
    above, below = kept[-1], curve[len(kept)]
    share = (above.attainment - target) / (above.attainment - below.attainment)
    return above.rate + share * (below.rate - above.rate)


class Sweep:
    """One workload. Rates are requests/s per device; each is run once."""

    def __init__(
        self,
        hardware: Hardware,
        workload: Workload,
        *,
        rates: Sequence[float],
        least: Length,
        seed: int = 0,
    ) -> None:
        """`rates` ascend. Each run is `least` long in both respects."""
        self.workload = workload
        self.rates = tuple(rates)
        self._hardware = hardware
        self._least = least
        self._seed = seed
        self._seen: dict[str, dict[float, Seen]] = {}  # layout -> rate ->

    @property
    def n_runs(self) -> int:
        return sum(len(by_rate) for by_rate in self._seen.values())

    def seen(self, layout: Layout, rate: float) -> Seen:
        """Run it, if it was not."""
        by_rate = self._seen.setdefault(layout.name, {})
        if rate not in by_rate:
            all_rate = rate * layout.n_devices
            n_each = max(self._least.requests, self._least.seconds * all_rate / layout.n_parts)
            n = round(n_each * layout.n_parts)
            asks = self.workload.asks(self._hardware.model, n, all_rate, self._seed)
            by_rate[rate] = run(layout, self._hardware, asks)
        return by_rate[rate]

    def climb(self, layout: Layout, loosest: Slo) -> None:
        """Through all rates that keep the loosest SLO, and one more."""
        for rate in self.rates:
            if self.seen(layout, rate).attainment(*loosest) < HOPELESS:
                return

    def samples(self, layout: Layout, slo: Slo) -> list[Sample]:
        """Of what was run, by rate."""
        return [
            Sample(rate, seen.attainment(*slo))
            for rate, seen in sorted(self._seen.get(layout.name, {}).items())
        ]

    def goodput(self, layout: Layout, slo: Slo) -> float:
        """By what was run."""
        return crossing(self.samples(layout, slo), TARGET)

    def best(self, layouts: Sequence[Layout], slo: Slo) -> Layout:
        """By what was run; ties: the first."""
        return max(layouts, key=lambda layout: self.goodput(layout, slo))

    def bisected(self, layouts: Sequence[Layout], slo: Slo) -> Layout:
        """The best, its goodput between two rates as near as `TOLERANCE`."""
        while True:
            best = self.best(layouts, slo)
            if not self._bisect(best, slo):
                return best

    def _bisect(self, layout: Layout, slo: Slo) -> bool:
        """Whether there was anything left to run."""
        limits = Limits(
            start=self.rates[0],
            lowest=self.rates[0],
            highest=self.rates[-1],
            tolerance=TOLERANCE,
        )
        n_before = self.n_runs
        while (rate := next_rate(self.samples(layout, slo), TARGET, limits)) is not None:
            self.seen(layout, rate)
        return self.n_runs > n_before
