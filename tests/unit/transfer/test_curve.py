"""Pages travel over TCP to whoever has the key, and to nobody else."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from common.curve import CurveKey, made_from
from common.engine.events import Pull, TicketFinal
from common.ids import InstanceId, PageId, TicketId
from common.messages import PageRef
from common.rundir import host_id
from transfer.memory import SharedPages
from transfer.open import open_transport
from transfer.pulls import Pulls

N_PAGES, PAGE_BYTES = 8, 2**17  # as large as a frame may be
OURS, THEIRS = made_from(b"our secret"), made_from(b"their secret")


@contextmanager
def side(name: str, run_dir: Path, curve: CurveKey | None) -> Iterator[tuple[Pulls, SharedPages]]:
    with ExitStack() as stack:
        memory = SharedPages(N_PAGES, PAGE_BYTES)
        stack.callback(memory.close)
        transport = open_transport(
            "tcp",
            instance=InstanceId(name * 32),
            host=host_id(),
            run_dir=run_dir,
            listen_host="127.0.0.1",
            wake=lambda: None,
            curve=curve,
            progress_timeout_s=0.5,
        )
        pulls = Pulls(transport, memory)
        stack.callback(pulls.close)
        yield pulls, memory


def final(pulls: Pulls) -> TicketFinal:
    waiting = threading.Event()
    for _ in range(1000):
        for event in pulls.finals(0.0):
            return event
        waiting.wait(0.01)
    raise AssertionError("a pull has no end")


@pytest.mark.parametrize(
    ("readers", "owners", "well"),
    [
        (OURS, OURS, True),
        (None, OURS, False),
        (THEIRS, OURS, False),
        (OURS, None, False),
    ],
)
def test_pages_are_for_who_has_the_key(
    tmp_path: Path, readers: CurveKey | None, owners: CurveKey | None, *, well: bool
) -> None:
    with (
        side("r", tmp_path / "r", readers) as (reader, memory),
        side("o", tmp_path / "o", owners) as (owner, owned),
    ):
        owned.pages[3] = 7
        copies = ((PageRef(PageId(3), 0), PageId(5)),)
        reader.start(Pull(TicketId(1), owner.key.owner, owner.key, copies))
        assert final(reader).ok is well
        assert bool((memory.pages[5] == 7).all()) is well
