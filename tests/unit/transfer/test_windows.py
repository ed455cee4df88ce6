"""Windows of mapped memory: in turn, begun ahead, and final only when nothing is written."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from numpy.typing import NDArray

from common.errors import PeerError
from common.ids import HostId, InstanceId, PageId
from common.messages import RegionKey
from transfer.api import Copy, Copying, PageArray
from transfer.backends.windows import Fault, Windows
from transfer.memory import SharedPages
from transfer.tickets import Pull, Reason, Tickets

N_PAGES, PAGE_BYTES = 8, 4096
REMOTE = RegionKey(
    owner=InstanceId("owner"),
    host=HostId("h"),
    region=0,
    n_pages=N_PAGES,
    page_bytes=PAGE_BYTES,
    doors={},
)


@dataclass
class Device:
    """A peer's memory that writes down what it is asked for."""

    name: str
    said: list[str]
    dies_at: int | None = None  # that copy, when it is waited for
    reused: frozenset[int] = frozenset()
    lifeline: int | None = None
    n_copies: int = 0

    def copy(self, into: PageArray, runs_R3: NDArray[np.int64]) -> Copying:
        assert into.shape == (N_PAGES, PAGE_BYTES)
        number = self.n_copies = self.n_copies + 1
        pages = [at // PAGE_BYTES for at in runs_R3[:, 0].tolist()]
        self.said.append(f"{self.name} begins {pages}")

        def wait() -> None:
            self.said.append(f"{self.name} ends {pages}")
            if number == self.dies_at:
                raise PeerError("dead")

        return wait

    def are_still(self, pages: list[int], generations: NDArray[np.uint64]) -> bool:
        assert generations.tolist() == [7] * len(pages)
        return not self.reused & set(pages)

    def close(self) -> None: ...


@dataclass
class Scene:
    n_begun: int
    said: list[str] = field(default_factory=list[str])
    ends: dict[str, Fault | None] = field(default_factory=dict[str, "Fault | None"])

    def __post_init__(self) -> None:
        self.tickets = Tickets(lambda: None)
        self.windows = Windows(PAGE_BYTES, self.n_begun, self.tickets)
        self.local = SharedPages(N_PAGES, PAGE_BYTES)

    def pull(self, device: Device, pages: Sequence[int]) -> Pull:
        copies = tuple(Copy(PageId(page), 7, PageId(page)) for page in pages)
        pull = self.tickets.open(REMOTE, self.local, copies)

        def ended(fault: Fault | None) -> None:
            self.said.append(f"{device.name} is final")
            self.ends[device.name] = fault

        self.windows.queue(pull, device, ended)
        return pull

    def run(self) -> None:
        while not self.windows.idle:
            self.windows.step()


def test_one_window_after_the_other() -> None:
    scene = Scene(1)
    scene.pull(Device("a", scene.said), [0, 1])
    scene.run()
    assert scene.said == [
        "a begins [0]", "a ends [0]", "a begins [1]", "a ends [1]", "a is final",
    ]  # fmt: skip
    assert scene.ends == {"a": None}
    assert scene.tickets.stats().pulled_bytes == 2 * PAGE_BYTES


def test_the_next_is_begun_while_one_is_copied_and_pulls_take_turns() -> None:
    scene = Scene(2)
    scene.pull(Device("a", scene.said), [0, 1, 2])
    scene.pull(Device("b", scene.said), [5])
    scene.run()
    assert scene.said == [
        "a begins [0]", "b begins [5]", "a ends [0]", "a begins [1]", "b ends [5]", "b is final",
        "a begins [2]", "a ends [1]", "a ends [2]", "a is final",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"reused": frozenset({0})}, (Reason.STALE, "pages of owner were reused")),
        ({"dies_at": 1}, (Reason.UNREACHABLE, "dead")),
    ],
    ids=["reused", "died"],
)
def test_a_pull_that_fails_is_final_when_nothing_of_it_is_written(
    changes: dict[str, object], fault: Fault
) -> None:
    scene = Scene(2)
    scene.pull(Device("a", scene.said, **changes), [0, 1, 2, 3])  # pyright: ignore[reportArgumentType]
    scene.run()
    assert scene.said == [
        "a begins [0]", "a begins [1]", "a ends [0]", "a ends [1]", "a is final",
    ]  # fmt: skip
    assert scene.ends == {"a": fault}


def test_a_cancelled_pull_begins_no_more() -> None:
    scene = Scene(2)
    pull = scene.pull(Device("a", scene.said), [0, 1, 2])
    scene.windows.step()
    pull.cancelled = True
    scene.run()
    assert scene.said == ["a begins [0]", "a ends [0]", "a is final"]
    assert scene.ends == {"a": (Reason.CANCELLED, "")}


def test_what_is_left_fails_when_it_is_closed_and_nothing_is_written_then() -> None:
    scene = Scene(2)
    scene.pull(Device("a", scene.said), [0, 1, 2])
    scene.pull(Device("b", scene.said), [3])
    scene.windows.step()
    scene.windows.close()
    assert scene.said[:2] == ["a begins [0]", "a ends [0]"]
    assert scene.ends == dict.fromkeys("ab", (Reason.CLOSED, ""))
    assert scene.windows.idle
