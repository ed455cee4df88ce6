"""Pages of fp8 as `KVSpec` says that they are: what they hold, and what they should, in float64."""

import torch
from torch import Tensor

from common.kernels.attention_plan import Sequences
from common.kernels.attention_rows import AttentionRows
from common.kv.cache import KVCache
from common.kv.layout import FP8, pages_for
from tests.conformance.kernels.pools import Heads, Sequence, poisoned_pool

NUMBERS = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).double()
"""All of e4m3 that are finite and not negative, by code."""

# N rows  G KV heads  D head dim


def fp8_pool(heads: Heads, n_pages: int, page_tokens: int, n_layers: int = 1) -> KVCache:
    return poisoned_pool(heads, n_pages, page_tokens, n_layers, FP8)


def quantised(x_NGD: Tensor) -> tuple[Tensor, Tensor]:
    """Codes [N, G, D] uint8 of the nearest numbers, ties to the even code, and scales [N, G]
    float32, by definition."""
    scale_NG = (x_NGD.abs().amax(-1).double() / 448).float()
    divisor_NG = torch.where(scale_NG == 0, 1.0, scale_NG).double()
    y_NGD = x_NGD.double() / divisor_NG[..., None]
    above = torch.searchsorted(NUMBERS, y_NGD.abs()).clamp(1, 126)
    low, high = NUMBERS[above - 1], NUMBERS[above]
    to_low, to_high = y_NGD.abs() - low, high - y_NGD.abs()
    is_even = (above - 1) % 2 == 0
    code = torch.where((to_low < to_high) | ((to_low == to_high) & is_even), above - 1, above)
    return (code + 128 * (y_NGD < 0)).to(torch.uint8), scale_NG


def codes_of(pool: KVCache) -> Tensor:
    """[pages, layers, 2, G, page tokens, D] uint8: a view."""
    spec = pool.spec
    assert spec.scales_at is not None
    return pool.pages_PB[:, : spec.scales_at].view(-1, *spec.shape)


def scales_of(pool: KVCache) -> Tensor:
    """[pages, layers, 2, G, page tokens] float32: a view."""
    spec = pool.spec
    return (
        pool.pages_PB[:, spec.scales_at : spec.used_bytes]
        .view(torch.float32)
        .view(-1, *spec.shape[:-1])
    )


def put(pool: KVCache, chunks: list[tuple[Sequence, int]], layer: int = 0) -> None:
    """Write the next n tokens of each sequence, without a kernel."""
    for sequence, n in chunks:
        page, at = _places(pool, sequence, sequence.written, sequence.written + n)
        for which, x_SGD in enumerate((sequence.k_SGD, sequence.v_SGD)):
            new = quantised(x_SGD[sequence.written : sequence.written + n])
            codes_of(pool)[page, layer, which, :, at] = new[0]
            scales_of(pool)[page, layer, which, :, at] = new[1]
        sequence.written += n


def held(pool: KVCache, sequence: Sequence, layer: int = 0) -> tuple[Tensor, Tensor]:
    """K and V of what is written of it, [S, G, D] float64."""
    page, at = _places(pool, sequence, 0, sequence.written)
    numbers = codes_of(pool).view(torch.float8_e4m3fn)
    k, v = (
        numbers[page, layer, which, :, at].double()
        * scales_of(pool)[page, layer, which, :, at].double()[..., None]
        for which in (0, 1)
    )
    return k, v


def rows_of(pool: KVCache, chunks: list[tuple[Sequence, int]]) -> AttentionRows:
    """Of a pass whose rows are the last n tokens of each, which are written."""
    ends = torch.tensor([n for _, n in chunks]).cumsum(0)
    width = max(len(s.pages) for s, _ in chunks)
    tables = torch.full((len(chunks), width), 2**31 - 1, dtype=torch.int32)
    for b, (sequence, _) in enumerate(chunks):
        n_pages = pages_for(sequence.written, pool.spec.page_tokens)
        tables[b, :n_pages] = torch.tensor(sequence.pages[:n_pages])
    sequences = Sequences(
        start_B1=torch.cat((torch.zeros(1, dtype=torch.int64), ends)).int().numpy(),
        len_B=torch.tensor([s.written for s, _ in chunks]).int().numpy(),
        tables_BM=tables.numpy(),
    )
    nowhere = torch.zeros(int(ends[-1]), dtype=torch.int64)
    return AttentionRows(nowhere, nowhere, sequences, pool.geometry)


def _places(pool: KVCache, sequence: Sequence, first: int, end: int) -> tuple[Tensor, Tensor]:
    position = torch.arange(first, end)
    page_tokens = pool.spec.page_tokens
    return torch.tensor(sequence.pages)[position // page_tokens], position % page_tokens
