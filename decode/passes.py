"""A composed step becomes a plan: rows in, the arrays, draws and scores of a `PassPlan` out.

Decides nothing, and changes nothing but the rows that it is given.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from common.engine.plan import Draw, PassPlan, ScorePrompt
from common.ids import PageId, StepId
from decode.state import Sample, Table
from decode.tables import PageTables


@dataclass(slots=True)
class Row:
    """One sequence in a pass: tokens[start:end] of it are computed, all pages are in its table."""

    sample: Sample
    table: Table  # the sample's, as long as it has not left
    start: int
    end: int
    draws: tuple[Sample, ...]  # who draws from its last token's logits
    unread: bool  # its one token is drawn by the pass before, by the draw `table.draw`
    scores: bool = False  # set by `build`: it has a ScorePrompt, in the rows' order
    ahead: tuple[int, int] = (0, 0)  # pages taken for repetitions, of which promised

    @property
    def is_live(self) -> bool:
        """Its results are still wanted: the sample has not ended, failed or given way since."""
        return self.sample.table is self.table


@dataclass(frozen=True, slots=True)
class Pass:
    """What a Launch is for."""

    step: StepId
    rows: tuple[Row, ...]
    plan: PassPlan

    @property
    def is_shared(self) -> bool:
        """By several transfers."""
        return len({row.sample.transfer.key for row in self.rows}) > 1


def build(
    step: StepId,
    rows: Sequence[Row],
    copies: Sequence[tuple[PageId, PageId]],
    tables: PageTables,
    page_tokens: int,
    repeats: int,
) -> Pass:
    """Draws are in the rows' order, and within a row in that of `row.draws`."""
    tokens: list[int] = []
    draws: list[Draw] = []
    scores: list[ScorePrompt] = []
    unread: list[tuple[int, int]] = []  # (row, draw of the pass before)
    for row in rows:
        sample = row.sample
        if row.unread:
            unread.append((len(tokens), row.table.draw))
            tokens.append(0)
        else:
            if sample.scores and row.start + 1 < len(sample.prompt):
                row.scores = True
                scores.append(_score(row, len(tokens)))
            tokens += sample.tokens(row.start, row.end)
        if row.draws:
            row.table.draw = len(draws)
            last, index = len(tokens) - 1, len(sample.outputs) + row.unread
            draws += [_draw(drawing, last, index) for drawing in row.draws]
    rows_U, draws_U = np.array(unread, np.int64).reshape(-1, 2).T
    ends_B = np.array([row.end for row in rows], np.int32)
    starts_B = np.array([row.start for row in rows], np.int64)
    counts_B = ends_B - starts_B
    start_B1 = np.zeros(len(rows) + 1, np.int32)
    np.cumsum(counts_B, out=start_B1[1:])
    n_pages = -(-(int(ends_B.max()) + repeats - 1) // page_tokens)
    tables_BM = tables.gather([row.table for row in rows], n_pages)
    row_B = np.repeat(np.arange(len(rows)), counts_B)
    positions_T = np.arange(len(tokens)) + (starts_B - start_B1[:-1])[row_B]
    pages_T = tables_BM[row_B, positions_T // page_tokens].astype(np.int64)
    plan = PassPlan(
        tokens_T=np.array(tokens, np.int64),
        positions_T=positions_T,
        slots_T=pages_T * page_tokens + positions_T % page_tokens,
        start_B1=start_B1,
        len_B=ends_B,
        tables_BM=tables_BM,
        draws=tuple(draws),
        scores=tuple(scores),
        copies=tuple(copies),
        unread_rows_U=rows_U,
        unread_draws_U=draws_U,
        repeats=repeats,
    )
    return Pass(step, tuple(rows), plan)


def _draw(sample: Sample, row: int, index: int) -> Draw:
    request = sample.transfer.request
    return Draw(
        transfer=request.transfer,
        attempt=request.attempt,
        sample=sample.number,
        index=index,
        row=row,
        params=request.params,
        prompt=request.prompt,
        outputs=sample.outputs,
    )


def _score(row: Row, first_row: int) -> ScorePrompt:
    request = row.sample.transfer.request
    n_top = request.params.prompt_logprobs
    assert n_top is not None
    return ScorePrompt(
        transfer=request.transfer,
        attempt=request.attempt,
        first_row=first_row,
        targets=request.prompt[row.start + 1 : row.end + 1],
        n_top=n_top,
    )
