import os
from pathlib import Path

import numpy as np
import pytest

from common.errors import InvariantBroken, SetupError
from transfer.memory import PeerPages, SharedPages, file_bytes


def test_pages_come_first_and_generations_after_them() -> None:
    memory = SharedPages(3, 8192)
    memory.pages[2, 8191] = 7
    memory.generations[:] = (1, 2, 2**64 - 1)
    assert memory.fd is not None
    size = os.fstat(memory.fd).st_size
    assert size == file_bytes(3, 8192) == 3 * 8192 + 4096
    raw = os.pread(memory.fd, size, 0)
    assert raw[3 * 8192 - 1] == 7
    assert np.frombuffer(raw, np.uint64, 3, 3 * 8192).tolist() == [1, 2, 2**64 - 1]
    memory.close()


def test_all_of_it_is_resident_and_of_one_size_for_ever() -> None:
    memory = SharedPages(64, 65_536)
    assert memory.fd is not None
    assert os.fstat(memory.fd).st_blocks * 512 == file_bytes(64, 65_536)
    for size in (0, 2**30):
        with pytest.raises(PermissionError):
            os.ftruncate(memory.fd, size)
    assert not os.get_inheritable(memory.fd)
    memory.close()


def test_it_has_no_name() -> None:
    before = set(Path("/dev/shm").iterdir())
    memory = SharedPages(1, 4096)
    assert set(Path("/dev/shm").iterdir()) == before
    memory.close()


def test_arrays_outlive_close() -> None:
    memory = SharedPages(2, 4096)
    pages = memory.pages
    memory.close()
    memory.close()
    pages[1] = 5
    assert int(pages.sum()) == 5 * 4096


def test_more_than_there_is_names_both_sizes() -> None:
    asked = 2**24
    with pytest.raises(SetupError, match=rf"{file_bytes(asked, 65536)} bytes .* are available"):
        SharedPages(asked, 65_536)


@pytest.mark.parametrize(("n_pages", "page_bytes"), [(0, 4096), (1, 0), (1, 4095)])
def test_sizes_that_cannot_be_are_a_bug(n_pages: int, page_bytes: int) -> None:
    with pytest.raises(InvariantBroken):
        SharedPages(n_pages, page_bytes)


def test_a_peer_s_view_follows_the_owner_and_cannot_write() -> None:
    memory = SharedPages(4, 4096)
    assert memory.fd is not None
    peer = PeerPages(memory.fd, 4, 4096)
    memory.pages[2] = 9
    memory.generations[2] = 5
    into = np.zeros((4, 4096), np.uint8)
    peer.copy(into, np.array([[2 * 4096, 0, 4096]]))()
    assert (into[0] == 9).all()
    assert not into[1:].any()
    assert peer.are_still([2], np.array([5], np.uint64))
    assert not peer.are_still([2, 3], np.array([5, 1], np.uint64))
    peer.close()
    memory.close()


def test_a_file_that_may_shrink_or_is_of_another_size_is_refused() -> None:
    memory = SharedPages(4, 4096)
    assert memory.fd is not None
    with pytest.raises(ValueError, match="bytes, not"):
        PeerPages(memory.fd, 5, 4096)
    loose = os.memfd_create("loose", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(loose, file_bytes(4, 4096))
    with pytest.raises(ValueError, match="could shrink"):
        PeerPages(loose, 4, 4096)
    os.close(loose)
    memory.close()
