"""Timed runs against queueing theory: what holds of any queue, and of one with a formula."""

from random import Random
from statistics import mean

import pytest

from bench.simulate.costs import Costs, DecodeCosts, PrefillCosts, TransferCosts
from bench.simulate.shape import Shape
from bench.simulate.timed import Ask, serve
from common.ids import Role

SERVICE_S = 1.0
LOAD = 0.6
COSTS = Costs(
    prefill=PrefillCosts(fixed_s=0.0, per_token_s=SERVICE_S / 4, per_pair_s=0.0),
    decode=DecodeCosts(fixed_s=1.0, per_context_token_s=0.0, per_sequence_s=0.0),
    transfer=TransferCosts(latency_s=0.0, bytes_per_s=1.0),
    page_bytes=1,
)


def test_a_queue_of_prompts_is_an_m_d_1() -> None:
    """Poisson arrivals, prompts of one length, one a pass, and nothing after the first token."""
    random = Random(1)
    at_s, asks = 0.0, list[Ask]()
    for _ in range(1500):
        at_s += random.expovariate(LOAD / SERVICE_S)
        asks.append(Ask(at_s=at_s, prompt=(1, 2, 3, 4), output_tokens=1))
    shape = Shape(costs=COSTS, chunk_tokens=4, budget_tokens=4, caching=False, message_s=0.0)
    run = serve(asks, shape)
    sojourn_s = mean(one.ttft_s or 0.0 for one in run.served)
    assert sojourn_s - SERVICE_S == pytest.approx(LOAD * SERVICE_S / (2 * (1 - LOAD)), rel=0.05)
    (prefill,) = (loads for loads in run.loads if loads.role is Role.PREFILL)
    there = (prefill.queued_requests + prefill.running).mean()
    assert there == pytest.approx(len(asks) / run.seconds * sojourn_s, rel=0.03)  # Little's law
