"""Merged copies move exactly the pages that were asked for, each once, in windows of the bound."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from common.ids import PageId
from transfer.api import Copy
from transfer.plan import runs, windows

N_PAGES = 40
PAGE_BYTES = 4096


@st.composite
def pulls(draw: st.DrawFn) -> tuple[Copy, ...]:
    """Distinct local pages, in stretches that are often adjacent on both sides."""
    copies: list[Copy] = []
    free = set(range(N_PAGES))
    for remote, local, n in draw(
        st.lists(
            st.tuples(st.integers(0, N_PAGES - 1), st.integers(0, N_PAGES - 1), st.integers(1, 8)),
            max_size=12,
        )
    ):
        for i in range(n):
            if local + i in free and remote + i < N_PAGES:
                free.remove(local + i)
                copies.append(Copy(PageId(remote + i), remote + 2 * i, PageId(local + i)))
    return tuple(draw(st.permutations(copies)))


@given(copies=pulls(), window_pages=st.integers(1, 10))
def test_every_page_moves_once(copies: tuple[Copy, ...], window_pages: int) -> None:
    parts = windows(copies, PAGE_BYTES, window_pages * PAGE_BYTES)
    assert sorted(copy.local for part in parts for copy in part) == sorted(
        copy.local for copy in copies
    )
    moved: dict[int, int] = {}
    for part in parts:
        assert 1 <= len(part) <= window_pages
        for remote, local, n_pages in runs(part, 1).tolist():
            for i in range(n_pages):
                assert local + i not in moved
                moved[local + i] = remote + i
    assert moved == {copy.local: copy.remote for copy in copies}


@given(copies=pulls())
def test_no_two_runs_in_a_row_could_be_one(copies: tuple[Copy, ...]) -> None:
    for part in windows(copies, PAGE_BYTES, N_PAGES * PAGE_BYTES):
        for (remote, local, n_pages), run in pairwise(runs(part, PAGE_BYTES).tolist()):
            assert run[:2] != [remote + n_pages, local + n_pages]
