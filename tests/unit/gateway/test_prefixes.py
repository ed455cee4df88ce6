"""Who holds the beginning of a prompt."""

from common.ids import InstanceId, PageHash
from launch.gateway.prefixes import Prefixes
from tests.unit.gateway.builders import D2, D, P

PAGES = tuple(PageHash(bytes([n])) for n in range(6))


def leading(held: Prefixes, pages: tuple[PageHash, ...] = PAGES) -> list[int]:
    return [held.leading(worker, pages) for worker in (P, D, D2)]


def test_pages_from_the_first_on_count() -> None:
    held = Prefixes()
    held.store(P, PAGES)
    held.store(D, PAGES[:2])
    held.store(D2, PAGES[1:])
    assert leading(held) == [6, 2, 0]
    assert leading(held, PAGES[1:3]) == [2, 1, 2]
    assert leading(held, ()) == [0, 0, 0]


def test_what_changes_is_seen_at_once() -> None:
    held = Prefixes()
    held.store(P, PAGES[:3])
    assert leading(held) == [3, 0, 0]
    held.store(P, PAGES[3:4])
    held.store(D, PAGES[:1])
    assert leading(held) == [4, 1, 0]
    held.remove(P, PAGES[2:3])
    held.remove(D, PAGES[5:])  # it never held it
    held.remove(D2, PAGES)
    assert leading(held) == [2, 1, 0]


def test_who_is_forgotten_leaves_nothing_behind() -> None:
    held = Prefixes()
    held.store(P, PAGES)
    held.store(D, PAGES[:2])
    held.forget(P)
    held.forget(D2)
    assert leading(held) == [0, 2, 0]
    held.store(D2, PAGES[:1])  # with the bit that P had
    assert leading(held) == [0, 2, 1]
    held.forget(D)
    held.forget(D2)
    assert not any(vars(held)[name] for name in ("_pages", "_bits", "_holders"))


def test_many_workers() -> None:
    held = Prefixes()
    workers = [InstanceId(f"decode-{n}") for n in range(100)]
    for n, worker in enumerate(workers):
        held.store(worker, PAGES[: n % 7])
    assert [held.leading(worker, PAGES) for worker in workers] == [n % 7 for n in range(100)]
