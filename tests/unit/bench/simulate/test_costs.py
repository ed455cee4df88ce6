from dataclasses import replace

import numpy as np
import pytest

from bench.simulate.costs import Costs, DecodeCosts, PrefillCosts, TransferCosts
from common.engine.plan import PassPlan, Piece, pack
from common.ids import PageId

COSTS = Costs(
    prefill=PrefillCosts(fixed_s=10.0, per_token_s=1.0, per_pair_s=0.01),
    decode=DecodeCosts(fixed_s=4.0, per_context_token_s=0.001, per_sequence_s=0.1),
    transfer=TransferCosts(latency_s=2.0, bytes_per_s=100.0),
    page_bytes=50,
)


def plan(*rows: tuple[int, int]) -> PassPlan:
    """Of sequences that compute tokens start .. end - 1 each."""
    pieces = [
        Piece([0] * (end - start), start, [PageId(page) for page in range(end)])
        for start, end in rows
    ]
    return PassPlan(**pack(pieces, 1))  # pyright: ignore[reportArgumentType] as the cores do


def pairs(start: int, end: int) -> int:
    return sum(at + 1 for at in range(start, end))


def test_a_prompt_costs_its_tokens_and_what_each_attends_to() -> None:
    assert COSTS.pass_s(plan((0, 8))) == pytest.approx(10 + 8 + 0.01 * pairs(0, 8))
    assert COSTS.pass_s(plan((5, 8))) == pytest.approx(10 + 3 + 0.01 * pairs(5, 8))


def test_chunks_of_a_prompt_cost_what_it_costs_and_a_fixed_part_each() -> None:
    whole = COSTS.pass_s(plan((0, 8)))
    assert COSTS.pass_s(plan((0, 6))) + COSTS.pass_s(plan((6, 8))) == pytest.approx(whole + 10)


def test_a_step_costs_its_sequences_and_their_contexts() -> None:
    assert COSTS.pass_s(plan((6, 7), (99, 100))) == pytest.approx(4 + 0.001 * 107 + 0.2)


def test_a_mixed_pass_pays_its_fixed_part_once() -> None:
    prompt, step = COSTS.pass_s(plan((0, 8))), COSTS.pass_s(plan((6, 7)))
    assert COSTS.pass_s(plan((6, 7), (0, 8))) == pytest.approx(prompt + step - 4)


def test_a_mixed_pass_reads_its_weights_while_it_computes_prompts_where_they_overlap() -> None:
    costs = replace(COSTS, overlaps=True)
    prompt, step = costs.pass_s(plan((0, 8))), costs.pass_s(plan((6, 7)))
    assert prompt == COSTS.pass_s(plan((0, 8)))
    assert step == COSTS.pass_s(plan((6, 7)))
    assert costs.pass_s(plan((6, 7), (0, 8))) == pytest.approx(prompt + step - 4)
    heavy = replace(costs, decode=replace(costs.decode, fixed_s=50.0))
    assert heavy.pass_s(plan((6, 7), (0, 8))) == heavy.pass_s(plan((6, 7)))


def test_a_pull_costs_a_latency_and_its_bytes() -> None:
    assert COSTS.pull_s(3) == pytest.approx(2 + 150 / 100)


def test_costs_are_plain_numbers() -> None:
    assert not isinstance(COSTS.pull_s(3), np.generic)
