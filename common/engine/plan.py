"""A pass of the model, decided: what a core launches and a runner computes.

Pure data over numpy: it names no tensor, device or clock. Both sides of Baton use the same plan;
a decode step is a pass with one row a sequence, a prefill pass has many, and they may be mixed.

Axes: T rows (tokens computed in this pass, packed), B sequences, M pages of the longest table,
U rows whose token is not read yet.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

import msgspec
import numpy as np
from numpy.typing import NDArray

from common.ids import PageId, TransferId
from common.params import SamplingParams, TokenLogprob


def _none() -> NDArray[np.int64]:
    return np.zeros(0, np.int64)


class Draw(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Sample one output token from the logits of one row."""

    transfer: TransferId
    attempt: int
    sample: int
    index: int  # of the token among the sample's outputs
    row: int  # 0 .. T - 1: the row whose logits are used
    params: SamplingParams
    prompt: tuple[int, ...]  # for penalties
    outputs: tuple[int, ...]  # before this one; all but the last where that is not read yet


@dataclass(frozen=True, slots=True, kw_only=True)
class ScorePrompt:
    """Report log-probabilities of prompt tokens: row r scores the token `targets[r - first_row]`.

    Asked for only by requests with `prompt_logprobs`, which compute their whole prompt.
    """

    transfer: TransferId
    attempt: int
    first_row: int
    targets: tuple[int, ...]  # the prompt tokens that follow those rows
    n_top: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PassPlan:
    """One pass. Row t belongs to the sequence b with start_B1[b] <= t < start_B1[b + 1].

    tokens_T      int64; input ids
    positions_T   int64; position of the row's token in its sequence, from 0
    slots_T       int64; where its KV is written: page * page_tokens + position % page_tokens
    start_B1      int32; ascending, start_B1[0] == 0, start_B1[B] == T; every sequence has >= 1 row
    len_B         int32; tokens of b with KV after this pass, its own rows included;
                  b's rows are the last ones: positions len_B[b] - n_rows .. len_B[b] - 1
    tables_BM     int32; row b lists b's pages in order; entries past ceil(len_B[b] / page_tokens)
                  are arbitrary and must not be read
    copies        pages duplicated (source, destination) before the pass: copy-on-write
    unread_rows_U, unread_draws_U
                  int64; the row's token is what that draw of the pass before gave: its last
                  output, not known as this was planned. tokens_T says 0 there; see `filled`
    repeats       how often a runner may compute the pass before it answers, each time for the
                  tokens that it has just drawn, a position further. Above 1 only where every
                  sequence has one row and one draw; the tables have the pages for all of it
    """

    tokens_T: NDArray[np.int64]
    positions_T: NDArray[np.int64]
    slots_T: NDArray[np.int64]
    start_B1: NDArray[np.int32]
    len_B: NDArray[np.int32]
    tables_BM: NDArray[np.int32]
    draws: tuple[Draw, ...] = ()
    scores: tuple[ScorePrompt, ...] = ()
    copies: tuple[tuple[PageId, PageId], ...] = ()
    unread_rows_U: NDArray[np.int64] = field(default_factory=_none)
    unread_draws_U: NDArray[np.int64] = field(default_factory=_none)
    repeats: int = 1

    @property
    def n_rows(self) -> int:
        return len(self.tokens_T)


class Drawn(msgspec.Struct, frozen=True, kw_only=True):
    """The token of one `Draw`, in the draws' order."""

    token: int
    logprob: TokenLogprob | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PassResult:
    """What a pass gave: one `Drawn` a draw, one list a score (an entry a target)."""

    drawn: tuple[Drawn, ...] = ()
    scores: tuple[tuple[TokenLogprob, ...], ...] = ()
    seconds: float = 0.0  # of computing it once, measured by the runner
    again: tuple[tuple[Drawn, ...], ...] = ()  # by each repetition, fewer than `plan.repeats`
    asked_at: float = field(default=0.0, compare=False)
    """When a device that goes on by itself could begin it, by `time.perf_counter`; 0: as soon as it
    was launched."""

    @property
    def rounds(self) -> tuple[tuple[Drawn, ...], ...]:
        """What was drawn, each time that the pass was computed."""
        return (self.drawn, *self.again)


def filled(plan: PassPlan, drawn: Sequence[Drawn]) -> PassPlan:
    """The plan with every token in its place; `drawn` by the pass that was launched before it.

    Draws are given their last output only where their parameters read outputs.
    """
    if not len(plan.unread_rows_U):
        return plan
    tokens_T = plan.tokens_T.copy()
    given = np.fromiter((d.token for d in drawn), np.int64, len(drawn))
    tokens_T[plan.unread_rows_U] = given[plan.unread_draws_U]
    draws = plan.draws
    if any(_reads_outputs(draw.params) for draw in draws):
        draws = tuple(_with_last_output(draw, tokens_T) for draw in draws)
    return replace(
        plan, tokens_T=tokens_T, draws=draws, unread_rows_U=_none(), unread_draws_U=_none()
    )


def _reads_outputs(params: SamplingParams) -> bool:
    return (
        params.repetition_penalty != 1
        or params.frequency_penalty != 0
        or params.presence_penalty != 0
        or bool(params.grammar)
    )


def _with_last_output(draw: Draw, tokens_T: NDArray[np.int64]) -> Draw:
    """Where it lacks: it is the token of the row that is drawn from."""
    if len(draw.outputs) == draw.index:
        return draw
    return msgspec.structs.replace(draw, outputs=(*draw.outputs, int(tokens_T[draw.row])))


@dataclass(slots=True)
class Piece:
    """The rows of one sequence in a pass being built: tokens[start:end] of it, KV into `pages`."""

    tokens: list[int] | tuple[int, ...]  # exactly end - start ids
    start: int  # position of tokens[0]
    pages: list[PageId] | tuple[PageId, ...]  # of the whole sequence; covers start + len(tokens)
    first_row: int = field(default=-1)  # set by pack()


def pack(pieces: list[Piece], page_tokens: int) -> dict[str, NDArray[np.int64] | NDArray[np.int32]]:
    """Lay pieces out as the arrays of a `PassPlan`, and set each piece's `first_row`."""
    counts = [len(piece.tokens) for piece in pieces]
    start_B1 = np.zeros(len(pieces) + 1, np.int32)
    np.cumsum(counts, out=start_B1[1:])
    len_B = np.array([p.start + n for p, n in zip(pieces, counts, strict=True)], np.int32)
    n_pages = -(-len_B.astype(np.int64) // page_tokens)
    tables_BM = np.zeros((len(pieces), int(n_pages.max(initial=0))), np.int32)
    for b, piece in enumerate(pieces):
        piece.first_row = int(start_B1[b])
        tables_BM[b, : n_pages[b]] = piece.pages[: n_pages[b]]
    tokens_T = np.fromiter(chain.from_iterable([p.tokens for p in pieces]), np.int64, sum(counts))
    row_B = np.repeat(np.arange(len(pieces)), counts)
    offset_T = np.arange(len(tokens_T)) - start_B1[:-1][row_B]
    positions_T = np.array([p.start for p in pieces], np.int64)[row_B] + offset_T
    pages_T = tables_BM[row_B, positions_T // page_tokens].astype(np.int64)
    return {
        "tokens_T": tokens_T,
        "positions_T": positions_T,
        "slots_T": pages_T * page_tokens + positions_T % page_tokens,
        "start_B1": start_B1,
        "len_B": len_B,
        "tables_BM": tables_BM,
    }
