"""What a decode step is computed from, where a device keeps it: buffers that stay where they are.

A step's integers go there as one block, from memory that the device reads while the host goes on.
Page tables are kept on the device; the host knows what it has told them, and tells what changes.
Must not know what is computed.
"""

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from common.engine.device_thread import MOST_UNANSWERED
from common.engine.plan import Draw, PassPlan
from common.engine.stream import Stream
from common.errors import InvariantBroken
from common.ids import TransferId
from common.kernels.attention_rows import AttentionRows
from common.kernels.paged import PageGeometry
from common.kernels.triton.rows import DeviceRows
from common.kernels.triton.sampling_rows import SamplingRows, limits_of, scale_of

TABLE_CHANGES = 1024  # entries of page tables that a step's block has room for
_FIELDS = {"given": 1, "source": 1, "position": 1, "slot": 1, "length": 1}
_DRAWING = {"scale": 1, "limits": 4, "keys": 3}
_CHANGES = ("cell", "page")
_T = TypeVar("_T", NDArray[np.int64], Tensor)

# S rows, at most  M pages of the longest table  V vocabulary


class StepInputs:
    """Of steps with one row a sequence. One step after the other, by one thread.

    given      [S] tokens, where `source` is negative; else the token is that which the step before
               drew in that row
    slot       [S] negative: the row's KV is written nowhere
    length     [S] tokens that the row sees, its own included; 0: there is no such row
    scale, limits, keys  see `SamplingRows`
    cell, page entries of page tables that change before the step
    """

    def __init__(
        self, n_rows: int, table_pages: int, n_vocab: int, stream: Stream, geometry: PageGeometry
    ) -> None:
        self.n_rows, self.table_pages, self._n_vocab = n_rows, table_pages, n_vocab
        self._geometry = geometry
        sizes = {name: width * n_rows for name, width in (_FIELDS | _DRAWING).items()}
        sizes |= dict.fromkeys(_CHANGES, TABLE_CHANGES)
        n_words = sum(sizes.values())
        self._words = np.zeros(n_words, np.int64)
        self._block = torch.zeros(n_words, dtype=torch.int64, device=stream.device)
        self._on_host, self._on_device = _cut(self._words, sizes), _cut(self._block, sizes)
        self._on_host["source"][:] = self._on_host["slot"][:] = -1
        self._on_host["cell"][:] = self._spare_cell
        self._tables = torch.zeros(self._spare_cell + 1, dtype=torch.int32, device=stream.device)
        self._told = np.zeros((n_rows, table_pages), np.int32)
        self._length_B = torch.zeros(n_rows, dtype=torch.int32, device=stream.device)
        self._rows_B1 = torch.arange(n_rows + 1, dtype=torch.int32, device=stream.device)
        self._drawing = _drawing(self._on_device, n_rows, n_vocab)
        self._seated: list[tuple[TransferId, int, int] | None] = [None] * n_rows
        self._outgoing = [_Outgoing(stream, n_words) for _ in range(MOST_UNANSWERED)]
        self._outgoing_tables = [
            _Outgoing(stream, self._spare_cell, torch.int32) for _ in range(MOST_UNANSWERED)
        ]
        self._turn = 0
        self._send(self._outgoing[0], self._words, self._block)

    @property
    def _spare_cell(self) -> int:
        """Behind the tables: what is not told goes there."""
        return self.n_rows * self.table_pages

    # --- on the host -----------------------------------------------------------------------------

    def tell(self, plan: PassPlan) -> None:
        """Ask the device to take over the plan, whose rows are drawn from in their order. Call it
        while no more than one step that it was called for is unanswered."""
        n, host = plan.n_rows, self._on_host
        if n > self.n_rows or plan.tables_BM.shape[1] > self.table_pages:
            raise InvariantBroken(f"{n} rows, tables of {plan.tables_BM.shape[1]} pages")
        for name, values in (
            ("given", plan.tokens_T),
            ("position", plan.positions_T),
            ("slot", plan.slots_T),
            ("length", plan.len_B),
        ):
            host[name][:n] = values
            host[name][n:] = -1 if name == "slot" else 0
        host["source"][:] = -1
        host["source"][plan.unread_rows_U] = plan.unread_draws_U
        self._seat(plan.draws)
        self._turn = (self._turn + 1) % MOST_UNANSWERED
        self._tell_tables(plan.tables_BM)
        self._send(self._outgoing[self._turn], self._words, self._block)

    def _seat(self, draws: Sequence[Draw]) -> None:
        """Of who sat there before, nothing but the index has changed."""
        scale, limits = self._on_host["scale"].view(np.float64), self._on_host["limits"]
        limits_R4, keys_R3 = limits.reshape(-1, 4), self._on_host["keys"].reshape(-1, 3)
        for row, draw in enumerate(draws):
            who = (draw.transfer, draw.attempt, draw.sample)
            if self._seated[row] != who:
                self._seated[row] = who
                scale[row] = scale_of(draw.params)
                limits_R4[row] = limits_of(draw.params, self._n_vocab)
                keys_R3[row] = draw.params.seed, draw.sample, 0
        keys_R3[: len(draws), 2] = [draw.index for draw in draws]

    def _tell_tables(self, tables_BM: NDArray[np.int32]) -> None:
        """What follows a sequence's own pages is told, too, and never read."""
        n_rows, n_pages = tables_BM.shape
        told_BM = self._told[:n_rows, :n_pages]
        row_C, column_C = np.nonzero(told_BM != tables_BM)
        told_BM[:] = tables_BM
        cell, page = self._on_host["cell"], self._on_host["page"]
        n_changes = len(row_C)
        if n_changes > TABLE_CHANGES:
            outgoing = self._outgoing_tables[self._turn]
            self._send(outgoing, self._told.reshape(-1), self._tables[: self._spare_cell])
            n_changes = 0
        cell[:n_changes] = row_C[:n_changes] * self.table_pages + column_C[:n_changes]
        page[:n_changes] = tables_BM[row_C[:n_changes], column_C[:n_changes]]
        cell[n_changes:] = self._spare_cell

    @staticmethod
    def _send(outgoing: "_Outgoing", values: NDArray[np.generic], to: Tensor) -> None:
        outgoing.array[:] = values
        to.copy_(outgoing.pinned, non_blocking=True)

    # --- on the device ---------------------------------------------------------------------------

    def take_over(self, n_rows: int) -> None:
        """What a step begins with: page tables and lengths as they were told."""
        there = self._on_device
        self._tables.scatter_(0, there["cell"], there["page"].to(torch.int32))
        self._length_B[:n_rows].copy_(there["length"][:n_rows])

    def tokens(self, n_rows: int, drawn_R: Tensor) -> Tensor:
        """[n_rows], of which `drawn_R` by the step before. A draw that has failed gives any."""
        given, source = (self._on_device[name][:n_rows] for name in ("given", "source"))
        before = drawn_R.index_select(0, source.clamp(min=0))
        return torch.where(source < 0, given, before).clamp_(0, self._n_vocab - 1)

    def attention_rows(self, n_rows: int, longest_keys: int) -> AttentionRows:
        tables_BM = self._tables[: self._spare_cell].view(self.n_rows, self.table_pages)
        on_device = DeviceRows(
            single_I=self._rows_B1[:n_rows],
            longest_keys=longest_keys,
            tile_X2=self._rows_B1.new_empty((0, 2)),
            start_B1=self._rows_B1[: n_rows + 1],
            len_B=self._length_B[:n_rows],
            tables_BM=tables_BM[:n_rows],
        )
        position, slot = (self._on_device[name][:n_rows] for name in ("position", "slot"))
        return AttentionRows.placed(position, slot, on_device, self._geometry)

    def drawing(self, n_rows: int) -> SamplingRows:
        return self._drawing.first(n_rows)


class _Outgoing:
    """Memory that the device copies from."""

    def __init__(self, stream: Stream, n: int, dtype: torch.dtype = torch.int64) -> None:
        self.pinned = stream.pinned(n, dtype)
        self.array: NDArray[np.generic] = self.pinned.numpy()


def _cut(block: _T, sizes: dict[str, int]) -> dict[str, _T]:
    """Views of parts that lie one after the other."""
    ends = np.cumsum(list(sizes.values())).tolist()
    return {name: block[end - sizes[name] : end] for name, end in zip(sizes, ends, strict=True)}


def _drawing(block: dict[str, Tensor], n_rows: int, n_vocab: int) -> SamplingRows:
    """Without penalties and biases: those who have them are drawn for otherwise."""
    device = block["keys"].device
    none_R = torch.full((n_rows,), -1, dtype=torch.int32, device=device)
    no_penalty = torch.tensor([1.0, 0.0, 0.0], device=device)
    return SamplingRows(
        scale_R=block["scale"].view(torch.float64),
        limits_R4=block["limits"].view(n_rows, 4),
        keys_R3=block["keys"].view(n_rows, 3),
        penalty_R3=no_penalty.repeat(n_rows, 1),
        history_R=none_R,
        history_HV=torch.zeros((0, n_vocab), dtype=torch.int32, device=device),
        bias_R=none_R,
        bias_SV=torch.zeros((0, n_vocab), dtype=torch.float32, device=device),
    )
