"""Copy runs of whole pages between pools, scattered or not, as bytes, by one kernel.

Sixteen bytes a thread and access. Must not know what a page holds (law 7).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from common.kernels.triton.configs import elementwise_warps
from common.kernels.triton.launch import Launch

PIECE_BYTES = 16384  # of a run, copied by one program
ALIGN_BYTES = 16


def copy_runs(source_B: Tensor, destination_B: Tensor, runs_R3: Tensor, longest: int) -> None:
    """Run (offset in the source, offset in the destination, length), in bytes, int64, is copied
    between contiguous uint8 tensors; `longest` is the most that one has.

    Offsets and lengths are multiples of 16, which is not looked at; no byte is both read and
    written, nor written twice. ValueError: the tensors are not aligned.
    """
    launch(source_B, destination_B, runs_R3, longest).run()


def launch(source_B: Tensor, destination_B: Tensor, runs_R3: Tensor, longest: int) -> Launch:
    for bytes_B in (source_B, destination_B):
        if not bytes_B.is_contiguous() or (bytes_B.data_ptr() | bytes_B.numel()) % ALIGN_BYTES:
            raise ValueError(f"{bytes_B.numel()} bytes at {bytes_B.data_ptr():#x}")
    block = PIECE_BYTES // 4
    return Launch(
        kernel=_copy_runs,
        grid=(len(runs_R3), triton.cdiv(longest, PIECE_BYTES)),
        arguments={
            "source": source_B.view(torch.int32),
            "destination": destination_B.view(torch.int32),
            "runs": runs_R3,
            "BLOCK": block,
        },
        num_warps=elementwise_warps(block),
    )


@triton.jit
def _copy_runs(source, destination, runs, BLOCK: tl.constexpr):
    run = runs + 3 * tl.program_id(0)
    from_word = tl.multiple_of(tl.load(run) // 4, 4)
    to_word = tl.multiple_of(tl.load(run + 1) // 4, 4)
    n_words = tl.multiple_of(tl.load(run + 2) // 4, 4)
    first = tl.program_id(1) * BLOCK
    if first < n_words:
        word = first + tl.arange(0, BLOCK)
        there = word < n_words
        words = tl.load(source + from_word + word, mask=there)
        tl.store(destination + to_word + word, words, mask=there)
