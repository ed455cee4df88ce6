"""Tokens drawn by the Triton kernels: those that torch draws, and that a sort in float64 leaves.

The rules of `tests/unit/test_sampling.py`, where few draws show them; 400 of them are too many for
the interpreter.
"""

import math
import random
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from common.engine.plan import Draw
from common.kernels.draws import UNIFORM_BITS
from common.kernels.triton import choice
from common.kernels.triton.sampling_rows import IN_PROMPT, SamplingRows
from common.params import SamplingParams
from common.sampling import sample, uniform_bits
from tests.conformance.kernels.in_triton.traffic import counting
from tests.conformance.kernels.test_draws import logits, rules
from tests.unit import test_sampling
from tests.unit.test_sampling import draw
from tests.unit.test_sampling_distribution import exact

pytestmark = pytest.mark.usefixtures("path")

CPU = torch.device("cpu")
RULES = [
    test_sampling.test_nothing_to_draw_is_nothing_drawn,
    test_sampling.test_temperature_zero_takes_the_most_likely_and_the_lowest_id_of_equals,
    test_sampling.test_top_k_one_is_greedy_even_among_equals_and_at_any_temperature,
    test_sampling.test_end_and_stop_tokens_are_masked_before_min_tokens,
    test_sampling.test_a_bias_is_added_to_the_logit,
    test_sampling.test_repetition_counts_prompt_and_outputs_once_and_moves_towards_less_likely,
    test_sampling.test_presence_and_frequency_count_outputs_only,
    test_sampling.test_biases_come_before_the_repetition_penalty,
    test_sampling.test_the_callers_logits_stay_as_they_were,
    test_sampling.test_a_draw_follows_its_seed_sample_and_index,
    test_sampling.test_logprobs_are_of_the_raw_logits,
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__.removeprefix("test_"))
def test_rule(rule) -> None:  # noqa: ANN001 a test
    rule()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_logits_that_are_not_numbers_fail_the_pass(temperature: float, bad: float) -> None:
    test_sampling.test_logits_that_are_not_numbers_fail_the_pass(temperature, bad)


@pytest.mark.parametrize("n_vocab", [1500, 2048])
def test_greedy_finds_the_first_of_equals_in_any_block(n_vocab: int) -> None:
    test_sampling.test_greedy_finds_the_first_of_equals_in_any_block(n_vocab)


# --- the same tokens as torch's ------------------------------------------------------------------


def anything(rng: random.Random, n_vocab: int) -> Draw:
    """Any rules, and half of the time penalties, biases and masks."""
    params = rules(rng)
    if rng.random() < 0.2:
        params = msgspec.structs.replace(params, temperature=0.0)
    if rng.random() < 0.5:
        tokens = rng.sample(range(n_vocab), min(5, n_vocab))
        params = msgspec.structs.replace(
            params,
            repetition_penalty=rng.choice([1.0, 1.3, 0.7]),
            frequency_penalty=rng.choice([0.0, 0.3, -1.1]),
            presence_penalty=rng.choice([0.0, 0.7, -0.2]),
            logit_bias=tuple((t, rng.uniform(-9, 9)) for t in tokens[: rng.randrange(3)]),
            min_tokens=rng.choice([0, 3]),
            end_token_ids=tuple(tokens[3:]),
        )
    said = [rng.randrange(n_vocab) for _ in range(rng.randrange(6))]
    return Draw(
        transfer=draw().transfer, attempt=0, sample=rng.randrange(4), index=len(said), row=0,
        params=params, prompt=tuple(rng.choices(range(n_vocab), k=3)), outputs=tuple(said * 2),
    )  # fmt: skip


@pytest.mark.parametrize("n_vocab", [1, 2, 7, 64, 1024, 1025])
def test_any_rules_draw_what_torch_draws_alone_and_in_any_batch(n_vocab: int) -> None:
    rng = random.Random(n_vocab)
    rows = [logits(rng, n_vocab) for _ in range(10)]
    draws = [anything(rng, n_vocab) for _ in rows]
    allowed = {b: np.array(rng.choices([True, True, False], k=n_vocab)) for b in (1, 4, 9)}
    for b, allowed_V in allowed.items():
        allowed_V[rows[b].argmax()] = True
        allowed_V[rng.randrange(n_vocab)] = True
        draws[b] = draw(seed=b, temperature=rng.choice([0.0, 1.0]), logit_bias=((0, 3.0),))
    draws = [
        d if n_vocab > 5 else msgspec.structs.replace(d, params=unmasked(d.params)) for d in draws
    ]
    together = sample(torch.stack(rows), draws, allowed)
    b = rng.randrange(10)
    mask = {0: allowed[b]} if b in allowed else {}
    assert sample(rows[b][None], [draws[b]], mask)[0] == together[b]
    choice.interpret(wanted=False)
    assert sample(torch.stack(rows), draws, allowed) == together


def unmasked(params: SamplingParams) -> SamplingParams:
    """Of a vocabulary so small that masks might leave nothing."""
    return msgspec.structs.replace(params, min_tokens=0)


def test_a_mask_hides_what_is_no_number() -> None:
    z = torch.tensor([[1.0, math.nan, 2.0, math.inf]])
    allowed = {0: np.array([True, False, True, False])}
    with np.errstate(invalid="ignore"):  # as on a GPU
        assert sample(z, [draw(temperature=0)], allowed)[0].token == 2


# --- what a sort in float64 leaves ---------------------------------------------------------------


def check_shares(z: Tensor, one: Draw, shares: NDArray[np.float64]) -> None:
    """Just inside both ends of every token's part of [0, 1), by the inverse of the distribution."""
    from common.kernels.triton import sampling

    ends = np.cumsum(shares)
    kept = np.flatnonzero(shares > 1e-9)
    kept = kept[np.unique(np.linspace(0, len(kept) - 1, 5).astype(int))]  # first and last, too
    inside = np.concatenate([(ends - shares)[kept] + 1e-12, ends[kept] - 1e-12])
    uniforms = torch.tensor((inside * 2**UNIFORM_BITS).astype(np.int64))
    n = len(inside)
    rows = SamplingRows.of([one] * n, {}, len(z), CPU)
    tokens = torch.empty(n, dtype=torch.int64)
    _, drawing = sampling.launches(z.expand(n, -1), rows, uniforms, tokens)
    drawing.run()
    assert tokens.tolist() == [*kept, *kept]


@pytest.mark.parametrize(
    "rules",
    [
        {"temperature": 0.6},
        {"top_k": 12},
        {"top_p": 0.8},
        {"min_p": 0.1},
        {"temperature": 1.4, "min_p": 0.02, "top_k": 40, "top_p": 0.95},
    ],
    ids=str,
)
def test_each_token_has_its_share_of_the_randomness(rules: dict[str, Any]) -> None:
    z = torch.randn(60, generator=torch.Generator().manual_seed(3)) * 2
    one = draw(**rules)
    check_shares(z, one, exact(z.double().numpy(), one.params))


def test_shares_are_those_of_transformers() -> None:
    from transformers.generation import logits_process as theirs

    z = torch.randn(1100, generator=torch.Generator().manual_seed(5)) * 4
    prompt, outputs = (5, 17, 17, 900), (17, 2, 2, 1050)
    one = draw(
        index=len(outputs), prompt=prompt, outputs=outputs, temperature=0.7, min_p=0.01, top_k=40,
        top_p=0.9, repetition_penalty=1.3, logit_bias=((17, 2.5), (31, -7.25)), min_tokens=6,
        end_token_ids=(2, 3), stop_token_ids=(40,),
    )  # fmt: skip
    changes = theirs.LogitsProcessorList(
        [
            theirs.MinNewTokensLengthLogitsProcessor(len(prompt), 6, [2, 3, 40], device="cpu"),
            theirs.SequenceBiasLogitsProcessor([[[17], 2.5], [[31], -7.25]]),
            theirs.RepetitionPenaltyLogitsProcessor(1.3),
        ]
    )
    truncations = theirs.LogitsProcessorList(
        [
            theirs.TemperatureLogitsWarper(0.7),
            theirs.MinPLogitsWarper(0.01),
            theirs.TopKLogitsWarper(40),
            theirs.TopPLogitsWarper(0.9),
        ]
    )
    ids = torch.LongTensor([prompt + outputs])
    scores = truncations(ids, changes(ids, z[None].clone()).double())
    check_shares(z, one, scores.softmax(-1)[0].numpy())


# --- the randomness ------------------------------------------------------------------------------


def test_the_uniforms_are_those_of_the_cpu() -> None:
    from common.kernels.triton import sampling_uniform

    rng = random.Random(0)
    keys = [(0, 0, 0), (2**63 - 1, 3, 1000), (1, 2, 3), (2**31, 2**31, 2**31)]
    keys += [(rng.randrange(2**63), rng.randrange(9), rng.randrange(2**20)) for _ in range(40)]
    out = torch.empty(len(keys), dtype=torch.int64)
    sampling_uniform.launch(torch.tensor(keys), out).run()
    assert out.tolist() == [uniform_bits(*key) for key in keys]


# --- what stays on the device --------------------------------------------------------------------


def test_what_is_drawn_is_counted_where_it_lies() -> None:
    """So that the next step needs nothing of the host but its index."""
    from common.kernels.triton import sampling

    z = torch.tensor([[0.0, 5.0, 4.5, 1.0]]).expand(2, -1)
    one = draw(temperature=0, presence_penalty=1.0, repetition_penalty=1.1, prompt=(2,))
    draws = [one, draw(temperature=0)]
    rows = SamplingRows.of(draws, {}, 4, CPU)
    drawn = [sampling.sample(z, rows).tolist() for _ in range(3)]
    assert drawn == [[1, 1], [2, 1], [1, 1]]
    assert rows.history_HV.tolist() == [[0, 2, IN_PROMPT + 1, 0]]


def test_a_greedy_draw_reads_the_logits_once() -> None:
    from common.kernels.triton import sampling

    z: Tensor = torch.randn(3, 3000, generator=torch.Generator().manual_seed(0))
    rows = SamplingRows.of([draw(temperature=0)] * 3, {}, 3000, CPU)
    with counting() as traffic:
        sampling.sample(z, rows)
    assert z.nbytes <= traffic.n_bytes <= 1.05 * z.nbytes
