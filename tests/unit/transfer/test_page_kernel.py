"""What the kernel that copies pages is asked for; it runs in `tests/gpu`."""

import numpy as np
from numpy.typing import NDArray

from transfer.page_kernel import cut

LONGEST = 2**18


def bytes_of(runs_R3: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Where each 16 of them come from and go to."""
    return [(at + n, to + n) for at, to, n_bytes in runs_R3.tolist() for n in range(0, n_bytes, 16)]


def test_long_runs_are_cut_and_all_bytes_stay() -> None:
    runs_R3 = np.array(
        [
            (0, 2**40, 16),
            (4096, 0, 3 * LONGEST),
            (2**30, 2**20, LONGEST),
            (2**35, 2**25, LONGEST + 4096),
        ],
        np.int64,
    )
    given = runs_R3.copy()
    pieces_P3 = cut(runs_R3)
    assert bytes_of(pieces_P3) == bytes_of(given)
    assert pieces_P3[:, 2].tolist() == [16, *[LONGEST] * 3, LONGEST, LONGEST, 4096]
    assert (runs_R3 == given).all()
    assert pieces_P3.flags.c_contiguous
    assert pieces_P3.dtype == np.int64


def test_nothing_is_one_run_so_that_its_kernel_is_compiled() -> None:
    assert cut(np.zeros((1, 3), np.int64)).tolist() == [[0, 0, 0]]
