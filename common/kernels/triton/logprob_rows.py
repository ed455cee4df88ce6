"""What is asked and told of drawn tokens' log-probabilities, as arrays on the device. Must not
import Triton.

R rows  K blocks of the vocabulary  N alternatives, at most  C columns
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

MOST_TOP = 20
"""Alternatives of a token, as vLLM's `--max-logprobs` has it; whoever wants more asks otherwise."""

BLOCK = 2048  # tokens of a row looked at together
RANK, TOTAL, TARGET, TOP = 0, 1, 2, 3  # columns
TOP_TOKENS, TOP_LOGITS = 4, 4 + MOST_TOP  # the first of each
N_COLUMNS = TOP_LOGITS + MOST_TOP


@dataclass(frozen=True, slots=True, kw_only=True)
class LogprobRows:
    """Kept from step to step, and changed in place.

    wanted_R  int32; alternatives, MOST_TOP and the vocabulary at most; -1: nothing is told
    keys_RKN  int64; what is found on the way
    told_RC   int64; see `read`
    """

    wanted_R: Tensor
    keys_RKN: Tensor
    told_RC: Tensor

    @staticmethod
    def of(wanted_R: Tensor, n_vocab: int) -> "LogprobRows":
        """On the device of `wanted_R`."""
        n_rows, device = len(wanted_R), wanted_R.device
        n_blocks = -(-n_vocab // BLOCK)
        keys_RKN = torch.empty((n_rows, n_blocks, MOST_TOP), dtype=torch.int64, device=device)
        told_RC = torch.zeros((n_rows, N_COLUMNS), dtype=torch.int64, device=device)
        return LogprobRows(wanted_R=wanted_R, keys_RKN=keys_RKN, told_RC=told_RC)

    def first(self, n_rows: int) -> "LogprobRows":
        """Of the first rows alone, sharing all of it."""
        return replace(
            self,
            wanted_R=self.wanted_R[:n_rows],
            keys_RKN=self.keys_RKN[:n_rows],
            told_RC=self.told_RC[:n_rows],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """Of one token, under raw logits."""

    rank: int  # 1: the most likely
    total: int  # of the row's weights (`common.kernels.draws`), at temperature 1
    logit: float
    top_logit: float  # the largest
    top: list[tuple[int, float]]  # tokens and logits, the most likely first, ties by id


def read(told_C: NDArray[np.int64], n_top: int) -> Told:
    """A row of `LogprobRows.told_RC`, in memory."""
    logits_C = told_C.astype(np.int32).view(np.float32)
    tokens = told_C[TOP_TOKENS : TOP_TOKENS + n_top].tolist()
    logits = logits_C[TOP_LOGITS : TOP_LOGITS + n_top].tolist()
    return Told(
        rank=int(told_C[RANK]),
        total=int(told_C[TOTAL]),
        logit=float(logits_C[TARGET]),
        top_logit=float(logits_C[TOP]),
        top=list(zip(tokens, logits, strict=True)),
    )
