"""The machinery of DistServe's comparison on a model that is small enough to be quick."""

import numpy as np
import pytest

from bench.search import Sample
from bench.simulate import distserve
from bench.simulate.distserve import Compared, Grid, is_claimed_shape, ratios
from bench.simulate.goodput import Length, Slo, Sweep, crossing
from bench.simulate.layouts import Hardware, Layout, run
from bench.simulate.published import A100_80G, LINKS, LogNormal, Model, Workload

SMALL = Model(name="small", n_parameters=12e9, n_layers=40, hidden=5120, context_tokens=512)
HARDWARE = Hardware(model=SMALL, device=A100_80G, link=LINKS["nvlink"])
WORKLOAD = Workload(
    name="short",
    prompt=LogNormal(mean=5.5, deviation=0.2),
    output=LogNormal(mean=1.5, deviation=0.3),
    ttft_s=1.0,
    tpot_s=0.1,
)
COLOCATED = Layout(name="colocated", prefills=0, decodes=2, chunk_tokens=512)
SPLIT = Layout(name="split", prefills=1, decodes=1, chunk_tokens=512)


def sweep(*rates: float) -> Sweep:
    return Sweep(HARDWARE, WORKLOAD, rates=rates, least=Length(requests=12, seconds=0.5))


def test_goodput_is_where_the_curve_falls_to_the_target() -> None:
    assert crossing([Sample(1, 1.0), Sample(2, 0.95), Sample(3, 0.85)], 0.9) == pytest.approx(2.5)
    assert crossing([Sample(1, 0.8), Sample(2, 0.1)], 0.9) == 0.0
    assert crossing([Sample(1, 1.0), Sample(2, 0.9)], 0.9) == 2.0
    assert crossing([], 0.9) == 0.0


def test_one_device_is_as_slow_for_one_request_however_it_is_laid_out() -> None:
    asks = WORKLOAD.asks(SMALL, 8, 0.1, seed=0)
    together, split = run(COLOCATED, HARDWARE, asks), run(SPLIT, HARDWARE, asks)
    prompt_s = HARDWARE.costs(1).prefill.seconds(245, 245**2 / 2)
    assert np.median(together.ttft_s) == pytest.approx(prompt_s, rel=0.2)
    assert np.median(split.ttft_s) == pytest.approx(prompt_s, rel=0.2)
    step_s = HARDWARE.costs(1).decode.seconds(245, 1)
    assert np.median(together.tpot_s) == pytest.approx(step_s, rel=0.1)


def test_a_queue_that_grows_meets_no_slo() -> None:
    asks = WORKLOAD.asks(SMALL, 100, 60.0, seed=0)
    seen = run(SPLIT, HARDWARE, asks)
    assert not seen.keeps_up
    assert seen.attainment(1e9, 1e9) == 0.0


def test_a_rate_is_run_once_and_judged_by_each_slo() -> None:
    runs = sweep(1.0, 4.0)
    runs.climb(SPLIT, Slo(10.0, 10.0))
    assert runs.n_runs == 2
    assert runs.goodput(SPLIT, Slo(10.0, 10.0)) == 4.0
    assert runs.goodput(SPLIT, Slo(10.0, 0.001)) == 0.0
    assert runs.n_runs == 2


def test_no_higher_rate_is_tried_than_the_first_hopeless_one() -> None:
    runs = sweep(1.0, 2.0, 4.0)
    runs.climb(SPLIT, Slo(10.0, 0.001))
    assert runs.n_runs == 1


def test_what_is_quoted_is_bisected() -> None:
    runs = sweep(1.0, 64.0)
    loose = Slo(0.2, 0.05)
    best = runs.bisected([COLOCATED, SPLIT], loose)
    assert 1.0 < runs.goodput(best, loose) < 64.0
    kept = [s.rate for s in runs.samples(best, loose) if s.attainment >= 0.9]
    lost = [s.rate for s in runs.samples(best, loose) if s.attainment < 0.9]
    assert min(lost) / max(kept) < 1.1


def test_ratios_are_of_the_best_of_both(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distserve, "COLOCATED", (COLOCATED,))
    monkeypatch.setattr(distserve, "DISAGGREGATED", (SPLIT,))
    runs = sweep(1.0, 8.0)
    for layout in (COLOCATED, SPLIT):
        runs.climb(layout, Slo(5.0, 5.0))
    grid = Grid(ttfts_s=(0.001, 5.0), tpots_s=(0.001, 5.0), strict=Slo(5.0, 5.0))
    found = ratios(runs, grid)
    expected = runs.goodput(SPLIT, Slo(5.0, 5.0)) / runs.goodput(COLOCATED, Slo(5.0, 5.0))
    assert np.isnan(found[0, 0])
    assert found[1, 1] == pytest.approx(expected)


def compared(colocated_rate: float, disaggregated_rate: float) -> Compared:
    return Compared(
        slo=Slo(1.0, 0.03),
        colocated="colocated",
        colocated_rate=colocated_rate,
        whole_rate=colocated_rate,
        disaggregated="split",
        disaggregated_rate=disaggregated_rate,
    )


def test_the_shape_is_a_gain_here_and_a_loss_there() -> None:
    gains, losses = np.full((2, 2), 1.8), np.full((2, 2), 0.8)
    gain, no_gain = compared(1.0, 1.5), compared(1.0, 1.4)
    assert is_claimed_shape([no_gain, gain], [gains, losses])
    assert not is_claimed_shape([no_gain], [gains, losses])
    assert not is_claimed_shape([gain], [gains])
    assert not is_claimed_shape([gain], [np.full((2, 2), np.nan)])
