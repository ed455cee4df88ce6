"""What the fast model says of a plan, beside the real cores."""

import random
from dataclasses import replace

import numpy as np
import pytest

from bench.measures import Goodput
from bench.simulate import plans, timed
from bench.simulate.plans import Plan, Request, Seen, percentile_ms
from tests.unit.bench.simulate.devices import DEVICE


def plan(prefills: int, decodes: int) -> Plan:
    return Plan(
        prefills=prefills, decodes=decodes, prefill_tokens=256, chunk_tokens=64, max_num_seqs=16
    )


def workload(n: int) -> list[Request]:
    """Poisson, different texts."""
    draw, at = random.Random(3), 0.0
    made: list[Request] = []
    for _ in range(n):
        at += draw.expovariate(1.0)
        prompt = tuple(draw.randrange(30_000) for _ in range(draw.randrange(50, 350)))
        made.append(Request(at=at, prompt=prompt, output_tokens=draw.randrange(1, 60)))
    return made


@pytest.mark.parametrize(
    ("workers", "rate", "ttft_ms"),
    [((1, 1), 8.0, 300.0), ((2, 1), 14.0, 200.0), ((0, 1), 3.0, 250.0)],
)
def test_it_is_near_the_real_cores(workers: tuple[int, int], rate: float, ttft_ms: float) -> None:
    """At loads with queues: attainment within 6 points (5 requests), medians within 5 %; where
    every prompt is handed over, as the model has it."""
    requests, chosen = workload(80), plan(*workers)
    model = plans.predict(chosen, requests, rate, DEVICE)
    shape = replace(plans.shape(chosen, DEVICE), disaggregate="always")
    cores = plans.seen(timed.serve(plans.asks(requests, rate), shape))
    slo = Goodput(ttft_ms=ttft_ms, tpot_ms=40)
    assert 0.5 < cores.attainment(slo) < 1
    assert model.attainment(slo) == pytest.approx(cores.attainment(slo), abs=0.0625)
    assert np.median(model.ttft_s) == pytest.approx(np.median(cores.ttft_s), rel=0.05)
    assert np.median(model.tpot_s) == pytest.approx(np.median(cores.tpot_s), rel=0.05)
    assert model.completed == pytest.approx(cores.completed, rel=0.02)


def test_a_lone_request_is_the_sum_of_its_parts() -> None:
    one = Request(at=0.0, prompt=(1,) * 100, output_tokens=3)
    seen = plans.predict(plan(1, 1), [one], 1.0, DEVICE)
    prompt_s = 0.002 + 100 * 4e-4 + 1e-8 * 100 * 101 / 2
    assert seen.ttft_s[0] == pytest.approx(prompt_s + 0.002 + 0.001 + 2 * plans.MESSAGE_S)
    handoff_s = plans.MESSAGE_S + 1e-3 + 7 * 368_640 / 1e10
    steps_s = 2 * (0.007 + 8e-4) + 1e-6 * (101 + 102)
    assert seen.tpot_s[0] == pytest.approx((handoff_s + steps_s) / 2)
    assert seen.e2el_s[0] == pytest.approx(seen.ttft_s[0] + handoff_s + steps_s)


def test_an_answer_of_one_token_is_over_with_it() -> None:
    one = Request(at=0.0, prompt=(1,) * 100, output_tokens=1)
    for shape in ((1, 1), (0, 1)):
        seen = plans.predict(plan(*shape), [one], 1.0, DEVICE)
        assert seen.tpot_s[0] == 0
        assert seen.e2el_s[0] == seen.ttft_s[0]


def test_a_prompt_that_is_cached_whole_has_its_last_token_computed() -> None:
    one = Request(at=0.0, prompt=(1,) * 64, output_tokens=1, n_cached=64)
    seen = plans.predict(plan(1, 1), [one], 1.0, DEVICE)
    assert seen.ttft_s[0] == pytest.approx(0.002 + 4e-4 + 1e-8 * 64 + 0.003 + 2 * plans.MESSAGE_S)


def test_attainment_takes_all_limits_and_a_percentile_is_a_value() -> None:
    inf = float("inf")
    seen = Seen(
        ttft_s=np.array([0.1, 0.2, 0.3, inf]),
        tpot_s=np.array([0.03, 0.01, 0.01, inf]),
        e2el_s=np.array([1.0, 1.0, 1.0, inf]),
        completed=1.0,
    )
    assert seen.attainment(Goodput(ttft_ms=200)) == 0.5
    assert seen.attainment(Goodput(ttft_ms=200, tpot_ms=20)) == 0.25
    assert seen.attainment(Goodput(e2el_ms=1000)) == 0.75
    assert percentile_ms(seen.ttft_s, 0.75) == pytest.approx(300)
    assert percentile_ms(seen.ttft_s, 0.76) == inf
    assert percentile_ms(seen.ttft_s, 0.5) == pytest.approx(200)


def test_flags_start_what_was_planned() -> None:
    assert plan(2, 6).flags == (
        "--prefill 2 --decode 6 --prefill.max-num-batched-tokens 256 --prefill.chunk-tokens 256 "
        "--decode.max-num-seqs 16 --decode.max-num-batched-tokens 512"
    )
    assert plan(0, 8).flags == (
        "--prefill 0 --decode 8 --decode.chunk-tokens 64 --decode.max-num-seqs 16 "
        "--decode.max-num-batched-tokens 512"
    )
