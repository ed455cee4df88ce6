"""Page copies: scattered to contiguous and back, to the last byte, and nothing else."""

import mmap

import pytest
import torch
from torch import Tensor

pytestmark = pytest.mark.usefixtures("path")

PAGE_BYTES = 36864  # of SmolLM2 a tenth: no multiple of what one program copies


def copy(source: Tensor, destination: Tensor, *runs: tuple[int, int, int]) -> None:
    """Runs of pages."""
    from common.kernels.triton.pages import copy_runs

    page_bytes = source.shape[-1]
    runs_R3 = torch.tensor(runs, dtype=torch.int64).view(-1, 3) * page_bytes
    longest = max((n for *_, n in runs), default=0) * page_bytes
    copy_runs(source.view(-1), destination.view(-1), runs_R3, longest)


def test_scattered_pages_and_back() -> None:
    pool = torch.randint(256, (7, PAGE_BYTES), generator=torch.Generator().manual_seed(0)).byte()
    before, together = pool.clone(), torch.zeros(4, PAGE_BYTES, dtype=torch.uint8)
    copy(pool, together, (6, 0, 1), (0, 1, 1), (3, 2, 1))
    assert torch.equal(together[:3], before[[6, 0, 3]])
    assert not together[3].any()
    copy(together, pool, (0, 1, 2), (2, 5, 1))
    assert torch.equal(pool[[1, 2, 5]], before[[6, 0, 3]])
    assert torch.equal(pool[[0, 3, 4, 6]], before[[0, 3, 4, 6]])


def test_runs_of_any_lengths() -> None:
    pool = torch.randint(256, (40, 4096), generator=torch.Generator().manual_seed(1)).byte()
    there = torch.zeros_like(pool)
    copy(pool, there, (0, 39, 1), (1, 20, 17), (18, 0, 4), (30, 10, 9))
    assert torch.equal(there[39], pool[0])
    assert torch.equal(there[20:37], pool[1:18])
    assert torch.equal(there[:4], pool[18:22])
    assert torch.equal(there[10:19], pool[30:39])
    assert not there[[*range(4, 10), 19, 37, 38]].any()


def test_no_pages() -> None:
    pool = torch.zeros(2, PAGE_BYTES, dtype=torch.uint8)
    copy(pool, pool)


def test_pages_beyond_two_to_the_31_words() -> None:
    n_pages = 2**33 // 4096 + 2
    pool = torch.frombuffer(mmap.mmap(-1, n_pages * 4096), dtype=torch.uint8).view(n_pages, 4096)
    last = torch.randint(256, (1, 4096)).byte()
    copy(last, pool, (0, n_pages - 1, 1))
    assert torch.equal(pool[-1:], last)
    back = torch.zeros_like(last)
    copy(pool, back, (n_pages - 1, 0, 1))
    assert torch.equal(back, last)


@pytest.mark.parametrize(("at", "n_bytes"), [(0, 4104), (8, 4096)])
def test_bytes_that_are_not_aligned_are_refused(at: int, n_bytes: int) -> None:
    from common.kernels.triton.pages import copy_runs

    pool, runs_R3 = torch.zeros(8192, dtype=torch.uint8), torch.zeros((1, 3), dtype=torch.int64)
    with pytest.raises(ValueError, match="bytes at"):
        copy_runs(pool, pool[at : at + n_bytes], runs_R3, 16)
