"""Scattered pages copied by one launch on a stream of CuPy's, from memory of its own."""

import random

import numpy as np
import pytest
import torch

pytestmark = pytest.mark.gpu

N_PAGES, PAGE_BYTES = 200, 368_640


def test_runs_are_copied_in_the_order_of_the_stream() -> None:
    pytest.importorskip("cupy")
    from transfer.cuda_device import CudaStream
    from transfer.cuda_memory import DevicePages
    from transfer.pool import make_pages

    source, destination = (make_pages(N_PAGES, PAGE_BYTES, 0) for _ in range(2))
    assert isinstance(source, DevicePages)
    assert isinstance(destination, DevicePages)
    there_PB, here_PB = (torch.as_tensor(pages, device="cuda") for pages in (source, destination))
    there_PB.random_()
    torch.cuda.synchronize()
    rng = random.Random(0)
    stream = CudaStream(source.device)
    stream.make_ready(source.pages.address)
    for _ in range(5):
        from_pages, to_pages = (rng.sample(range(N_PAGES), 64) for _ in range(2))
        runs_R3 = np.array(
            [
                (a * PAGE_BYTES, b * PAGE_BYTES, PAGE_BYTES)
                for a, b in zip(from_pages, to_pages, strict=True)
            ]
        )
        stream.copy_runs(source.pages.address, destination.pages.address, runs_R3)
        runs_R3[:] = 0  # what was asked for is not this array's any more
        stream.mark()()
        assert torch.equal(here_PB[to_pages], there_PB[from_pages])
    stream.close()
