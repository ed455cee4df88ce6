"""The sampler's rules, one by one, on logits small enough to work out by hand."""

import math

import msgspec
import numpy as np
import pytest
import torch
from torch import Tensor

from common.engine.plan import Draw
from common.ids import TransferId
from common.params import SamplingParams
from common.sampling import sample, score, uniform_bits


def draw(
    *,
    index: int = 0,
    sample: int = 0,
    prompt: tuple[int, ...] = (),
    outputs: tuple[int, ...] = (),
    **params: object,
) -> Draw:
    return Draw(
        transfer=TransferId("t"),
        attempt=0,
        sample=sample,
        index=index,
        row=0,
        params=msgspec.convert({"max_tokens": 99, "seed": 7, **params}, SamplingParams),
        prompt=prompt,
        outputs=outputs,
    )


def logits(*rows: list[float]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float32)


def token(row: list[float], one: Draw) -> int:
    return sample(logits(row), [one])[0].token


def possible(row: list[float], one: Draw) -> set[int]:
    """The tokens of 400 draws: all that are likely enough to be seen."""
    draws = [msgspec.structs.replace(one, index=i) for i in range(400)]
    return {d.token for d in sample(logits(row).expand(400, -1), draws)}


def test_nothing_to_draw_is_nothing_drawn() -> None:
    assert sample(torch.empty(0, 8), []) == ()


def test_temperature_zero_takes_the_most_likely_and_the_lowest_id_of_equals() -> None:
    assert token([1, 3, 2, 3], draw(temperature=0)) == 1


@pytest.mark.parametrize("n_vocab", [192, 200])
def test_greedy_finds_the_first_of_equals_in_any_block(n_vocab: int) -> None:
    z = torch.zeros(3, n_vocab)
    z[0, [70, 71, 150]] = 1
    z[1, [63, 64]] = 1
    drawn = sample(z, [draw(temperature=0)] * 3)
    assert [d.token for d in drawn] == [70, 63, 0]


def test_top_k_one_is_greedy_even_among_equals_and_at_any_temperature() -> None:
    for temperature in (1e-320, 1e-9, 1.0, 1e9):
        assert token([1, 3, 2, 3], draw(temperature=temperature, top_k=1)) == 1


def test_a_tiny_temperature_is_greedy_but_for_ties() -> None:
    assert possible([0, 1, 2], draw(temperature=1e-320)) == {2}


def test_top_k_keeps_exactly_k_the_lowest_ids_of_equals() -> None:
    assert possible([5, 5, 5, 9, 5], draw(top_k=3, temperature=50)) == {3, 0, 1}


def test_top_p_keeps_the_shortest_prefix_that_reaches_it() -> None:
    row = [math.log(p) for p in (0.1, 0.4, 0.2, 0.3)]
    assert possible(row, draw(top_p=0.39)) == {1}
    assert possible(row, draw(top_p=0.41)) == {1, 3}
    assert possible(row, draw(top_p=0.69)) == {1, 3}
    assert possible(row, draw(top_p=0.71)) == {1, 3, 2}
    assert possible(row, draw(top_p=0.91)) == {0, 1, 2, 3}


def test_top_p_met_exactly_takes_no_more_and_ties_go_by_id() -> None:
    assert possible([2, 2, 2, 2], draw(top_p=0.5)) == {0, 1}
    assert possible([2, 2, 2, 2], draw(top_p=math.nextafter(0.5, 1))) == {0, 1, 2}


def test_top_p_always_leaves_the_most_likely() -> None:
    assert possible([0, 0, 1, 0], draw(top_p=5e-324)) == {2}


def test_top_p_is_of_what_top_k_and_min_p_leave() -> None:
    row = [math.log(p) for p in (0.4, 0.3, 0.2, 0.1)]
    assert possible(row, draw(top_p=0.6)) == {0, 1}
    assert possible(row, draw(top_p=0.56, top_k=2)) == {0}  # 0.4 of 0.7 is 0.571
    assert possible(row, draw(top_p=0.56, min_p=0.6)) == {0}


def test_min_p_is_a_share_of_the_most_likely_after_the_temperature() -> None:
    row = [math.log(p) for p in (0.4, 0.3, 0.2, 0.1)]
    assert possible(row, draw(min_p=0.51)) == {0, 1}
    assert possible(row, draw(min_p=0.49)) == {0, 1, 2}
    assert possible(row, draw(min_p=0.49, temperature=10)) == {0, 1, 2, 3}
    assert possible(row, draw(min_p=1)) == {0}


def test_tokens_without_probability_are_never_drawn() -> None:
    assert possible([-math.inf, 0, -math.inf, 0, -100], draw(temperature=1)) == {1, 3}


# --- what changes the logits -----------------------------------------------------------------


def test_end_and_stop_tokens_are_masked_before_min_tokens() -> None:
    ends = {"end_token_ids": (1,), "stop_token_ids": (2,), "min_tokens": 2}
    assert token([0, 9, 8, 7], draw(temperature=0, index=1, outputs=(3,), **ends)) == 3
    assert token([0, 9, 8, 7], draw(temperature=0, index=2, outputs=(3, 3), **ends)) == 1


def test_a_bias_is_added_to_the_logit() -> None:
    assert token([1, 2, 3], draw(temperature=0, logit_bias=((0, 3.0), (2, -2.0)))) == 0


def test_repetition_counts_prompt_and_outputs_once_and_moves_towards_less_likely() -> None:
    both = draw(temperature=0, repetition_penalty=2, prompt=(0, 0), outputs=(1, 1))
    assert token([4.0, 3.9, 1.9, -1], both) == 0
    assert token([4.0, 3.9, 2.1, -1], both) == 2
    assert token([-1.0, -1.1, -1.9, -9], both) == 2


def test_presence_and_frequency_count_outputs_only() -> None:
    said = draw(temperature=0, presence_penalty=1, prompt=(0,), outputs=(1, 1, 1))
    assert token([0, 2.1, 1], said) == 1
    assert token([0, 1.9, 1], said) == 2
    often = draw(temperature=0, frequency_penalty=1, prompt=(0,), outputs=(1, 1, 1, 2))
    assert token([0, 3.9, 1.9], often) == 1
    assert token([0, 3.8, 1.9], often) == 2


def test_biases_come_before_the_repetition_penalty() -> None:
    both = draw(temperature=0, repetition_penalty=2, prompt=(0,), logit_bias=((0, 4.0),))
    assert token([0, 2.5], both) == 1  # (0 + 4) / 2, not 0 / 2 + 4


def test_the_callers_logits_stay_as_they_were() -> None:
    z = torch.randn(4, 16, generator=torch.Generator().manual_seed(0))
    before = z.clone()
    sample(z, [draw(top_p=0.5, repetition_penalty=2, outputs=(1,), logprobs=2)] * 4)
    assert torch.equal(z, before)


# --- the uniform -----------------------------------------------------------------------------


def test_the_uniform_is_fixed_for_ever() -> None:
    assert uniform_bits(0, 0, 0) == 1_411_811_410_761_174
    assert uniform_bits(2**63 - 1, 3, 1000) == 2_872_461_320_268_203


def test_seed_sample_and_index_each_give_another_uniform() -> None:
    numbers = [uniform_bits(*key) for key in ((1, 2, 3), (3, 2, 1), (2, 1, 3), (1, 3, 2))]
    assert len(set(numbers)) == 4


def test_a_draw_follows_its_seed_sample_and_index() -> None:
    z = torch.zeros(1, 4096)
    one = sample(z, [draw(seed=1)])
    assert one == sample(z, [draw(seed=1)])
    others = [draw(seed=2), draw(seed=1, sample=1), draw(seed=1, index=1)]
    assert all(sample(z, [other]) != one for other in others)


# --- log-probabilities -----------------------------------------------------------------------


def test_logprobs_are_of_the_raw_logits() -> None:
    row = [math.log(p) for p in (0.1, 0.2, 0.3, 0.4)]
    one = draw(temperature=0, logit_bias=((0, 100.0),), logprobs=2)
    (drawn,) = sample(logits(row), [one])
    assert drawn.token == 0
    assert drawn.logprob is not None
    assert drawn.logprob.logprob == pytest.approx(math.log(0.1), abs=1e-6)
    assert drawn.logprob.rank == 4
    assert drawn.logprob.top_tokens == (3, 2)
    assert drawn.logprob.top_logprobs == pytest.approx((math.log(0.4), math.log(0.3)), abs=1e-6)


def test_logprobs_come_only_where_they_are_asked_for() -> None:
    drawn = sample(logits([1, 2], [2, 1]), [draw(), draw(logprobs=0)])
    assert drawn[0].logprob is None
    assert drawn[1].logprob is not None
    assert drawn[1].logprob.top_tokens == ()


def test_equal_logits_rank_by_id() -> None:
    z = logits([5, 7, 5, 7, 5]).expand(5, -1)
    scores = score(z, [0, 1, 2, 3, 4], 4)
    assert [s.rank for s in scores] == [3, 1, 4, 2, 5]
    assert all(s.top_tokens == (1, 3, 0, 2) for s in scores)


def test_scores_agree_with_log_softmax() -> None:
    z = torch.randn(40, 3001, generator=torch.Generator().manual_seed(0)) * 4
    targets = [(r * 997) % 3001 for r in range(40)]
    expected = z.double().log_softmax(-1)
    for r, one in enumerate(score(z, targets, 5)):
        assert one.token == targets[r]
        assert one.logprob == pytest.approx(float(expected[r, targets[r]]), abs=1e-8)
        assert one.rank == int((z[r] > z[r, targets[r]]).sum()) + 1
        top = expected[r].topk(5)
        assert list(one.top_tokens) == top.indices.tolist()
        assert one.top_logprobs == pytest.approx(top.values.tolist(), abs=1e-8)


def test_more_alternatives_than_tokens_are_all_of_them() -> None:
    assert score(logits([1, 3, 2]), [0], 20)[0].top_tokens == (1, 2, 0)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_logits_that_are_not_numbers_fail_the_pass(temperature: float, bad: float) -> None:
    with pytest.raises(ArithmeticError, match="no finite maximum"):
        token([0, bad, 1], draw(temperature=temperature))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("n_allowed", [1, 3, 12, 40, 95])
def test_what_a_grammar_leaves_is_drawn_as_if_there_were_nothing_else(
    temperature: float, n_allowed: int
) -> None:
    random = np.random.default_rng(n_allowed)
    z = torch.from_numpy(random.standard_normal((50, 96), np.float32))
    draws = [draw(index=i, temperature=temperature, presence_penalty=0.5) for i in range(50)]
    allowed = {b: random.permutation(96) < n_allowed for b in range(0, 50, 2)}
    masked, before = z.clone(), z.clone()
    for b, may_V in allowed.items():
        masked[b, torch.from_numpy(~may_V)] = -math.inf
    held = [d.token for d in sample(z, draws, allowed)]
    assert held == [d.token for d in sample(masked, draws)]
    assert all(allowed[b][held[b]] for b in allowed)
    assert torch.equal(z, before)
