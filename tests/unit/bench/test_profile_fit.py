"""Costs come back from timings that were made of them, however some of these were disturbed."""

from dataclasses import dataclass
from random import Random

import msgspec
import numpy as np
import pytest

from bench.profile_fit import (
    Alone,
    Beside,
    Fit,
    Probes,
    Steps,
    Together,
    Worker,
    fit,
    least_relative,
    pooled,
)

DELAY_S, PASS_S, TOKEN_S, PAIR_S = 4e-3, 3e-3, 4e-4, 6e-8
STEP_S, CONTEXT_S, SEQUENCE_S = 7e-3, 4e-7, 8e-4
LATENCY_S, BYTES_PER_S = 1e-3, 2e9
APART = Worker(chunk_tokens=512, budget_tokens=512, page_tokens=16, page_bytes=368_640, apart=True)


@dataclass
class World:
    """Makes timings: exact, or one in `disturbed` up to 3 times as long."""

    random: Random
    disturbed: float = 0.0

    def seen(self, seconds: float) -> float:
        return seconds * (
            self.random.uniform(1.2, 3) if self.random.random() < self.disturbed else 1
        )

    def prefill(self, n_passes: int, n_prompts: int, n_tokens: int) -> float:
        pairs = n_prompts * n_tokens * (n_tokens + 1) / 2
        return DELAY_S + PASS_S * n_passes + TOKEN_S * n_prompts * n_tokens + PAIR_S * pairs

    def step(self, n_sequences: int, n_context: int) -> float:
        return STEP_S + CONTEXT_S * n_context + SEQUENCE_S * n_sequences

    def alone(self, n_tokens: int) -> Alone:
        n_bytes = -(-((n_tokens - 1) % 512 + 1) // 16) * 368_640
        step_s = self.step(1, n_tokens)
        return Alone(
            n_tokens=n_tokens,
            ttft_s=self.seen(self.prefill(-(-n_tokens // 512), 1, n_tokens)),
            second_s=self.seen(step_s + LATENCY_S + n_bytes / BYTES_PER_S),
            step_s=step_s,
        )

    def probes(self, n_repeats: int = 1) -> Probes:
        lengths = (16, 64, 128, 256, 384, 512, 768, 1024, 2048) * n_repeats
        streams = ((1, 64), (2, 64), (4, 64), (8, 64), (16, 64), (1, 768), (4, 768), (8, 768))
        return Probes(
            echo_s=1e-3,
            alone=tuple(self.alone(n) for n in lengths),
            together=tuple(
                Together(n_prompts=n, n_tokens=m, last_s=self.seen(self.prefill(n_passes, n, m)))
                for n, m, n_passes in ((4, 128, 2), (4, 384, 4), (2, 512, 2))
            ),
            steps=tuple(
                Steps(n_sequences=n, n_context=n * m, step_s=self.seen(self.step(n, n * m)))
                for n, m in streams * n_repeats
            ),
            beside=(
                Beside(
                    n_streams=3, step_s=0.01, step_beside_s=0.012, last_s=0.4, last_beside_s=0.44
                ),
                Beside(
                    n_streams=3, step_s=0.01, step_beside_s=0.009, last_s=0.4, last_beside_s=0.42
                ),
                Beside(
                    n_streams=3, step_s=0.01, step_beside_s=0.013, last_s=0.4, last_beside_s=0.9
                ),
            ),
        )


def check(found: Fit, rel: float) -> None:
    assert found.delay_s == pytest.approx(DELAY_S, rel=10 * rel)  # a small part of every time
    assert found.prefill_fixed_s == pytest.approx(PASS_S, rel=10 * rel)
    assert found.prefill_token_s == pytest.approx(TOKEN_S, rel=rel)
    assert found.prefill_pair_s == pytest.approx(PAIR_S, rel=10 * rel)
    assert found.decode_fixed_s == pytest.approx(STEP_S, rel=rel)
    assert found.decode_context_token_s == pytest.approx(CONTEXT_S, rel=10 * rel)
    assert found.decode_sequence_s == pytest.approx(SEQUENCE_S, rel=rel)


def test_exact_timings_give_the_costs_that_they_were_made_of() -> None:
    found = fit(World(Random(0)).probes(), APART)
    check(found, rel=1e-4)
    assert found.transfer_latency_s == pytest.approx(LATENCY_S, rel=1e-3)
    assert found.transfer_bytes_per_s == pytest.approx(BYTES_PER_S, rel=1e-3)
    assert found.token_s == pytest.approx(0.5e-3)  # half a round trip
    assert found.prefill_error.median < 1e-6 > found.decode_error.p90


def test_a_transfer_is_what_most_second_tokens_wait_for() -> None:
    probes = World(Random(0)).probes(n_repeats=2)
    alone = [
        msgspec.structs.replace(one, second_s=0.0) if number % 5 == 2 else one  # read together
        for number, one in enumerate(probes.alone)
    ]
    probes = msgspec.structs.replace(probes, alone=tuple(alone))
    found = fit(probes, APART)
    assert found.transfer_latency_s == pytest.approx(LATENCY_S, rel=0.1)
    assert found.transfer_bytes_per_s == pytest.approx(BYTES_PER_S, rel=0.1)


@pytest.mark.parametrize("seed", range(5))
def test_a_few_disturbed_timings_do_not_count(seed: int) -> None:
    found = fit(World(Random(seed), disturbed=0.2).probes(n_repeats=3), APART)
    check(found, rel=0.01)
    assert found.prefill_error.median < 0.01 < found.prefill_error.p90


def test_pools_slow_each_other_down_only_where_they_are_apart() -> None:
    probes = World(Random(0)).probes()
    found = fit(probes, APART)
    assert found.decode_slowdown == pytest.approx(1.2)
    assert found.prefill_slowdown == pytest.approx(1.1)
    together = Worker(
        chunk_tokens=512, budget_tokens=512, page_tokens=16, page_bytes=368_640, apart=False
    )
    found = fit(probes, together)
    assert found.decode_slowdown == found.prefill_slowdown == 1


def test_what_is_not_seen_costs_nothing_and_no_cost_is_below_0() -> None:
    falling = np.array([(1, 10), (1, 20), (1, 30)], float)
    constant, per_unit = least_relative(falling, np.array([3.0, 2.0, 1.0]))
    assert constant > 0
    assert per_unit == 0


def test_rounds_are_pooled() -> None:
    first, second = (World(Random(seed)).probes() for seed in (1, 2))
    both = pooled([first, second])
    assert both.alone == (*first.alone, *second.alone)
    assert both.steps == (*first.steps, *second.steps)


def test_a_fit_of_nothing_is_refused() -> None:
    nothing = Probes(echo_s=1e-3, alone=(), together=(), steps=(), beside=())
    with pytest.raises(ValueError, match="prompts alone"):
        fit(nothing, APART)
