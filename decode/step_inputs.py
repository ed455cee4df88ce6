"""What a decode step is computed from, where a device keeps it: buffers that stay where they are.

A step's integers go there as one block. Page tables are kept on the device; the host knows what it
has told them, and tells what changes. Must not know what is computed.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from common.engine.device_thread import MOST_UNANSWERED
from common.engine.plan import PassPlan
from common.engine.stream import Stream
from common.errors import InvariantBroken
from common.kernels.attention_rows import AttentionRows
from common.kernels.paged import PageGeometry
from common.kernels.triton.rows import DeviceRows
from decode.device_block import DeviceBlock

TABLE_CHANGES = 1024  # entries of page tables that a step's block has room for
_FIELDS = ("given", "source", "position", "slot", "length")
_CHANGES = ("cell", "page")

# S rows, at most  M pages of the longest table  V vocabulary


class StepInputs:
    """Of steps with one row a sequence. One step after the other, by one thread.

    given      [S] tokens, where `source` is negative; else the token is that which the step before
               drew in that row
    slot       [S] negative: the row's KV is written nowhere
    length     [S] tokens that the row sees, its own included; 0: there is no such row
    cell, page entries of page tables that change before the step
    """

    def __init__(
        self, n_rows: int, table_pages: int, n_vocab: int, stream: Stream, geometry: PageGeometry
    ) -> None:
        self.n_rows, self.table_pages, self._n_vocab = n_rows, table_pages, n_vocab
        self._geometry = geometry
        sizes = dict.fromkeys(_FIELDS, n_rows) | dict.fromkeys(_CHANGES, TABLE_CHANGES)
        self._block = DeviceBlock({name: (np.int64, (n,)) for name, n in sizes.items()}, stream)
        host, device = self._block.host, stream.device
        host["source"][:] = host["slot"][:] = -1
        host["cell"][:] = self._spare_cell
        self._tables = torch.zeros(self._spare_cell + 1, dtype=torch.int32, device=device)
        self._told = np.zeros((n_rows, table_pages), np.int32)
        self._length_B = torch.zeros(n_rows, dtype=torch.int32, device=device)
        self._rows_B1 = torch.arange(n_rows + 1, dtype=torch.int32, device=device)
        pinned = [stream.pinned(self._spare_cell, torch.int32) for _ in range(MOST_UNANSWERED)]
        self._outgoing_tables = [(tensor, tensor.numpy()) for tensor in pinned]
        self._turn = 0
        self._block.send()

    @property
    def _spare_cell(self) -> int:
        """Behind the tables: what is not told goes there."""
        return self.n_rows * self.table_pages

    # --- on the host -----------------------------------------------------------------------------

    def tell(self, plan: PassPlan) -> None:
        """Ask the device to take over the plan. While no more than one step that it was called for
        is unanswered."""
        n, host = plan.n_rows, self._block.host
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
        self._tell_tables(plan.tables_BM)
        self._block.send()

    def _tell_tables(self, tables_BM: NDArray[np.int32]) -> None:
        """What follows a sequence's own pages is told, too, and never read."""
        n_rows, n_pages = tables_BM.shape
        told_BM = self._told[:n_rows, :n_pages]
        row_C, column_C = np.nonzero(told_BM != tables_BM)
        told_BM[:] = tables_BM
        cell, page = self._block.host["cell"], self._block.host["page"]
        n_changes = len(row_C)
        if n_changes > TABLE_CHANGES:
            self._turn = (self._turn + 1) % MOST_UNANSWERED
            pinned, array = self._outgoing_tables[self._turn]
            array[:] = self._told.reshape(-1)
            self._tables[: self._spare_cell].copy_(pinned, non_blocking=True)
            n_changes = 0
        cell[:n_changes] = row_C[:n_changes] * self.table_pages + column_C[:n_changes]
        page[:n_changes] = tables_BM[row_C[:n_changes], column_C[:n_changes]]
        cell[n_changes:] = self._spare_cell

    # --- on the device ---------------------------------------------------------------------------

    def take_over(self, n_rows: int) -> None:
        """What a step begins with: page tables and lengths as they were told."""
        there = self._block.device
        self._tables.scatter_(0, there["cell"], there["page"].to(torch.int32))
        self._length_B[:n_rows].copy_(there["length"][:n_rows])

    def tokens(self, n_rows: int, drawn_R: Tensor) -> Tensor:
        """[n_rows], of which `drawn_R` by the step before. A draw that has failed gives any."""
        given, source = (self._block.device[name][:n_rows] for name in ("given", "source"))
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
        position, slot = (self._block.device[name][:n_rows] for name in ("position", "slot"))
        return AttentionRows.placed(position, slot, on_device, self._geometry)
