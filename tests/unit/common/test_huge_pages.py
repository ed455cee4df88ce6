import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from common.huge_pages import HUGE_BYTES, allocate, map_file, populate


@pytest.fixture
def fd() -> Iterator[int]:
    fd = os.memfd_create("test-huge-pages")
    yield fd
    os.close(fd)


def resident_bytes(name: str) -> int:
    """Of all mappings of this process with that name."""
    total, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        field, _, rest = line.partition(":")
        if " " in field:  # a mapping's first line: addresses, rights, ..., path
            inside = name in line
        elif inside and field == "Rss":
            total += int(rest.split()[0]) * 1024
    return total


@pytest.mark.parametrize("n_bytes", [1, mmap.PAGESIZE + 1, HUGE_BYTES, 3 * HUGE_BYTES + 5])
def test_all_memory_is_taken_zero_and_mapped_at_a_huge_page_s_boundary(
    fd: int, n_bytes: int
) -> None:
    allocate(fd, n_bytes)
    assert os.fstat(fd).st_blocks * 512 >= n_bytes
    view = map_file(fd, n_bytes, shared=True)
    assert view.nbytes == n_bytes
    bytes_ = np.frombuffer(view, np.uint8)
    assert bytes_.ctypes.data % HUGE_BYTES == 0
    assert not bytes_.any()


def test_what_is_written_goes_to_the_file_only_where_shared(fd: int) -> None:
    allocate(fd, 4096)
    shared, private = map_file(fd, 4096, shared=True), map_file(fd, 4096, shared=False)
    shared[0] = 7
    assert private[0] == 7
    private[1] = 9
    assert os.pread(fd, 2, 0) == b"\x07\x00"


def test_a_mapping_lives_as_long_as_an_array_over_it(fd: int) -> None:
    n_bytes = 2 * HUGE_BYTES
    allocate(fd, n_bytes)
    view = map_file(fd, n_bytes, shared=False)
    array = np.frombuffer(view[10:20], np.uint8)
    populate(view)
    del view
    assert resident_bytes("test-huge-pages") == n_bytes
    assert not array.any()
    del array
    assert resident_bytes("test-huge-pages") == 0
