"""Paged attention in plain torch: gather key blocks, multiply, merge by running maximum and sum.

In float32 a row's result has the same bits whatever else is in the pass (law 3): every product
has a fixed number of keys and a number of rows that torch's BLAS computes alike (see
`torch_path.PRODUCT_ROWS`), maxima are exact in any order, and blocks are merged in ascending
order. The online softmax is arXiv 1805.02867's, as in FlashAttention. In bfloat16 products are
rounded to bfloat16 and everything between them is float32.

Axes: T rows, N query heads, G KV heads, D head dim, and those of `attention_plan`;
L = n_padded * N / G, or more where padded: queries of one KV head of an item, token by token.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from common.kernels.attention_plan import KeyStep, QueryGroup
from common.kernels.paged import KEY_BLOCK, KVLayer
from common.kernels.torch_path import PRODUCT_ROWS


@dataclass(slots=True)
class _Running:
    """The online softmax of a group: maximum, sum and weighted values so far."""

    max_IGL1: Tensor
    sum_IGL1: Tensor
    out_IGLD: Tensor


def attend(q_TND: Tensor, layer: KVLayer, groups: tuple[QueryGroup, ...]) -> Tensor:
    """See `ops.attend`."""
    out_TND = torch.empty(q_TND.shape, dtype=q_TND.dtype)
    for group in groups:
        _attend_group(q_TND, layer, group, out_TND)
    return out_TND


def _attend_group(q_TND: Tensor, layer: KVLayer, group: QueryGroup, out_TND: Tensor) -> None:
    n_items, n_queries = group.n_items, group.n_queries
    n_kv_heads, head_dim = layer.geometry.n_kv_heads, layer.geometry.head_dim
    n_rep = q_TND.shape[1] // n_kv_heads
    n_rows = -(-group.n_padded * n_rep // PRODUCT_ROWS) * PRODUCT_ROWS
    rows_shape = (n_items, n_kv_heads, group.n_padded, n_rows // group.n_padded, head_dim)
    q_IGLD = torch.zeros((n_items, n_kv_heads, n_rows, head_dim), dtype=q_TND.dtype)
    picked = q_TND.index_select(0, group.rows_IQ).mul_(head_dim**-0.5)
    q_IGLD.view(rows_shape)[:, :, :n_queries, :n_rep].copy_(
        picked.view(n_items, n_queries, n_kv_heads, n_rep, head_dim).transpose(1, 2)
    )
    running = None
    for step in group.steps:
        running = _attend_step(q_IGLD, layer, step, n_rows // group.n_padded, running)
    assert running is not None  # every query sees itself
    out_IGLD = running.out_IGLD.div_(running.sum_IGL1).to(out_TND.dtype)
    attended = out_IGLD.view(rows_shape)[:, :, :n_queries, :n_rep].transpose(1, 2)
    out_TND.index_copy_(0, group.rows_IQ, attended.reshape(-1, *out_TND.shape[1:]))


def _attend_step(
    q_IGLD: Tensor, layer: KVLayer, step: KeyStep, rows_a_query: int, running: _Running | None
) -> _Running:
    k_XCD = _gather("k", layer.k_units, step, layer)
    v_XCD = _gather("v", layer.v_units, step, layer)
    n_pairs, n_kv_heads = len(step.item_X), q_IGLD.shape[1]
    first_row = step.first_query * rows_a_query
    if len(step.items_of_blocks) == 1:
        q_XGLD = q_IGLD[:n_pairs, :, first_row:]
    else:  # all blocks of such a step are seen by all queries
        q_XGLD = q_IGLD.index_select(0, step.item_X)
    n_rows = q_XGLD.shape[2]
    scratch = layer.scratch
    score_shape = (n_pairs * n_kv_heads, n_rows, KEY_BLOCK)
    scores = scratch.take("scores", score_shape, q_IGLD.dtype)
    torch.bmm(q_XGLD.flatten(0, 1), k_XCD.transpose(1, 2), out=scores)
    scores_XGLC = scores.float().view(n_pairs, n_kv_heads, n_rows, KEY_BLOCK)
    if step.hidden_XQC is not None:
        by_query = scores_XGLC.view(n_pairs, n_kv_heads, -1, rows_a_query, KEY_BLOCK)
        by_query.masked_fill_(step.hidden_XQC, -torch.inf)
    max_XGL1 = scores_XGLC.amax(-1, keepdim=True)
    _run_maximum(max_XGL1, step, running, first_row)
    weights_XGLC = scores_XGLC.sub_(max_XGL1).exp_()
    sum_XGL1 = weights_XGLC.sum(-1, keepdim=True)
    out = scratch.take("out", (n_pairs * n_kv_heads, n_rows, v_XCD.shape[2]), q_IGLD.dtype)
    torch.bmm(weights_XGLC.flatten(0, 1).to(q_IGLD.dtype), v_XCD, out=out)
    out_XGLD = out.float().view(n_pairs, n_kv_heads, n_rows, -1)
    return _merge(step, running, _Running(max_XGL1, sum_XGL1, out_XGLD), first_row)


def _gather(name: str, units: Tensor, step: KeyStep, layer: KVLayer) -> Tensor:
    """[X * G, C, D]; tokens that nobody wrote are 0."""
    geometry = layer.geometry
    shape = (len(step.item_X) * geometry.n_kv_heads, KEY_BLOCK, geometry.head_dim)
    gathered = layer.scratch.take(name, shape, units.dtype)
    torch.index_select(units, 0, step.units_U, out=gathered.view(-1, geometry.unit))
    if step.unwritten_W is not None:
        gathered.view(-1, geometry.head_dim).index_fill_(0, step.unwritten_W, 0)
    return gathered


def _run_maximum(max_XGL1: Tensor, step: KeyStep, running: _Running | None, first_row: int) -> None:
    """Raise each block's maxima to those of the blocks before it."""
    before = None if running is None else running.max_IGL1[:, :, first_row:]
    at = 0
    for n_items in step.items_of_blocks:
        here = max_XGL1[at : at + n_items]
        if before is not None:
            torch.maximum(here, before[:n_items], out=here)
        before = here
        at += n_items


def _merge(step: KeyStep, running: _Running | None, block: _Running, first_row: int) -> _Running:
    """Add the blocks, in ascending order, to what was there before. Their maxima already run."""
    at = 0
    for n_items in step.items_of_blocks:
        end = at + n_items
        if running is None:  # all items have the first block
            running = _Running(
                block.max_IGL1[:end].clone(), block.sum_IGL1[:end], block.out_IGLD[:end].clone()
            )
        else:
            max_IGL1 = running.max_IGL1[:n_items, :, first_row:]
            rescale_IGL1 = max_IGL1.sub_(block.max_IGL1[at:end]).exp_()
            sum_IGL1 = running.sum_IGL1[:n_items, :, first_row:]
            sum_IGL1.mul_(rescale_IGL1).add_(block.sum_IGL1[at:end])
            out_IGLD = running.out_IGLD[:n_items, :, first_row:]
            out_IGLD.mul_(rescale_IGL1).add_(block.out_IGLD[at:end])
            max_IGL1.copy_(block.max_IGL1[at:end])
        at = end
    assert running is not None
    return running
