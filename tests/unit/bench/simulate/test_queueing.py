"""The fast model against closed forms, and against itself step by step."""

import math
from collections.abc import Sequence
from statistics import mean

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.simulate.costs import Costs, DecodeCosts, PrefillCosts, TransferCosts
from bench.simulate.queueing import Job, Pool, serve

COSTS = Costs(
    prefill=PrefillCosts(fixed_s=0.25, per_token_s=0.01, per_pair_s=0.001),
    decode=DecodeCosts(fixed_s=1.0, per_context_token_s=0.001, per_sequence_s=0.1),
    transfer=TransferCosts(latency_s=0.0, bytes_per_s=1.0),
    page_bytes=1,
)
LINEAR = Costs(
    prefill=PrefillCosts(fixed_s=0.0, per_token_s=0.01, per_pair_s=0.0),
    decode=COSTS.decode,
    transfer=COSTS.transfer,
    page_bytes=1,
)


def pool(n_workers: int = 1, *, costs: Costs = COSTS, seqs: int = 8, room: int = 10**6) -> Pool:
    return Pool(
        n_workers=n_workers,
        budget_tokens=100,
        chunk_tokens=10,
        max_num_seqs=seqs,
        room_tokens=room,
        costs=costs,
    )


def prompt(at_s: float, n_prompt: int = 100, *, n_steps: int = 0, n_cached: int = 0) -> Job:
    return Job(at_s=at_s, n_cached=n_cached, n_prompt=n_prompt, n_steps=n_steps)


def decoding(at_s: float, n_context: int, n_steps: int) -> Job:
    return Job(at_s=at_s, n_cached=n_context, n_prompt=0, n_steps=n_steps)


def step_s(n_context: int, n_sequences: int) -> float:
    return COSTS.decode.seconds(n_context, n_sequences)


# --- prompts -------------------------------------------------------------------------------------


@pytest.mark.parametrize("load", [0.3, 0.7])
def test_one_prompt_a_pass_is_m_d_1(load: float) -> None:
    """DistServe's equation 1: D + R D^2 / (2 (1 - R D))."""
    duration_s = 1.0  # 100 tokens of 0.01 s, which fill a pass
    times_s = np.cumsum(np.random.default_rng(0).exponential(duration_s / load, 40_000))
    jobs = [prompt(at_s) for at_s in times_s.tolist()]
    serve(pool(costs=LINEAR), jobs)
    seen = mean(job.drawn_s - job.at_s for job in jobs)
    assert seen == pytest.approx(duration_s + load * duration_s / (2 * (1 - load)), rel=0.03)


def test_prompts_that_wait_are_computed_together() -> None:
    jobs = [prompt(0.0, 50), prompt(0.1, 40), prompt(0.2, 30), prompt(0.3, 50)]
    serve(pool(), jobs)
    first_s = 0.25 + 0.5 + 0.001 * 50 * 51 / 2
    pairs = 40 * 41 / 2 + 30 * 31 / 2 + 30 * 31 / 2  # 30 of the last, whose rest has another pass
    second_s = first_s + 0.25 + 1.0 + 0.001 * pairs
    third_s = second_s + 0.25 + 0.2 + 0.001 * (20 * 30 + 20 * 21 / 2)
    assert [job.drawn_s for job in jobs] == pytest.approx([first_s, second_s, second_s, third_s])
    assert [job.ended_s for job in jobs] == [job.drawn_s for job in jobs]


def test_cached_tokens_are_attended_to_and_not_computed() -> None:
    job = prompt(0.0, 10, n_cached=90)
    serve(pool(), [job])
    assert job.drawn_s == pytest.approx(0.25 + 0.1 + 0.001 * (10 * 90 + 55))


def test_who_comes_goes_where_least_is_to_be_computed() -> None:
    jobs = [prompt(0.0, 100), prompt(0.0, 20), prompt(0.1, 20), prompt(0.2, 20)]
    serve(pool(2), jobs)
    alone_s = 0.25 + 0.2 + 0.001 * 210
    assert jobs[1].drawn_s == pytest.approx(alone_s)
    assert jobs[2].drawn_s == jobs[3].drawn_s == pytest.approx(alone_s + 0.25 + 0.4 + 0.001 * 420)


# --- decode --------------------------------------------------------------------------------------


def test_steps_of_one_batch_grow_by_their_context() -> None:
    jobs = [decoding(0.0, 100, 5), decoding(0.0, 50, 5)]
    serve(pool(), jobs)
    # The first alone for a step (it had begun when the second came), then both, then the second.
    begun_s = step_s(101, 1)
    both_s = sum(step_s(101 + k + 50 + k, 2) for k in range(1, 5))
    assert jobs[0].ended_s == pytest.approx(begun_s + both_s)
    assert jobs[1].ended_s == pytest.approx(begun_s + both_s + step_s(55, 1))


def test_who_finds_no_slot_waits_for_the_first_to_leave() -> None:
    jobs = [decoding(0.0, 10, 3), decoding(0.5, 10, 1)]
    serve(pool(seqs=1), jobs)
    first_s = sum(step_s(10 + k, 1) for k in range(1, 4))
    assert [job.ended_s for job in jobs] == pytest.approx([first_s, first_s + step_s(11, 1)])


def test_who_finds_no_room_waits_too_and_one_alone_does_not() -> None:
    jobs = [decoding(0.0, 100, 2), decoding(0.0, 100, 2)]
    serve(pool(room=50), jobs)
    assert jobs[1].ended_s == pytest.approx(2 * jobs[0].ended_s)


jobs_of_decode = st.lists(
    st.tuples(st.floats(0, 30), st.integers(1, 40), st.integers(1, 12)), min_size=1, max_size=12
)


@settings(max_examples=100, deadline=None)
@given(jobs_of_decode, st.integers(1, 4))
def test_many_steps_at_once_are_the_same_as_one_by_one(
    drawn: Sequence[tuple[float, int, int]], seqs: int
) -> None:
    jobs = [decoding(*one) for one in sorted(drawn)]
    serve(pool(seqs=seqs), jobs)
    assert [job.ended_s for job in jobs] == pytest.approx(one_by_one(jobs, seqs), rel=1e-9)


def one_by_one(jobs: Sequence[Job], seqs: int) -> list[float]:
    """When each ends if one worker computes every step by itself."""
    waiting, running = list(range(len(jobs))), dict[int, int]()
    ended_s = [math.inf] * len(jobs)
    now_s = 0.0
    while waiting or running:
        if not running:  # whoever comes at the same moment comes after it
            now_s = jobs[waiting[0]].at_s
            running[waiting.pop(0)] = 0
        n_context = sum(jobs[k].n_cached + said + 1 for k, said in running.items())
        now_s += step_s(n_context, len(running))
        for k in list(running):
            running[k] += 1
            if running[k] == jobs[k].n_steps:
                ended_s[k] = now_s
                del running[k]
        _let_in(jobs, waiting, running, now_s, seqs)
    return ended_s


def _let_in(
    jobs: Sequence[Job], waiting: list[int], running: dict[int, int], now_s: float, seqs: int
) -> None:
    while waiting and jobs[waiting[0]].at_s <= now_s and len(running) < seqs:
        running[waiting.pop(0)] = 0


# --- both ----------------------------------------------------------------------------------------


def test_a_prompt_beside_answers_comes_in_chunks_and_slows_them() -> None:
    first, second = prompt(0.0, 20, n_steps=4), prompt(0.7, 20, n_steps=1)
    serve(pool(), [first, second])
    drawn_s = 0.25 + 0.2 + 0.001 * 210
    assert first.drawn_s == pytest.approx(drawn_s)
    alone_s = drawn_s + step_s(21, 1)  # had begun when the second prompt came
    chunks_s = [0.1 + 0.001 * 55 + step_s(22, 1), 0.1 + 0.001 * (10 * 10 + 55) + step_s(23, 1)]
    assert second.drawn_s == pytest.approx(alone_s + sum(chunks_s))  # the larger fixed part, once
    ended_s = second.drawn_s + step_s(24 + 21, 2)
    assert first.ended_s == second.ended_s == pytest.approx(ended_s)
