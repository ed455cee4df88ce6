"""Runs a plan on a device: the only place where a pass is computed.

Must not decide anything: what is computed, for whom and into which pages is in the plan.
"""

import time
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from common.engine.constraints import Constraints
from common.engine.plan import (
    Draw,
    Drawn,
    PassPlan,
    PassResult,
    Piece,
    ScorePrompt,
    filled,
    pack,
)
from common.ids import PageId
from common.kernels.attention_plan import Sequences
from common.kernels.attention_rows import AttentionRows
from common.kernels.paged import PageGeometry
from common.kernels.triton.rows import tensor_of
from common.kv.cache import KVCache
from common.kv.layout import pages_for
from common.model.inputs import PassInputs
from common.params import TokenLogprob
from common.sampling import sample, score

_CPU = torch.device("cpu")
SCORED_ROWS = 64  # logits of so many prompt rows are in memory at once

# T rows (packed tokens)  R rows whose logits are wanted  D draws  H hidden  V vocabulary


class Model(Protocol):
    """What a family's file in `common.model` provides."""

    def forward(self, inputs: PassInputs, kv: KVCache) -> Tensor:
        """Hidden states [T, H] after the final norm; the rows' KV is written."""
        ...

    def logits(self, hidden_RH: Tensor) -> Tensor:
        """[R, V] float32."""
        ...


class Runner:
    """A model and the pool that its passes read and write."""

    def __init__(
        self, model: Model, cache: KVCache, constraints: Constraints | None = None
    ) -> None:
        """`constraints`: of draws with a grammar; None: there will be none."""
        self.model = model
        self.cache = cache
        self._constraints = constraints
        self.device = cache.pages_PB.device
        self._drawn: tuple[Drawn, ...] = ()  # by the last pass, if it did not raise

    @torch.inference_mode()
    def run(self, plan: PassPlan) -> PassResult:
        """Copy pages, compute the rows, then draw and score. On return all writes are done.

        Tokens that the plan does not know yet are those of the last `run`; IndexError: it raised.
        """
        began = time.perf_counter()
        before, self._drawn = self._drawn, ()
        plan = filled(plan, before)
        hidden_TH = self.hidden(plan)
        drawn = self._drawn = self._draw(hidden_TH, plan.draws)
        scores = tuple(self._score(hidden_TH, wanted) for wanted in plan.scores)
        return PassResult(drawn=drawn, scores=scores, seconds=time.perf_counter() - began)

    @torch.inference_mode()
    def hidden(self, plan: PassPlan) -> Tensor:
        """Copy pages and compute the rows: their hidden states [T, H]."""
        for source, destination in plan.copies:
            self.cache.copy_page(source, destination)
        inputs = inputs_of(plan, self.cache.geometry, self.device)
        return self.model.forward(inputs, self.cache)

    def warm_up(self, n_tokens: int) -> float:
        """Run a prompt of at most `n_tokens`, and one more token; seconds that the first took.

        Overwrites the pool's first pages: only while none of them is in use.
        """
        page_tokens = self.cache.spec.page_tokens
        n_tokens = max(1, min(n_tokens, self.cache.n_pages * page_tokens - 1))
        pages = [PageId(page) for page in range(pages_for(n_tokens + 1, page_tokens))]
        seconds = [
            self.run(PassPlan(**pack([piece], page_tokens))).seconds  # pyright: ignore[reportArgumentType] pack() names its arrays as PassPlan does
            for piece in (Piece([0] * n_tokens, 0, pages), Piece([0], n_tokens, pages))
        ]
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
            torch.cuda.empty_cache()  # what comes next is on other streams, which have their own
        return seconds[0]

    def _draw(self, hidden_TH: Tensor, draws: tuple[Draw, ...]) -> tuple[Drawn, ...]:
        return self.drawn_from(self.logits_of(hidden_TH, draws), draws) if draws else ()

    def logits_of(self, hidden_TH: Tensor, draws: tuple[Draw, ...]) -> Tensor:
        """[D, V] float32: a row a draw, of which there are some."""
        row_D = np.fromiter((draw.row for draw in draws), np.int64, len(draws))
        if (row_D[:-1] < row_D[1:]).all():
            return self._logits(hidden_TH, row_D)
        row_R, at_D = np.unique(row_D, return_inverse=True)  # samples of one prompt share a row
        return self._logits(hidden_TH, row_R).index_select(0, self._tensor(at_D))

    def drawn_from(self, logits_DV: Tensor, draws: tuple[Draw, ...]) -> tuple[Drawn, ...]:
        """By rules and grammars, a row each. Waits for the device."""
        return sample(logits_DV, draws, self.allowed(draws))

    def allowed(self, draws: tuple[Draw, ...]) -> dict[int, NDArray[np.bool_]]:
        """By draw that is held to anything: [V], what it may draw."""
        return {} if self._constraints is None else self._constraints.allowed(draws)

    def _logits(self, hidden_TH: Tensor, row_R: NDArray[np.int64]) -> Tensor:
        return self.model.logits(hidden_TH.index_select(0, self._tensor(row_R)))

    def _tensor(self, array: NDArray[np.int64]) -> Tensor:
        return tensor_of(array, self.device)

    def _score(self, hidden_TH: Tensor, wanted: ScorePrompt) -> tuple[TokenLogprob, ...]:
        scores: list[TokenLogprob] = []
        for at in range(0, len(wanted.targets), SCORED_ROWS):
            targets = wanted.targets[at : at + SCORED_ROWS]
            first = wanted.first_row + at
            logits_RV = self.model.logits(hidden_TH[first : first + len(targets)])
            scores += score(logits_RV, targets, wanted.n_top)
        return tuple(scores)


def inputs_of(plan: PassPlan, geometry: PageGeometry, device: torch.device = _CPU) -> PassInputs:
    """The plan as tensors, which in memory share its own. `geometry` of the pool that its pages
    are in."""
    sequences = Sequences(start_B1=plan.start_B1, len_B=plan.len_B, tables_BM=plan.tables_BM)
    return PassInputs(
        tokens_T=tensor_of(plan.tokens_T, device),
        rows=AttentionRows(
            tensor_of(plan.positions_T, device),
            tensor_of(plan.slots_T, device),
            sequences,
            geometry,
        ),
    )
