from common.ids import HostId, InstanceId, PageId
from common.messages import RegionKey
from transfer.api import Copy
from transfer.plan import local_fault, remote_fault, runs, windows

REMOTE = RegionKey(
    owner=InstanceId("o"), host=HostId("h"), region=0, n_pages=10, page_bytes=4096, doors={}
)


def copies(*pages: tuple[int, int]) -> tuple[Copy, ...]:
    return tuple(
        Copy(remote=PageId(remote), generation=1, local=PageId(local)) for remote, local in pages
    )


def test_windows_are_ordered_by_remote_page_and_bounded() -> None:
    given = copies((5, 0), (3, 1), (4, 2), (9, 3), (1, 4))
    first, second, third = copies((1, 4), (3, 1)), copies((4, 2), (5, 0)), copies((9, 3))
    assert windows(given, 4096, 2 * 4096 + 4095) == (first, second, third)


def test_a_page_larger_than_the_window_is_a_window() -> None:
    given = copies((0, 0), (1, 1))
    assert windows(given, 8192, 4096) == (copies((0, 0)), copies((1, 1)))


def test_no_copies_are_no_windows() -> None:
    assert windows((), 4096, 4096) == ()
    assert runs((), 4096).shape == (0, 3)


def test_runs_are_adjacent_on_both_sides() -> None:
    given = copies((1, 7), (2, 8), (3, 9), (4, 0), (6, 1), (7, 3), (8, 4))
    assert runs(given, 1).tolist() == [[1, 7, 3], [4, 0, 1], [6, 1, 1], [7, 3, 2]]


def test_one_remote_page_to_two_local_ones_is_two_runs() -> None:
    pages = [[1, 1, 1], [1, 2, 1]]
    assert runs(copies((1, 1), (1, 2)), 4096).tolist() == [[4096 * n for n in run] for run in pages]


def test_faults_of_the_peer_name_the_page() -> None:
    assert remote_fault(copies((0, 0), (9, 1)), REMOTE, 4096) == ""
    assert remote_fault(copies((10, 0)), REMOTE, 4096) == "page 10 of 10"
    assert remote_fault(copies((-1, 0)), REMOTE, 4096) == "page -1 of 10"
    assert remote_fault((), REMOTE, 8192) == "a page is 4096 bytes there and 8192 here"
    late = Copy(remote=PageId(2), generation=2**64, local=PageId(0))
    assert remote_fault((late,), REMOTE, 4096) == f"generation {2**64} of page 2"


def test_faults_of_our_own_name_the_page() -> None:
    assert local_fault(copies((0, 0), (1, 4)), 5) == ""
    assert local_fault(copies((0, 5)), 5) == "local page 5 of 5"
    assert local_fault(copies((0, -1)), 5) == "local page -1 of 5"
    assert local_fault(copies((0, 2), (1, 2)), 5) == "a local page is named twice"
