"""The rows of one pass as attention needs them, and what its kernels work out from them.

That is worked out once, by the kernels that run, and kept for all layers. Must not change while
the pass runs.
"""

from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from common.kernels.attention_plan import QueryGroup, Sequences, plan_attention
from common.kernels.cpu import native
from common.kernels.paged import KVLayer, PageGeometry
from common.kernels.triton.rows import DeviceRows

# T rows  B sequences  M pages of the longest table  L positions  D head dim


class HeadNorms(NamedTuple):
    """Weights [D] of a norm over each head of q and of k, before they are rotated."""

    q_D: Tensor
    k_D: Tensor
    eps: float


_NOT_ON_HOST = Sequences(
    start_B1=np.zeros(1, np.int32),
    len_B=np.zeros(0, np.int32),
    tables_BM=np.zeros((0, 0), np.int32),
)


class AttentionRows:
    """Where the rows' KV is written and which keys they read (shapes: see `PassPlan`)."""

    def __init__(
        self, positions_T: Tensor, slots_T: Tensor, sequences: Sequences, geometry: PageGeometry
    ) -> None:
        """`positions_T` and `slots_T` int64, contiguous, on the device that computes."""
        self.positions_T = positions_T
        self.slots_T = slots_T
        self._geometry = geometry
        self._sequences = Sequences(
            start_B1=_contiguous(sequences.start_B1),
            len_B=_contiguous(sequences.len_B),
            tables_BM=_contiguous(sequences.tables_BM),
        )
        self._plan: native.lib.AttentionPlan | None = None
        self._turns: native.lib.Turns | None = None
        self._on_device: DeviceRows | None = None

    @staticmethod
    def placed(
        positions_T: Tensor, slots_T: Tensor, on_device: DeviceRows, geometry: PageGeometry
    ) -> "AttentionRows":
        """Of a step that is captured: all is on the device already, and changed there. For
        attention in Triton alone."""
        rows = AttentionRows(positions_T, slots_T, _NOT_ON_HOST, geometry)
        rows._on_device = on_device
        return rows

    @cached_property
    def groups(self) -> tuple[QueryGroup, ...]:
        """For attention in torch."""
        return plan_attention(self._sequences, self._geometry)

    def on_device(self, tile_tokens: int, device: torch.device) -> DeviceRows:
        """For attention in Triton, with tiles of so many queries. All calls must agree."""
        if self._on_device is None:
            self._on_device = DeviceRows.of(self._sequences, tile_tokens, device)
        return self._on_device

    def native_plan(self, layer: KVLayer, n_rep: int) -> "native.lib.AttentionPlan":
        """For attention in C++; `n_rep` query heads a KV head. All calls must agree.

        IndexError: a sequence names rows or pages that are not there. ValueError: it is another
        pool's layer, or there are not as many positions and slots as rows.
        """
        if self._plan is None:
            arrays = self._sequences
            n_rows = int(arrays.start_B1[-1])
            if not len(self.positions_T) == len(self.slots_T) == n_rows:
                raise ValueError(
                    f"{len(self.positions_T)} positions, {len(self.slots_T)} slots, {n_rows} rows"
                )
            if layer.geometry != self._geometry:
                raise ValueError(f"pages of {layer.geometry} for rows of {self._geometry}")
            n_sequences, table_width = arrays.tables_BM.shape
            self._plan = native.lib.AttentionPlan(
                arrays.start_B1.ctypes.data,
                arrays.len_B.ctypes.data,
                arrays.tables_BM.ctypes.data,
                n_sequences,
                table_width,
                native_pages(layer),
                n_rep,
            )
        return self._plan

    def native_turns(self, layer: KVLayer, cos_sin_LD: Tensor) -> "native.lib.Turns":
        """For rotation in C++. All calls must agree. IndexError: no such position or slot."""
        if self._turns is None:
            self._turns = native_turns(self.positions_T, self.slots_T, cos_sin_LD, layer)
        return self._turns


def native_pages(layer: KVLayer) -> "native.lib.Pages":
    """Where C++ finds the pages of the layer's pool. ValueError: it cannot read their elements."""
    g = layer.geometry
    if g.scales_at is not None:
        raise ValueError("pages of fp8, which are for GPUs")
    return native.lib.Pages(len(layer.k_PSGD), g.page_tokens, g.n_kv_heads, g.head_dim, g.stride)


def native_turns(
    positions_T: Tensor, slots_T: Tensor, cos_sin_LD: Tensor, layer: KVLayer
) -> "native.lib.Turns":
    """Keep the tensors: it refers to them. IndexError: there is no such position or slot."""
    for name, indices_T in (("positions", positions_T), ("slots", slots_T)):
        if indices_T.dtype is not torch.int64 or not indices_T.is_contiguous():
            raise ValueError(f"{name} of {indices_T.dtype}, strides {indices_T.stride()}")
    return native.lib.Turns(
        cos_sin_LD.data_ptr(),
        len(cos_sin_LD),
        positions_T.data_ptr(),
        slots_T.data_ptr(),
        len(positions_T),
        native_pages(layer),
    )


def _contiguous(array: NDArray[np.int32]) -> NDArray[np.int32]:
    return np.ascontiguousarray(array, np.int32)
