"""What is asked of early rejection in simulation, and what decides that it is had."""

from dataclasses import replace

import numpy as np
import pytest

from bench.simulate.overload import SHAPE, Outcome, Pools, Traffic, keeps, outcome, passed
from bench.simulate.timed import Ask, serve
from common.ids import Role
from common.values import AdmissionPolicy

SHORT = Traffic(prompt_tokens=1500, output_tokens=40, seconds=4.0)
SMALL = replace(SHAPE, prefills=1, decodes=1)


def test_one_seed_is_one_sequence_of_lengths_at_every_rate() -> None:
    slow, fast = SHORT.asks(5.0), SHORT.asks(10.0)
    assert len(fast) == 2 * len(slow) == 40
    assert [len(ask.prompt) for ask in slow] == [len(ask.prompt) for ask in fast[:20]]
    assert fast[19].at_s == pytest.approx(slow[19].at_s / 2)
    assert SHORT.asks(5.0) == slow
    assert replace(SHORT, seed=1).asks(5.0) != slow


def test_lengths_have_the_means_that_were_asked_for() -> None:
    asks = replace(SHORT, seconds=100.0).asks(10.0)
    assert np.mean([len(ask.prompt) for ask in asks]) == pytest.approx(1500, rel=0.05)
    assert np.mean([ask.output_tokens for ask in asks]) == pytest.approx(40, rel=0.1)


def test_answers_end_where_they_do_though_the_gateway_cannot_know_it() -> None:
    ask = Ask(at_s=0.0, prompt=(0,) * 100, output_tokens=20)
    (known,) = serve([ask], SMALL).served
    (unknown,) = serve([replace(ask, max_tokens=1000)], SMALL).served
    assert unknown.e2e_s == known.e2e_s
    assert unknown.tpot_s == known.tpot_s


def test_a_rate_is_kept_or_not() -> None:
    assert keeps(replace(SHORT, tpot_s=0.1), 1.0)
    assert not keeps(replace(SHORT, tpot_s=0.02), 1.0)


@pytest.mark.parametrize(("policy", "refuses"), [("none", False), ("predicted", True)])
def test_who_is_refused_is_told_at_once_and_costs_nothing(
    policy: AdmissionPolicy, *, refuses: bool
) -> None:
    traffic = replace(SHORT, tpot_s=0.024, seconds=8.0)
    run = serve(traffic.asks(5.0), replace(SMALL, admission=policy))
    refused = [one for one in run.served if one.refused]
    assert bool(refused) == refuses
    assert all(one.ttft_s is None for one in refused)
    seen = outcome(traffic, run)
    assert seen.refused == len(refused) / 40
    assert seen.goodput * run.served[-1].ask.at_s == pytest.approx(
        40 * (1 - seen.refused - seen.missed)
    )


def test_loads_are_those_of_whole_pools() -> None:
    run = serve(SHORT.asks(5.0), replace(SHAPE, prefills=2, decodes=2))
    pools = Pools.of(run)
    held = np.sum([one.held_pages for one in run.loads if one.role is Role.DECODE], axis=0)
    assert np.array_equal(pools.held_pages, held[: len(pools.at_s)])
    assert pools.at_s[-1] <= run.served[-1].ask.at_s


GOOD = Outcome(
    goodput=2.0,
    refused=0.5,
    missed=0.0,
    queued_tokens=1.0,
    queued_deviation=1.0,
    held_pages=1.0,
    held_deviation=1.0,
)


@pytest.mark.parametrize(
    ("load", "none", "expected"),
    [
        ({"queued_deviation": 1.1, "held_deviation": 1.1}, {"goodput": 1.8}, True),
        ({"queued_deviation": 1.1, "held_deviation": 1.1}, {"goodput": 1.9}, False),
        ({"queued_deviation": 0.9, "held_deviation": 1.1}, {"goodput": 1.8}, False),
        ({"queued_deviation": 1.1, "held_deviation": 0.9}, {"goodput": 1.8}, False),
    ],
)
def test_what_predicting_must_give(
    load: dict[str, float], none: dict[str, float], *, expected: bool
) -> None:
    outcomes: dict[str, Outcome] = {
        "none": replace(GOOD, **none),
        "load": replace(GOOD, **load),
        "predicted": GOOD,
    }
    assert passed(outcomes) == expected
