"""Copy whole pages between page tables and contiguous memory, or between pools, as bytes.

Sixteen bytes a thread and access. Must not know what a page holds (law 7).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from common.kernels.triton.configs import elementwise_warps
from common.kernels.triton.launch import Launch

PIECE_BYTES = 16384  # of a page, copied by one program
ALIGN_BYTES = 16


def copy_pages(
    source_PB: Tensor, sources_N: Tensor, destination_PB: Tensor, destinations_N: Tensor
) -> None:
    """Page sources_N[i] becomes page destinations_N[i]; rows of uint8 tensors; ids int64.

    No page is both read and written, nor written twice. ValueError: pages are not aligned.
    """
    launch(source_PB, sources_N, destination_PB, destinations_N).run()


def launch(
    source_PB: Tensor, sources_N: Tensor, destination_PB: Tensor, destinations_N: Tensor
) -> Launch:
    page_bytes = source_PB.shape[1]
    if destination_PB.shape[1] != page_bytes:
        raise ValueError(f"pages of {page_bytes} bytes, and of {destination_PB.shape[1]}")
    for pages_PB in (source_PB, destination_PB):
        aligned = (page_bytes, pages_PB.stride(0), pages_PB.data_ptr())
        if any(n % ALIGN_BYTES for n in aligned) or pages_PB.stride(1) != 1:
            raise ValueError(f"pages of {page_bytes} bytes, strides {pages_PB.stride()}")
    source, destination = source_PB.view(torch.int32), destination_PB.view(torch.int32)
    block = PIECE_BYTES // 4
    return Launch(
        kernel=_copy_pages,
        grid=(len(sources_N), triton.cdiv(page_bytes // 4, block)),
        arguments={
            "source": source,
            "sources": sources_N,
            "destination": destination,
            "destinations": destinations_N,
            "source_stride": source.stride(0),
            "destination_stride": destination.stride(0),
            "PAGE_WORDS": page_bytes // 4,
            "BLOCK": block,
        },
        num_warps=elementwise_warps(block),
    )


@triton.jit
def _copy_pages(
    source,
    sources,
    destination,
    destinations,
    source_stride,
    destination_stride,
    PAGE_WORDS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    pair = tl.program_id(0)
    word = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = word < PAGE_WORDS
    from_page = tl.load(sources + pair) * source_stride
    to_page = tl.load(destinations + pair) * destination_stride
    words = tl.load(source + from_page + word, mask=there)
    tl.store(destination + to_page + word, words, mask=there)
