"""Pages that are not what was announced, between real processes: it is found out, and the answer
is exact all the same."""

import mmap
from pathlib import Path

import pytest

from common.ids import Role
from common.messages import Handoff, PagesReady, RegionKey
from tests.api_client import until
from tests.system.relay import PASSED, Fate, Letter
from tests.system.relayed import Relayed, Trap
from transfer.memory import file_bytes, views

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

P, D = Role.PREFILL, Role.DECODE
FOR_EVER = 10**9


class Memory:
    """A worker's pages and their generations, written from outside."""

    def __init__(self, pid: int, pool: RegionKey) -> None:
        n_bytes = file_bytes(pool.n_pages, pool.page_bytes)
        (path,) = (
            path
            for path in Path(f"/proc/{pid}/fd").iterdir()
            if str(path.readlink()).startswith("/memfd:pages") and path.stat().st_size == n_bytes
        )
        with path.open("r+b") as file:
            mapping = memoryview(mmap.mmap(file.fileno(), n_bytes))
        self.pages, self.generations = views(mapping, pool.n_pages, pool.page_bytes)


@pytest.mark.parametrize("kind", [Handoff, pytest.param(PagesReady, marks=pytest.mark.full)])
def test_pages_that_begin_another_life_before_they_are_read(
    relayed: Relayed, kind: type[Handoff | PagesReady]
) -> None:
    pool = relayed.relay.hellos[P].pool
    assert pool is not None
    memory = Memory(relayed.pid(P), pool)

    def reuse(letter: Letter) -> Fate:
        """As their owner does: first the generation, then the content, if it is not read for the
        rest of the prompt."""
        assert isinstance(letter.message, Handoff | PagesReady)
        for ref in letter.message.pages:
            memory.generations[ref.page] += 1
            if kind is Handoff:
                memory.pages[ref.page] = 63
        return PASSED

    failures = relayed.total("kv_pull_failures_total", D)
    trap = Trap((P, D), lambda m: isinstance(m, kind) and bool(m.pages), reuse)
    with relayed.relay.judging(trap):
        relayed.check(relayed.begin(f"reused at {kind.__name__}"))
    assert trap.sprung.is_set()
    until(lambda: relayed.total("kv_pull_failures_total", D) > failures, "it was found out")
    relayed.meet()


@pytest.mark.parametrize("relayed", ["tcp"], indirect=True)
def test_one_flipped_bit_is_found_and_the_page_asked_for_again(relayed: Relayed) -> None:
    before = relayed.total("kv_bad_frames_total", D)
    failures = relayed.total("kv_pull_failures_total", D)
    attempts = relayed.n_remote()
    relayed.relay.pages(P).n_flips = 1
    relayed.check(relayed.begin("one bit"))
    assert relayed.relay.pages(P).n_flips == 0
    until(lambda: relayed.total("kv_bad_frames_total", D) == before + 1, "it was counted")
    assert relayed.total("kv_pull_failures_total", D) == failures
    assert relayed.n_remote() == attempts + 1
    relayed.settle()


@pytest.mark.full
@pytest.mark.parametrize("relayed", ["tcp"], indirect=True)
def test_a_wire_that_flips_bits_for_ever_is_given_up(relayed: Relayed) -> None:
    failures = relayed.total("kv_pull_failures_total", D)
    relayed.relay.pages(P).n_flips = FOR_EVER
    relayed.check(relayed.begin("every page"))
    until(lambda: relayed.total("kv_pull_failures_total", D) > failures, "it was given up")
    relayed.relay.pages(P).n_flips = 0
    relayed.meet()
