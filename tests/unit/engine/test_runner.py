import math
from dataclasses import replace

import msgspec
import numpy as np
import pytest
import torch
from torch import Tensor

from common.engine.plan import Draw, Drawn, PassPlan, Piece, ScorePrompt, filled, pack
from common.engine.runner import SCORED_ROWS, Runner
from common.ids import PageId, TransferId
from common.kv.cache import KVCache
from common.kv.layout import KVSpec
from common.model.inputs import PassInputs
from common.params import SamplingParams

PAGE_TOKENS = 4
VOCAB = 16
GREEDY = SamplingParams(max_tokens=9, seed=0, temperature=0.0)


class NextToken:
    """A model that is sure of token + 1, and writes every token's id as its key."""

    def __init__(self) -> None:
        self.logit_rows: list[int] = []

    def forward(self, inputs: PassInputs, kv: KVCache) -> Tensor:
        slots_T = inputs.rows.slots_T
        where = (slots_T // PAGE_TOKENS, slots_T % PAGE_TOKENS)
        keys_TGD = inputs.tokens_T[:, None, None].float().expand(-1, 1, 8)
        kv.layer(0).k_PSGD.index_put_(where, keys_TGD)
        return torch.nn.functional.one_hot(inputs.tokens_T, VOCAB).float()

    def logits(self, hidden_RH: Tensor) -> Tensor:
        self.logit_rows.append(len(hidden_RH))
        return hidden_RH.roll(1, dims=1) * 10


def runner(n_pages: int = 8) -> tuple[Runner, NextToken]:
    spec = KVSpec(n_layers=1, n_kv_heads=1, head_dim=8, page_tokens=PAGE_TOKENS, dtype="float32")
    model = NextToken()
    return Runner(model, KVCache(spec, np.zeros((n_pages, spec.page_bytes), np.uint8))), model


def pages(*ids: int) -> list[PageId]:
    return [PageId(i) for i in ids]


def draw(row: int, sample: int = 0, params: SamplingParams = GREEDY, index: int = 0) -> Draw:
    """After an output 5, if it is the second."""
    return Draw(
        transfer=TransferId("t"), attempt=0, sample=sample, index=index, row=row, params=params,
        prompt=(), outputs=(5,) * (index - 1),
    )  # fmt: skip


def plan(
    *pieces: Piece,
    draws: tuple[Draw, ...] = (),
    scores: tuple[ScorePrompt, ...] = (),
    copies: tuple[tuple[PageId, PageId], ...] = (),
) -> PassPlan:
    arrays = pack(list(pieces), PAGE_TOKENS)
    return PassPlan(**arrays, draws=draws, scores=scores, copies=copies)  # pyright: ignore[reportArgumentType] pack() names its arrays as PassPlan does


def keys(run: Runner, page: int) -> list[float]:
    return run.cache.layer(0).k_PSGD[page, :, 0, 0].tolist()


def test_tokens_come_in_the_order_of_the_draws() -> None:
    run, _ = runner()
    pieces = Piece([3, 4, 5], 0, pages(0)), Piece([9], 4, pages(1, 2))
    result = run.run(plan(*pieces, draws=(draw(3), draw(2), draw(0))))
    assert [drawn.token for drawn in result.drawn] == [10, 6, 4]
    assert result.seconds > 0


def test_samples_of_one_prompt_share_its_logits() -> None:
    run, model = runner()
    draws = tuple(draw(1, sample) for sample in range(4))
    result = run.run(plan(Piece([3, 4], 0, pages(0)), draws=draws))
    assert [drawn.token for drawn in result.drawn] == [5, 5, 5, 5]
    assert model.logit_rows == [1]


def test_no_logits_without_draws() -> None:
    run, model = runner()
    assert run.run(plan(Piece([3, 4], 0, pages(0)))).drawn == ()
    assert model.logit_rows == []


def test_a_long_prompt_s_logits_never_exist_at_once() -> None:
    run, model = runner(n_pages=60)
    n = 3 * SCORED_ROWS + 1
    prompt = [t % 10 for t in range(n + 1)]
    wanted = ScorePrompt(
        transfer=TransferId("t"), attempt=0, first_row=1, targets=tuple(prompt[1:]), n_top=1
    )
    pieces = Piece([0], 8, pages(59, 58, 57)), Piece(prompt[:-1], 0, pages(*range(50)))
    (scores,) = run.run(plan(*pieces, scores=(wanted,))).scores
    assert model.logit_rows == [SCORED_ROWS, SCORED_ROWS, SCORED_ROWS, 1]
    sure = 10 - math.log(math.exp(10) + VOCAB - 1)
    for i, entry in enumerate(scores):  # token 0 follows 9, which the model thinks impossible
        assert entry.token == prompt[i + 1]
        assert entry.top_tokens == (prompt[i] + 1,)
        assert entry.rank == (1 if prompt[i] < 9 else 2)
        assert math.isclose(entry.logprob, sure if prompt[i] < 9 else sure - 10, abs_tol=1e-5)


def test_tokens_that_are_not_read_yet_are_those_of_the_pass_before() -> None:
    run, _ = runner()
    pieces = Piece([3, 4], 0, pages(0)), Piece([9], 4, pages(1, 2))
    run.run(plan(*pieces, draws=(draw(1), draw(2))))
    ahead = plan(Piece([0], 5, pages(1, 2)), Piece([7], 0, pages(3)), Piece([0], 2, pages(0)))
    unread = {"unread_rows_U": np.array([0, 2]), "unread_draws_U": np.array([1, 0])}
    result = run.run(replace(ahead, draws=(draw(0), draw(1), draw(2)), **unread))
    assert [drawn.token for drawn in result.drawn] == [11, 8, 6]
    assert keys(run, 0)[:3] == [3, 4, 5]
    assert ahead.tokens_T.tolist() == [0, 7, 0]


def test_a_penalty_knows_the_output_that_was_not_read_yet() -> None:
    never_twice = msgspec.structs.replace(GREEDY, presence_penalty=99.0)
    run, _ = runner()
    run.run(plan(Piece([5], 0, pages(0)), draws=(draw(0),)))
    ahead = plan(Piece([0], 1, pages(0)), draws=(draw(0, 0, never_twice, 2),))
    ahead = replace(ahead, unread_rows_U=np.array([0]), unread_draws_U=np.array([0]))
    full = filled(ahead, (Drawn(token=6),))
    assert full.draws[0].outputs == (5, 6)
    assert filled(full, ()) is full
    assert run.run(ahead).drawn[0].token == 7


def test_there_are_none_after_a_pass_that_raised() -> None:
    run, _ = runner()
    run.run(plan(Piece([5], 0, pages(0)), draws=(draw(0),)))
    with pytest.raises(IndexError):
        run.run(plan(Piece([1], 0, pages(0)), draws=(draw(9),)))
    ahead = replace(
        plan(Piece([0], 1, pages(0))), unread_rows_U=np.array([0]), unread_draws_U=np.array([0])
    )
    with pytest.raises(IndexError):
        run.run(ahead)


def test_pages_are_copied_before_the_rows_are_written() -> None:
    run, _ = runner()
    run.run(plan(Piece([1, 2, 3, 4], 0, pages(0))))
    run.run(plan(Piece([9], 3, pages(5)), copies=((PageId(0), PageId(5)),)))
    assert keys(run, 0) == [1, 2, 3, 4]
    assert keys(run, 5) == [1, 2, 3, 9]


def test_warming_up_fits_any_pool() -> None:
    run, _ = runner(n_pages=1)
    assert run.warm_up(512) > 0
