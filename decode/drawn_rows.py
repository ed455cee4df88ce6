"""What a pass has drawn, on its way to memory that a device writes while the host goes on."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from common.engine.plan import Draw, Drawn
from common.engine.stream import Stream
from common.kernels.triton.logprob_rows import N_COLUMNS, LogprobRows, read
from common.params import TokenLogprob
from common.sampling import all_drawn, told_logprob

# S draws, at most  R of a pass  C columns


class DrawnRows:
    """Of one pass at a time."""

    def __init__(self, n_rows: int, n_vocab: int, stream: Stream) -> None:
        self._n_vocab = n_vocab
        self._pinned_S = stream.pinned(n_rows, torch.int64)
        self._pinned_SC = stream.pinned(n_rows * N_COLUMNS, torch.int64).view(n_rows, N_COLUMNS)
        self._token_S: NDArray[np.int64] = self._pinned_S.numpy()
        self._told_SC: NDArray[np.int64] = self._pinned_SC.numpy()

    def ask_for_tokens(self, token_S: Tensor) -> None:
        self._pinned_S.copy_(token_S, non_blocking=True)

    def ask_for_logprobs(self, rows: LogprobRows) -> None:
        told_RC = rows.told_RC
        self._pinned_SC[: len(told_RC)].copy_(told_RC, non_blocking=True)

    # --- once the device has done it -------------------------------------------------------------

    def token(self, row: int) -> int:
        """-1: none could be drawn."""
        return int(self._token_S[row])

    def read(self, draws: Sequence[Draw], scores: Mapping[int, TokenLogprob]) -> tuple[Drawn, ...]:
        """`scores`: of rows that were told otherwise. ArithmeticError: one could not be drawn."""
        tokens = all_drawn(self._token_S[: len(draws)].tolist())
        return tuple(
            Drawn(token=token, logprob=scores.get(row) or self._logprob(row, token, draw))
            for row, (token, draw) in enumerate(zip(tokens, draws, strict=True))
        )

    def _logprob(self, row: int, token: int, draw: Draw) -> TokenLogprob | None:
        if draw.params.logprobs is None:
            return None
        n_top = min(draw.params.logprobs, self._n_vocab)
        return told_logprob(token, read(self._told_SC[row], n_top), self._n_vocab)
