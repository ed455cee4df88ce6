"""What tokens are drawn by, where a device keeps it: buffers that stay where they are.

The host tells what changes: who sits in which row, and the draws' indices. Outputs are counted by
the draws themselves, so penalties need nothing of the host; a bias is a function of parameters and
of whether the answer may end yet; the masks of grammars are told for each draw that has one.
Must not know what is computed.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from common.engine.device_thread import MOST_UNANSWERED
from common.engine.plan import Draw
from common.engine.stream import Stream
from common.errors import InvariantBroken
from common.ids import TransferId
from common.kernels.triton.logprob_rows import MOST_TOP, LogprobRows
from common.kernels.triton.sampling_rows import (
    SamplingRows,
    bias_of,
    has_bias,
    history_of,
    limits_of,
    mask_words,
    masks_ends,
    pack_mask,
    penalties_of,
    reads_history,
    scale_of,
)
from common.params import SamplingParams
from common.text.token_rules import follows_outputs
from decode.device_block import DeviceBlock
from decode.wide_rows import WideRows

Who = tuple[TransferId, int, int]
Bias = tuple[Who, bool]

# S draws, at most  V vocabulary  W words of a mask


class DrawInputs:
    """Of passes with at most one draw a row, in the rows' order. One pass after the other, by one
    thread."""

    def __init__(self, n_rows: int, n_vocab: int, stream: Stream) -> None:
        self.n_rows, self._n_vocab = n_rows, n_vocab
        self._block = DeviceBlock(
            {
                "scale": (np.float64, (n_rows,)),
                "limits": (np.int64, (n_rows, 4)),
                "keys": (np.int64, (n_rows, 3)),
                "penalty": (np.float32, (n_rows, 3)),
                "history": (np.int32, (n_rows,)),
                "bias": (np.int32, (n_rows,)),
                "mask": (np.int32, (n_rows,)),
                "wanted": (np.int32, (n_rows,)),
            },
            stream,
        )
        self._histories = WideRows(n_rows, n_vocab, np.int32, stream)
        self._biases = WideRows(n_rows, n_vocab, np.float32, stream)
        self._n_counted = [0] * n_rows  # outputs, by each history
        n_words = mask_words(n_vocab)
        self._masks_SW = torch.zeros((n_rows, n_words), dtype=torch.int32, device=stream.device)
        self._outgoing_masks = [
            _OutgoingMasks(n_rows, n_words, stream) for _ in range(MOST_UNANSWERED)
        ]
        self._turn = 0
        self._seated: list[Who | None] = [None] * n_rows
        self._is_plain = [True] * n_rows  # by temperature, top_k, top_p and min_p alone
        device = self._block.device
        self._logprobs = LogprobRows.of(device["wanted"], n_vocab)
        self._drawing = SamplingRows(
            scale_R=device["scale"],
            limits_R4=device["limits"],
            keys_R3=device["keys"],
            penalty_R3=device["penalty"],
            history_R=device["history"],
            history_HV=self._histories.rows_HV,
            bias_R=device["bias"],
            bias_SV=self._biases.rows_HV,
            mask_R=device["mask"],
            mask_MW=self._masks_SW,
        )
        self._tell_nobody()
        self._block.send()

    # --- on the host -----------------------------------------------------------------------------

    def lacks_outputs(self, draw: Draw) -> bool:
        """Whether the draw needs outputs that its plan does not know: those of the pass before."""
        if len(draw.outputs) == draw.index:
            return False
        if reads_history(draw.params) and not self._has_counted(draw):
            return True
        return follows_outputs(draw.params.grammar)

    def tell(self, draws: Sequence[Draw], allowed: Mapping[int, NDArray[np.bool_]]) -> None:
        """Ask the device to take over what they are drawn by. `allowed` [V], by place among them:
        what it may draw, by its grammar. While no more than one pass that it was called for is
        unanswered, and `drawn` was called for those."""
        self._tell_nobody()
        host = self._block.host
        for row, draw in enumerate(draws):
            if self._seated[row] != _who(draw):
                self._seat(row, draw)
        host["keys"][: len(draws), 2] = [draw.index for draw in draws]
        special = [(row, draw) for row, draw in enumerate(draws) if not self._is_plain[row]]
        self._tell_histories([(row, d) for row, d in special if reads_history(d.params)])
        self._tell_biases([(row, d) for row, d in special if has_bias(d)])
        self._tell_masks(allowed)
        for row, draw in special:
            host["wanted"][row] = self._n_told(draw.params)
        self._block.send()

    def drawn(self, draws: Sequence[Draw]) -> None:
        """The draws that were told are asked for, so they will have been counted."""
        for draw in draws:
            row = self._histories.row(_who(draw))
            if row >= 0:
                self._n_counted[row] = draw.index + 1

    def forget(self, draws: Sequence[Draw]) -> None:
        """They are drawn elsewhere, where nobody counts."""
        for draw in draws:
            self._histories.leave(_who(draw))

    def _tell_nobody(self) -> None:
        for name in ("history", "bias", "mask", "wanted"):
            self._block.host[name][:] = -1

    def _seat(self, row: int, draw: Draw) -> None:
        params, host = draw.params, self._block.host
        self._seated[row] = _who(draw)
        host["scale"][row] = scale_of(params)
        host["limits"][row] = limits_of(params, self._n_vocab)
        host["keys"][row] = params.seed, draw.sample, 0
        host["penalty"][row] = penalties_of(params)
        is_free = not (params.logit_bias or params.min_tokens or params.grammar)
        self._is_plain[row] = is_free and params.logprobs is None and not reads_history(params)

    def _has_counted(self, draw: Draw) -> bool:
        row = self._histories.row(_who(draw))
        return row >= 0 and self._n_counted[row] == draw.index

    def _tell_histories(self, penalised: Sequence[tuple[int, Draw]]) -> None:
        for _, draw in penalised:
            if not self._has_counted(draw):  # begun elsewhere, or drawn again
                self._histories.leave(_who(draw))
        new = set(self._histories.seat([_who(draw) for _, draw in penalised]))
        for row, draw in penalised:
            who = _who(draw)
            if who in new:
                if len(draw.outputs) != draw.index:
                    raise InvariantBroken(f"{who}: {len(draw.outputs)} of {draw.index} outputs")
                self._histories.bring(who, history_of(draw, self._n_vocab))
            at = self._histories.row(who)
            self._n_counted[at] = draw.index
            self._block.host["history"][row] = at

    def _tell_biases(self, biased: Sequence[tuple[int, Draw]]) -> None:
        new = set(self._biases.seat([_bias(draw) for _, draw in biased]))
        for row, draw in biased:
            if _bias(draw) in new:
                self._biases.bring(_bias(draw), bias_of(draw, self._n_vocab))
            self._block.host["bias"][row] = self._biases.row(_bias(draw))

    def _tell_masks(self, allowed: Mapping[int, NDArray[np.bool_]]) -> None:
        if not allowed:
            return
        self._turn = (self._turn + 1) % MOST_UNANSWERED
        outgoing, n = self._outgoing_masks[self._turn], len(allowed)
        for at, (row, allowed_V) in enumerate(allowed.items()):
            pack_mask(allowed_V, outgoing.array_SW[at])
            self._block.host["mask"][row] = at
        self._masks_SW[:n].copy_(outgoing.pinned_SW[:n], non_blocking=True)

    def _n_told(self, params: SamplingParams) -> int:
        """Alternatives that the device finds; -1: none is wanted, or more."""
        if params.logprobs is None or params.logprobs > MOST_TOP:
            return -1
        return min(params.logprobs, self._n_vocab)

    # --- on the device ---------------------------------------------------------------------------

    def drawing(self, n_rows: int) -> SamplingRows:
        return self._drawing.first(n_rows)

    def logprobs(self, n_rows: int) -> LogprobRows:
        return self._logprobs.first(n_rows)


class _OutgoingMasks:
    """Memory that the device copies from."""

    def __init__(self, n_rows: int, n_words: int, stream: Stream) -> None:
        self.pinned_SW = stream.pinned(n_rows * n_words, torch.int32).view(n_rows, n_words)
        self.array_SW: NDArray[np.int32] = self.pinned_SW.numpy()


def _who(draw: Draw) -> Who:
    return (draw.transfer, draw.attempt, draw.sample)


def _bias(draw: Draw) -> Bias:
    """Whose it is, and which of its two."""
    return (_who(draw), masks_ends(draw))
