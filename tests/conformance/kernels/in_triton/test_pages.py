"""Page copies: scattered to contiguous and back, to the last byte, and nothing else."""

import mmap

import pytest
import torch

pytestmark = pytest.mark.usefixtures("path")

PAGE_BYTES = 36864  # of SmolLM2 a tenth: no multiple of what one program copies


def test_scattered_pages_and_back() -> None:
    from common.kernels.triton.pages import copy_pages

    pool = torch.randint(256, (7, PAGE_BYTES), generator=torch.Generator().manual_seed(0)).byte()
    before, together = pool.clone(), torch.zeros(4, PAGE_BYTES, dtype=torch.uint8)
    scattered, contiguous = torch.tensor([6, 0, 3]), torch.arange(3)
    copy_pages(pool, scattered, together, contiguous)
    assert torch.equal(together[:3], before[scattered])
    assert not together[3].any()
    copy_pages(together, contiguous, pool, torch.tensor([1, 2, 5]))
    assert torch.equal(pool[[1, 2, 5]], before[scattered])
    assert torch.equal(pool[[0, 3, 4, 6]], before[[0, 3, 4, 6]])


def test_no_pages() -> None:
    from common.kernels.triton.pages import copy_pages

    pool, none = torch.zeros(2, PAGE_BYTES, dtype=torch.uint8), torch.tensor([], dtype=torch.int64)
    copy_pages(pool, none, pool, none)


def test_pages_beyond_two_to_the_31_words() -> None:
    from common.kernels.triton.pages import copy_pages

    n_pages = 2**33 // 4096 + 2
    pool = torch.frombuffer(mmap.mmap(-1, n_pages * 4096), dtype=torch.uint8).view(n_pages, 4096)
    last = torch.randint(256, (1, 4096)).byte()
    zero, end = torch.tensor([0]), torch.tensor([n_pages - 1])
    copy_pages(last, zero, pool, end)
    assert torch.equal(pool[-1:], last)
    back = torch.zeros_like(last)
    copy_pages(pool, end, back, zero)
    assert torch.equal(back, last)


@pytest.mark.parametrize(("n_source", "n_destination"), [(4096, 4112), (4104, 4104)])
def test_pages_that_do_not_fit_are_refused(n_source: int, n_destination: int) -> None:
    from common.kernels.triton.pages import copy_pages

    source, destination = (torch.zeros(2, n).byte() for n in (n_source, n_destination))
    zero = torch.tensor([0])
    with pytest.raises(ValueError, match="pages of"):
        copy_pages(source, zero, destination, zero)
