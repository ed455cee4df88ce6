"""Who computes prompts, by the real cores on a small model's costs: running streams are left alone,
and everybody is answered sooner than if every prompt were handed over.
"""

from functools import cache
from random import Random

from bench.simulate.costs import Costs, DecodeCosts, PrefillCosts, TransferCosts
from bench.simulate.shape import Shape
from bench.simulate.timed import Ask, Run, serve
from common.values import Disaggregate

COSTS = Costs(  # of a core a worker: 1,700 tokens of prompts a second, steps of 10 ms
    prefill=PrefillCosts(fixed_s=6e-3, per_token_s=5e-4, per_pair_s=4e-8),
    decode=DecodeCosts(fixed_s=9e-3, per_context_token_s=4e-7, per_sequence_s=4e-4),
    transfer=TransferCosts(latency_s=1e-3, bytes_per_s=8e9),
    page_bytes=368_640,
)
N_STREAMS = 4


def shape(disaggregate: Disaggregate) -> Shape:
    return Shape(
        prefill_pages=3000,
        decode_pages=3000,
        page_tokens=16,
        chunk_tokens=512,
        budget_tokens=512,
        decode_chunk_tokens=128,
        max_num_seqs=64,
        costs=COSTS,
        disaggregate=disaggregate,
    )


def prompt(draw: Random, n_tokens: int) -> tuple[int, ...]:
    return tuple(draw.randrange(100, 40_000) for _ in range(n_tokens))


def burst(n_streams: int) -> list[Ask]:
    """Streams, and 8 prompts of 2,000 tokens at once after 4 seconds."""
    draw = Random(1)
    asks = [
        Ask(at_s=0.01 * n, prompt=prompt(draw, 64), output_tokens=1500) for n in range(n_streams)
    ]
    return asks + [
        Ask(at_s=4 + 0.001 * n, prompt=prompt(draw, 2000), output_tokens=8) for n in range(8)
    ]


@cache
def streaming(disaggregate: Disaggregate) -> Run:
    return serve(burst(N_STREAMS), shape(disaggregate))


def mean_e2e_s(run: Run) -> float:
    whole = [one.e2e_s for one in run.served if one.e2e_s is not None]
    assert len(whole) == len(run.served)
    return sum(whole) / len(whole)


def streams_tpot_s(run: Run) -> float:
    tpots = [one.tpot_s for one in run.served[:N_STREAMS]]
    return max(tpot_s for tpot_s in tpots if tpot_s is not None)


def test_a_burst_of_long_prompts_leaves_running_streams_alone() -> None:
    apart = streams_tpot_s(streaming("always"))
    assert streams_tpot_s(streaming("auto")) < 1.01 * apart
    assert streams_tpot_s(streaming("never")) > 1.3 * apart  # as it would be


def test_a_decode_worker_with_nothing_to_do_takes_part_in_a_burst() -> None:
    always, auto = (serve(burst(0), shape(flag)) for flag in ("always", "auto"))
    assert mean_e2e_s(auto) < 0.9 * mean_e2e_s(always)


def test_under_load_everybody_is_answered_sooner() -> None:
    """More prompts than one prefill worker can compute: 2.2 of 1,000 tokens a second."""
    draw, at_s = Random(3), 0.0
    asks: list[Ask] = []
    for _ in range(60):
        at_s += draw.expovariate(2.2)
        n_tokens, n_outputs = draw.randrange(20, 2000), draw.randrange(5, 150)
        asks.append(Ask(at_s=at_s, prompt=prompt(draw, n_tokens), output_tokens=n_outputs))
    always, auto = (serve(asks, shape(flag)) for flag in ("always", "auto"))
    assert mean_e2e_s(auto) < 0.9 * mean_e2e_s(always)
    tpots = [[one.tpot_s for one in run.served if one.tpot_s is not None] for run in (always, auto)]
    apart, chosen = (sum(own) / len(own) for own in tpots)
    assert chosen < 1.1 * apart
