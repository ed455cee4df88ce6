"""What devices tell of drawn tokens: the log-probabilities that torch comes to, bit by bit."""

import math

import pytest
import torch
from torch import Tensor

from common.kernels.triton import choice
from common.kernels.triton.logprob_rows import BLOCK, MOST_TOP, LogprobRows, read
from common.params import TokenLogprob
from common.sampling import score, told_logprob
from tests.conformance.kernels.in_triton.traffic import counting

pytestmark = pytest.mark.usefixtures("path")


def told(logits_RV: Tensor, tokens: list[int], wanted: list[int]) -> list[TokenLogprob | None]:
    from common.kernels.triton.logprobs import logprobs

    n_vocab = logits_RV.shape[1]
    rows = LogprobRows.of(torch.tensor(wanted, dtype=torch.int32), n_vocab)
    logprobs(logits_RV, torch.tensor(tokens), rows)
    return [
        None if n < 0 else told_logprob(token, read(told_C, n), n_vocab)
        for token, n, told_C in zip(tokens, wanted, rows.told_RC.numpy(), strict=True)
    ]


def some_logits(n_vocab: int) -> Tensor:
    """Any; with ties; masked; all alike, as 0 and as -0; of which one is all that is likely."""
    z_RV = torch.randn(5, n_vocab, generator=torch.Generator().manual_seed(n_vocab)) * 4
    z_RV[1] = z_RV[1].round()
    z_RV[2, ::2] = -math.inf
    z_RV[2, n_vocab // 2] = 3.0
    z_RV[3], z_RV[3, ::3] = 0.0, -0.0
    z_RV[4, n_vocab - 1] = 90.0
    return z_RV


@pytest.mark.parametrize("n_vocab", [1, 7, MOST_TOP, BLOCK, BLOCK + 1])
def test_bits_are_those_of_torch(n_vocab: int) -> None:
    z_RV = some_logits(n_vocab)
    tokens = [n_vocab // 2, n_vocab // 3, n_vocab // 2, n_vocab - 1, 0]
    wanted = [min(n, n_vocab) for n in (0, MOST_TOP, 3, MOST_TOP, 1)]
    on_device = told(z_RV, tokens, wanted)
    choice.interpret(wanted=False)
    for r, (token, n_top) in enumerate(zip(tokens, wanted, strict=True)):
        assert on_device[r] == score(z_RV[r : r + 1], [token], n_top)[0]


def test_rows_that_want_nothing_are_not_read() -> None:
    z_RV = some_logits(3 * BLOCK)
    with counting() as of_one:
        told(z_RV, [1] * 5, [-1, 2, -1, -1, -1])
    with counting() as of_none:
        told(z_RV, [1] * 5, [-1] * 5)
    assert 2 * z_RV[0].nbytes <= of_one.n_bytes <= 1.05 * 2 * z_RV[0].nbytes
    assert of_none.n_bytes < 256
    assert told(z_RV[:1], [-1], [2])[0] is not None  # whose draw has failed: no more than a number
