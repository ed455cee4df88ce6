"""Penalties and truncations leave what those of transformers leave."""

import pytest
import torch
from torch import Tensor
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from common.engine.plan import Draw
from common.ids import TransferId
from common.params import SamplingParams
from common.sampling import _changed_logits, _truncate, _weights

N_VOCAB = 3000
PROMPT = (5, 17, 17, 900)
OUTPUTS = (17, 2, 2, 2, 1500)


def rows(n: int) -> Tensor:
    return torch.randn(n, N_VOCAB, generator=torch.Generator().manual_seed(5)) * 4


def test_penalties_biases_and_masks_are_bitwise_those_of_transformers() -> None:
    params = SamplingParams(
        max_tokens=9,
        seed=0,
        repetition_penalty=1.3,
        logit_bias=((17, 2.5), (31, -7.25)),
        min_tokens=6,
        end_token_ids=(2, 3),
        stop_token_ids=(40,),
    )
    theirs = LogitsProcessorList(
        [
            MinNewTokensLengthLogitsProcessor(len(PROMPT), 6, [2, 3, 40], device="cpu"),
            SequenceBiasLogitsProcessor([[[17], 2.5], [[31], -7.25]]),
            RepetitionPenaltyLogitsProcessor(1.3),
        ]
    )
    for logits_V in rows(20):
        draw = Draw(
            transfer=TransferId("t"),
            attempt=0,
            sample=0,
            index=len(OUTPUTS),
            row=0,
            params=params,
            prompt=PROMPT,
            outputs=OUTPUTS,
        )
        ids = torch.LongTensor([PROMPT + OUTPUTS])
        expected = theirs(ids, logits_V[None].clone())[0]
        assert torch.equal(_changed_logits(logits_V, draw), expected)


@pytest.mark.parametrize("temperature", [0.7, 1.0, 3.0])
@pytest.mark.parametrize(
    ("min_p", "top_k", "top_p"),
    [(0.0, 50, 1.0), (0.0, 0, 0.9), (0.0, 0, 0.999), (0.02, 0, 1.0), (0.01, 40, 0.9)],
)
def test_truncations_keep_the_tokens_that_transformers_keeps(
    temperature: float, min_p: float, top_k: int, top_p: float
) -> None:
    params = SamplingParams(max_tokens=1, seed=0, min_p=min_p, top_k=top_k, top_p=top_p)
    theirs = LogitsProcessorList([TemperatureLogitsWarper(temperature)])
    if min_p:
        theirs.append(MinPLogitsWarper(min_p))
    if top_k:
        theirs.append(TopKLogitsWarper(top_k))
    if top_p < 1:
        theirs.append(TopPLogitsWarper(top_p))
    logits_RV = rows(10).double()
    kept = theirs(torch.LongTensor(10, 0), logits_RV.clone()).isfinite()
    weights_RV = _weights(logits_RV, [temperature] * 10)
    for r in range(10):
        _truncate(weights_RV[r], logits_RV[r], params)
    assert torch.equal(weights_RV > 0, kept)
