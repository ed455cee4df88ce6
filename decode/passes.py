"""A composed step becomes a plan: rows in, the arrays, draws and scores of a `PassPlan` out.

Pure: decides nothing and changes nothing but the rows that it is given.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from common.engine.plan import Draw, PassPlan, Piece, ScorePrompt, pack
from common.ids import PageId
from decode.state import Sample


@dataclass(slots=True)
class Row:
    """One sequence in a pass: tokens[start:end] of it are computed, all pages are in its table."""

    sample: Sample
    start: int
    end: int
    draws: tuple[Sample, ...]  # who draws from its last token's logits
    scores: bool = False  # set by `build`: it has a ScorePrompt, in the rows' order


@dataclass(frozen=True, slots=True)
class Pass:
    """What a Launch is for."""

    rows: tuple[Row, ...]
    plan: PassPlan


def build(rows: Sequence[Row], copies: Sequence[tuple[PageId, PageId]], page_tokens: int) -> Pass:
    """Draws are in the rows' order, and within a row in that of `row.draws`."""
    pieces: list[Piece] = []
    draws: list[Draw] = []
    scores: list[ScorePrompt] = []
    n_rows = 0
    for row in rows:
        sample = row.sample
        pieces.append(Piece(sample.tokens(row.start, row.end), row.start, sample.table.pages))
        if sample.scores and row.start + 1 < len(sample.prompt):
            row.scores = True
            scores.append(_score(row, n_rows))
        n_rows += row.end - row.start
        draws += [_draw(drawing, n_rows - 1) for drawing in row.draws]
    plan = PassPlan(
        **pack(pieces, page_tokens),  # pyright: ignore[reportArgumentType] pack() names its arrays as PassPlan does
        draws=tuple(draws),
        scores=tuple(scores),
        copies=tuple(copies),
    )
    return Pass(tuple(rows), plan)


def _draw(sample: Sample, row: int) -> Draw:
    request = sample.transfer.request
    return Draw(
        transfer=request.transfer,
        attempt=request.attempt,
        sample=sample.number,
        index=len(sample.outputs),
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
