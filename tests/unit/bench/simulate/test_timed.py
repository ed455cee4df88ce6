"""Timed runs against what can be computed by hand."""

from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest

from bench.measures import Goodput
from bench.simulate import timed_process
from bench.simulate.costs import Costs, DecodeCosts, PrefillCosts, TransferCosts
from bench.simulate.shape import Shape
from bench.simulate.timed import Ask, Run, Served, attainment, serve

COSTS = Costs(
    prefill=PrefillCosts(fixed_s=0.1, per_token_s=0.01, per_pair_s=0.0001),
    decode=DecodeCosts(fixed_s=0.02, per_context_token_s=0.001, per_sequence_s=0.003),
    transfer=TransferCosts(latency_s=0.005, bytes_per_s=1000.0),
    page_bytes=10,
)
SHAPE = Shape(
    costs=COSTS,
    page_tokens=4,
    chunk_tokens=64,
    budget_tokens=64,
    message_s=0.001,
    request_s=0.03,
    token_s=0.04,
)


def ask(n_prompt: int, n_output: int, at_s: float = 0.0, first: int = 0) -> Ask:
    return Ask(at_s=at_s, prompt=tuple(range(first, first + n_prompt)), output_tokens=n_output)


def alone(one: Ask, shape: Shape) -> Served:
    (served,) = serve([one], shape).served
    return served


def poisson(n: int, rate: float, seed: int) -> list[float]:
    random = Random(seed)
    at_s, arrivals = 0.0, list[float]()
    for _ in range(n):
        at_s += random.expovariate(rate)
        arrivals.append(at_s)
    return arrivals


def times(run: Run) -> list[tuple[float | None, float | None, float | None]]:
    return [(one.ttft_s, one.second_token_s, one.e2e_s) for one in run.served]


def test_a_request_alone_takes_what_its_parts_take() -> None:
    served = alone(ask(10, 3), SHAPE)
    first = 0.03 + 0.001 + COSTS.prefill.seconds(10, 55) + 0.001 + 0.04
    assert served.ttft_s == pytest.approx(first)
    pull = 0.001 + COSTS.pull_s(3) + COSTS.decode.seconds(11, 1)
    assert served.second_token_s == pytest.approx(first + pull)
    assert served.e2e_s == pytest.approx(first + pull + COSTS.decode.seconds(12, 1))
    assert served.tpot_s == pytest.approx((pull + COSTS.decode.seconds(12, 1)) / 2)


def test_nothing_is_moved_where_one_worker_does_both() -> None:
    served = alone(ask(10, 3), replace(SHAPE, prefills=0))
    first = 0.03 + 0.001 + COSTS.prefill.seconds(10, 55) + 0.001 + 0.04
    assert served.ttft_s == pytest.approx(first)
    assert served.second_token_s == pytest.approx(first + COSTS.decode.seconds(11, 1))


def test_decode_workers_may_cost_something_else() -> None:
    slow = replace(COSTS, decode=replace(COSTS.decode, fixed_s=1.02))
    shape = replace(SHAPE, decode_costs=slow)
    fast, slowed = alone(ask(10, 3), SHAPE), alone(ask(10, 3), shape)
    assert slowed.ttft_s == fast.ttft_s
    assert slowed.tpot_s == pytest.approx((fast.tpot_s or 0.0) + 1.0)


def test_a_prefix_that_was_computed_is_not_computed_again() -> None:
    asks = [ask(10, 1), ask(10, 1, at_s=5.0)]
    first, again = serve(asks, SHAPE).served
    assert (first.cached_tokens, again.cached_tokens) == (0, 8)
    pairs = 9 + 10
    assert again.ttft_s == pytest.approx(0.072 + COSTS.prefill.seconds(2, pairs))


def test_what_does_not_fit_is_refused_and_missed() -> None:
    run = serve([ask(10, 2), ask(1000, 2)], SHAPE)
    assert [one.refused for one in run.served] == [False, True]
    assert run.served[1].tpot_s is None
    assert attainment(run, Goodput(ttft_ms=1e4, tpot_ms=1e4)) == 0.5
    assert attainment(run, Goodput(ttft_ms=100, tpot_ms=1e4)) == 0.0
    assert attainment(run, Goodput(ttft_ms=1e4, tpot_ms=1)) == 0.0


def test_a_queue_of_prompts_waits_as_lindley_says() -> None:
    """One a pass, each of one second."""
    prefill = PrefillCosts(fixed_s=0.2, per_token_s=0.2, per_pair_s=0.0)
    shape = Shape(costs=replace(COSTS, prefill=prefill), chunk_tokens=4, budget_tokens=4)
    asks = [ask(4, 1, at_s=at, first=4 * n) for n, at in enumerate(poisson(60, rate=0.9, seed=1))]
    waits = [0.0]
    for one, following in pairwise(asks):
        waits.append(max(0.0, waits[-1] + 1.0 - (following.at_s - one.at_s)))
    run = serve(asks, replace(shape, message_s=0.0))
    assert [one.ttft_s for one in run.served] == pytest.approx([wait + 1.0 for wait in waits])


def crowd(n: int) -> list[Ask]:
    random = Random(3)
    return [
        ask(random.randrange(1, 60), random.randrange(1, 40), at_s=at, first=random.randrange(3))
        for at in poisson(n, rate=6.0, seed=4)
    ]


@pytest.mark.parametrize("prefills", [0, 1, 2])
def test_the_same_asks_give_the_same_run(prefills: int) -> None:
    shape = replace(SHAPE, prefills=prefills, decodes=2)
    assert times(serve(crowd(30), shape, seed=7)) == times(serve(crowd(30), shape, seed=7))


@pytest.mark.parametrize("prefills", [0, 1])
def test_passes_that_are_repeated_give_the_times_of_single_ones(
    prefills: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = replace(SHAPE, prefills=prefills, decode_pages=400, max_num_seqs=32)
    repeated = times(serve(crowd(40), shape))
    monkeypatch.setattr(timed_process, "MOST_REPEATS", 1)
    single = times(serve(crowd(40), shape))
    for one, other in zip(repeated, single, strict=True):
        assert one == pytest.approx(other)


def test_loads_are_told_from_the_start_to_the_end() -> None:
    run = serve(crowd(30), replace(SHAPE, decodes=2))
    assert [loads.worker for loads in run.loads] == ["prefill-0", "decode-0", "decode-1"]
    decode = run.loads[1]
    assert decode.at_s[0] == 0.0
    assert run.seconds - decode.at_s[-1] <= 0.05
    assert decode.held_pages.max() > 0
    assert decode.running.max() > 0
    assert len(decode.queued_tokens) == len(decode.at_s) == len(decode.queued_requests)


def test_costs_must_be_given() -> None:
    with pytest.raises(ValueError, match="costs"):
        serve([ask(10, 1)], Shape())
