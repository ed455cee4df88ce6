"""A load that a simulated cluster was measured under is predicted as it was; another one is not."""

from dataclasses import dataclass

import msgspec
import numpy as np
import pytest

from bench.client import Outcome
from bench.measures import Goodput
from bench.simulate import prediction
from bench.simulate.costs_file import APART, CostsFile, PrefillFields
from bench.simulate.timed import Ask, Run, Served, attainment
from bench.store import Point, Setting
from tests.unit.bench.simulate.devices import DEVICE

FILE = msgspec.structs.replace(DEVICE, n_pages=500, measured={"pools": APART})
SLO = Goodput(ttft_ms=120, tpot_ms=20)


def outcomes_of(run: Run) -> tuple[Outcome, ...]:
    """As a client would have noted them, had it been there."""
    made: list[Outcome] = []
    for index, one in enumerate(run.served):
        assert one.ttft_s is not None
        assert one.tpot_s is not None
        n = one.ask.output_tokens
        times_s = one.ask.at_s + one.ttft_s + one.tpot_s * np.arange(n)
        made.append(
            Outcome(
                index=index,
                scheduled_s=one.ask.at_s,
                sent_s=one.ask.at_s,
                chunk_times_s=times_s.tolist(),
                input_tokens=len(one.ask.prompt),
                output_tokens=n,
            )
        )
    return tuple(made)


def point(file: CostsFile, rate: float, number: int) -> Point:
    """Measured at a server that costs just that."""
    run = prediction.simulate(prediction.poisson(rate, 60, 128, 8, seed=number), file)
    setting = Setting(part="compare", server="split", round=number, rate=rate, n_requests=60)
    return Point(setting=setting, began=number, outcomes=outcomes_of(run))


def test_what_was_made_by_the_same_costs_is_predicted() -> None:
    points = [point(FILE, rate, number) for rate in (3.0, 12.0) for number in range(2)]
    found = list(prediction.rows(points, {"split": FILE}, {"split": SLO}))
    assert [row.rate for row in found] == [3.0, 12.0]
    for row in found:
        assert row.n_requests == 120
        assert row.predicted == pytest.approx(row.measured)
        assert row.predicted_ms["ttft"] == pytest.approx(row.measured_ms["ttft"])
        assert row.holds
    assert found[1].is_telling
    assert not prediction.verdict(found)  # one rate tells too little


def test_other_costs_fail() -> None:
    slower = msgspec.structs.replace(
        FILE, prefill=PrefillFields(fixed_s=0.002, per_token_s=6e-4, per_pair_s=1e-8)
    )
    points = [point(FILE, 10.0, 0)]
    (row,) = prediction.rows(points, {"split": slower}, {"split": SLO})
    assert row.off < -prediction.TOLERANCE
    assert not row.holds


@dataclass
class Rounds:
    """A row by what its rounds say."""

    measured: tuple[float, ...]
    predicted: tuple[float, ...]

    def row(self, setup: str = "split", rate: float = 1.0) -> prediction.Row:
        return prediction.Row(
            setup=setup,
            rate=rate,
            n_requests=1000,
            measured=self.measured,
            predicted=self.predicted,
            measured_ms={},
            predicted_ms={},
        )


def test_a_prediction_holds_within_5_points_or_the_spread_of_the_rounds() -> None:
    assert Rounds((0.80, 0.81, 0.82), (0.85, 0.85, 0.90)).row().holds
    assert not Rounds((0.80, 0.81, 0.82), (0.87, 0.88, 0.87)).row().holds
    assert Rounds((0.75, 0.81, 0.85), (0.88, 0.88, 0.90)).row().holds


def test_the_verdict_wants_two_telling_rates_of_each_set_up() -> None:
    high, low = Rounds((0.99,), (0.99,)), Rounds((0.7,), (0.7,))
    both = [low.row(rate=1), low.row(rate=2), high.row(rate=3)]
    assert prediction.verdict(both)
    assert not prediction.verdict([*both, low.row("colocated"), high.row("colocated")])
    assert not prediction.verdict([*both, Rounds((0.7,), (0.9,)).row(rate=4)])
    assert not prediction.verdict([])


def served(at_s: float, ttft_s: float, e2e_s: float) -> Served:
    ask = Ask(at_s=at_s, prompt=(1,) * 100, output_tokens=3)
    return Served(
        ask=ask, ttft_s=ttft_s, second_token_s=None, e2e_s=e2e_s, cached_tokens=0, refused=False
    )


def test_pools_slow_each_other_down_by_as_much_as_they_meet() -> None:
    slowdowns = {"prefill_slowdown": 1.2, "decode_slowdown": 1.5}
    file = msgspec.structs.replace(FILE, measured={**FILE.measured, **slowdowns})
    # From 1 to 4 s and from 6 to 8 s of 10 there are streams; prompts take 3 * about 42 ms.
    spans = (served(0, 1, 3), served(1, 1, 3), served(5, 1, 3))
    run = Run(served=spans, seconds=10.0, loads=())
    slowed = prediction.beside_each_other(file, run)
    assert slowed.prefill.per_token_s == pytest.approx(4e-4 * (1 + 0.2 * 0.5))
    busy = 3 * file.costs.prefill.seconds(100, 5050) / 10
    assert slowed.decode.fixed_s == pytest.approx(0.007 * (1 + 0.5 * busy))
    assert prediction.beside_each_other(FILE, run) == FILE


def test_a_request_that_failed_is_as_long_as_the_others() -> None:
    well = Outcome(
        index=0, scheduled_s=2.0, sent_s=2.5, chunk_times_s=[3.0], input_tokens=30, output_tokens=1
    )
    failed = Outcome(index=1, scheduled_s=1.0, sent_s=1.0, error="http_429")
    asks = prediction.asks_of([well, failed])
    assert [(ask.at_s, len(ask.prompt), ask.output_tokens) for ask in asks] == [
        (1.0, 30, 1),
        (2.5, 30, 1),
    ]
    assert asks[0].prompt != asks[1].prompt
    with pytest.raises(ValueError, match="cannot be simulated"):
        prediction.asks_of([failed])


def test_rates_are_where_so_many_are_in_time() -> None:
    rates = prediction.rates_for((0.9, 0.7), FILE, SLO, 128, 2, n_requests=40)
    assert rates == sorted(rates)
    run = prediction.simulate(prediction.poisson(rates[1], 100, 128, 2, seed=99), FILE)
    assert attainment(run, SLO) == pytest.approx(0.7, abs=0.15)


def test_every_limit_of_an_slo_counts() -> None:
    run = Run(served=(served(0, 0.1, 0.3), served(1, 0.1, 0.9)), seconds=2.0, loads=())
    assert attainment(run, Goodput(ttft_ms=100)) == 1
    assert attainment(run, Goodput(tpot_ms=150)) == 0.5  # 100 ms and 400 ms
    assert attainment(run, Goodput(ttft_ms=100, e2el_ms=500)) == 0.5
    assert attainment(run, Goodput(ttft_ms=99)) == 0


def test_an_slo_that_every_rate_meets_has_no_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prediction, "GRID_MOST", 2)
    with pytest.raises(ValueError, match="is met by more than"):
        prediction.rates_for((0.5,), FILE, Goodput(ttft_ms=1e6), 16, 1, n_requests=3)
