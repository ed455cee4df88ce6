"""What the tokens of a pass are drawn by, as arrays on the device. Must not import Triton.

R rows  V vocabulary  H rows with a history  S rows with a bias  M rows with a mask, of W words
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from common.kernels import draws
from common.kernels.draws import UNIFORM_BITS, weight_bits
from common.kernels.triton.rows import tensor_of
from common.params import SamplingParams

IN_PROMPT = 1 << 30
"""Of an entry of a history: the token is in the prompt. What is below counts it in the outputs."""

MASK_BITS = 32  # of a word of a mask
MAX_SHIFT = 127  # of top_p: what is shifted has fewer bits than that


class Drawing(Protocol):
    """What is read of `common.engine.plan.Draw`."""

    @property
    def params(self) -> SamplingParams: ...
    @property
    def prompt(self) -> tuple[int, ...]: ...
    @property
    def outputs(self) -> tuple[int, ...]: ...
    @property
    def sample(self) -> int: ...
    @property
    def index(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingRows:
    """Kept from step to step, and changed in place.

    scale_R     float64; of a logit's distance to the largest, to an exponent of 2; 0: greedy
    limits_R4   int64; the least weight by min_p (0: any); top_k (0: all); top_p, as a mantissa
                (0: all) over a power of 2
    keys_R3     int64; seed, sample, index: what the draw's randomness is a function of
    penalty_R3  float32; repetition, frequency, presence
    history_R   int32; row of history_HV, or -1: no penalties
    history_HV  int32; see IN_PROMPT; the drawn token is counted
    bias_R      int32; row of bias_SV, or -1
    bias_SV     float32; -inf: must not be drawn
    mask_R      int32; row of mask_MW, or -1: any token may be drawn
    mask_MW     int32; see `pack_mask`
    """

    scale_R: Tensor
    limits_R4: Tensor
    keys_R3: Tensor
    penalty_R3: Tensor
    history_R: Tensor
    history_HV: Tensor
    bias_R: Tensor
    bias_SV: Tensor
    mask_R: Tensor
    mask_MW: Tensor

    def first(self, n_rows: int) -> "SamplingRows":
        """Of the first rows alone, sharing all of it."""
        return replace(
            self,
            scale_R=self.scale_R[:n_rows],
            limits_R4=self.limits_R4[:n_rows],
            keys_R3=self.keys_R3[:n_rows],
            penalty_R3=self.penalty_R3[:n_rows],
            history_R=self.history_R[:n_rows],
            bias_R=self.bias_R[:n_rows],
            mask_R=self.mask_R[:n_rows],
        )

    @staticmethod
    def of(
        drawing: Sequence[Drawing],
        allowed: Mapping[int, NDArray[np.bool_]],
        n_vocab: int,
        device: torch.device,
    ) -> "SamplingRows":
        """`allowed` [V] by draw: what its grammar lets it draw."""
        histories, biases = _Table(n_vocab, np.int32), _Table(n_vocab, np.float32)
        masks = _Table(mask_words(n_vocab), np.int32)
        for row, draw in enumerate(drawing):
            histories.add(history_of(draw, n_vocab) if reads_history(draw.params) else None)
            biases.add(bias_of(draw, n_vocab) if has_bias(draw) else None)
            masks.add(_mask(allowed[row]) if row in allowed else None)
        params = [draw.params for draw in drawing]
        arrays: dict[str, NDArray[np.generic]] = {
            "scale_R": np.array([scale_of(p) for p in params]),
            "limits_R4": np.array([limits_of(p, n_vocab) for p in params], np.int64),
            "keys_R3": np.array([(d.params.seed, d.sample, d.index) for d in drawing], np.int64),
            "penalty_R3": np.array([penalties_of(p) for p in params], np.float32),
            "history_R": np.array(histories.row_of, np.int32),
            "history_HV": histories.rows,
            "bias_R": np.array(biases.row_of, np.int32),
            "bias_SV": biases.rows,
            "mask_R": np.array(masks.row_of, np.int32),
            "mask_MW": masks.rows,
        }
        return SamplingRows(**{name: tensor_of(array, device) for name, array in arrays.items()})


class _Table:
    """Rows that some draws have."""

    def __init__(self, width: int, dtype: type[np.generic]) -> None:
        self._rows: list[NDArray[np.generic]] = []
        self._empty = np.zeros((0, width), dtype)
        self.row_of: list[int] = []

    def add(self, row_V: NDArray[np.generic] | None) -> None:
        """Of the next draw; None: it has none."""
        self.row_of.append(-1 if row_V is None else len(self._rows))
        if row_V is not None:
            self._rows.append(row_V)

    @property
    def rows(self) -> NDArray[np.generic]:
        return np.stack(self._rows) if self._rows else self._empty


def scale_of(params: SamplingParams) -> float:
    """See `SamplingRows.scale_R`."""
    return 0.0 if params.temperature == 0 else draws.scale_of(params.temperature)


def limits_of(params: SamplingParams, n_vocab: int) -> tuple[int, int, int, int]:
    """See `SamplingRows.limits_R4`."""
    most = 1 << weight_bits(n_vocab)  # the most likely token's weight
    least = math.ceil(Fraction(params.min_p) * most)
    top_k = params.top_k if 0 < params.top_k < n_vocab else 0
    if params.top_p >= 1:
        return least, top_k, 0, UNIFORM_BITS
    fraction, exponent = math.frexp(params.top_p)
    mantissa = int(math.ldexp(fraction, UNIFORM_BITS))
    return least, top_k, mantissa, min(UNIFORM_BITS - exponent, MAX_SHIFT)


def penalties_of(params: SamplingParams) -> tuple[float, float, float]:
    """See `SamplingRows.penalty_R3`."""
    return params.repetition_penalty, params.frequency_penalty, params.presence_penalty


def reads_history(params: SamplingParams) -> bool:
    """Whether such draws need a row of `SamplingRows.history_HV`."""
    return penalties_of(params) != (1, 0, 0)


def history_of(draw: Drawing, n_vocab: int) -> NDArray[np.int32]:
    """Such a row, of all its outputs and, where it is read, the prompt."""
    history_V = np.zeros(n_vocab, np.int32)
    np.add.at(history_V, np.array(draw.outputs, np.int64), 1)
    if draw.params.repetition_penalty != 1:
        history_V[np.array(draw.prompt, np.int64)] |= IN_PROMPT
    return history_V


def masks_ends(draw: Drawing) -> bool:
    """Whether it must not be a token that ends the answer, yet."""
    params = draw.params
    return draw.index < params.min_tokens and bool(params.end_token_ids + params.stop_token_ids)


def has_bias(draw: Drawing) -> bool:
    """Whether it needs a row of `SamplingRows.bias_SV`."""
    return bool(draw.params.logit_bias) or masks_ends(draw)


def bias_of(draw: Drawing, n_vocab: int) -> NDArray[np.float32]:
    """Such a row, a function of its parameters and `masks_ends`."""
    params = draw.params
    bias_V = np.zeros(n_vocab, np.float32)
    for token, bias in params.logit_bias:
        bias_V[token] = bias
    if masks_ends(draw):
        bias_V[list(params.end_token_ids + params.stop_token_ids)] = -np.inf
    return bias_V


def mask_words(n_vocab: int) -> int:
    """Of a row of `SamplingRows.mask_MW`."""
    return -(-n_vocab // MASK_BITS)


def pack_mask(allowed_V: NDArray[np.bool_], mask_W: NDArray[np.int32]) -> None:
    """Into such a row: bit t % 32 of word t // 32 is set where token t may be drawn."""
    bits = np.packbits(allowed_V, bitorder="little")
    mask_W.view(np.uint8)[: len(bits)] = bits


def _mask(allowed_V: NDArray[np.bool_]) -> NDArray[np.int32]:
    mask_W = np.zeros(mask_words(len(allowed_V)), np.int32)
    pack_mask(allowed_V, mask_W)
    return mask_W
