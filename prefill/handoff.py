"""Leases: the promise to one reader not to reuse pages; and what is announced under them.

A lease belongs to (transfer, attempt, reader) and has its own holds on its pages, so the end of
one never touches another's. It lasts while the reader lives and lists the transfer, and ends by
Release, by End or by the reader's loss. An End frees at once, even while the reader copies: the
generation it checks after the copy protects it.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from common.errors import InvariantBroken
from common.ids import InstanceId, PageId, TransferId
from common.kv.pages import PagePool
from common.messages import PageRef

Key = tuple[TransferId, int]


@dataclass(slots=True, eq=False)
class Lease:
    """Pages announced so far to one reader, in page-table order from `first`."""

    reader: InstanceId
    first: int  # index in the page table of pages[0]: what the reader held already
    pages: list[PageId] = field(default_factory=list[PageId])
    refs: list[PageRef] = field(default_factory=list[PageRef])


class Leases:
    """All leases on one pool. Every hold taken here is given back here."""

    def __init__(self, pool: PagePool) -> None:
        self._pool = pool
        self._leases: dict[Key, Lease] = {}

    def __len__(self) -> int:
        return len(self._leases)

    def get(self, key: Key) -> Lease | None:
        return self._leases.get(key)

    def reader(self, key: Key) -> InstanceId | None:
        lease = self._leases.get(key)
        return None if lease is None else lease.reader

    def grant(self, key: Key, reader: InstanceId, *, first: int) -> Lease:
        """Open a lease. The same reader's repeated Accept finds the one it has."""
        lease = self._leases.get(key)
        if lease is not None and lease.reader == reader:
            return lease
        self.end(key)
        lease = self._leases[key] = Lease(reader, first)
        return lease

    def announce(self, key: Key, table: list[PageId], n_final: int) -> bool:
        """Take in the leading `n_final` pages of the prompt's table. True if that is news.

        Callers pass only pages whose last write is complete and visible to other processes.
        """
        lease = self._leases[key]
        fresh = table[lease.first + len(lease.pages) : n_final]
        for page in fresh:
            self._pool.share(page)
            lease.pages.append(page)
            lease.refs.append(PageRef(page, self._pool.generation(page)))
        return bool(fresh)

    def end(self, key: Key) -> None:
        """Idempotent."""
        lease = self._leases.pop(key, None)
        if lease is not None:
            self._pool.give_back(lease.pages)

    def end_unlisted(self, reader: InstanceId, listed: Collection[Key]) -> list[Key]:
        """The reader's digest came: what it does not list has lapsed. Returns what ended."""
        return self._end_where(lambda k, lease: lease.reader == reader and k not in listed)

    def end_reader(self, reader: InstanceId) -> list[Key]:
        """The reader is gone."""
        return self._end_where(lambda _, lease: lease.reader == reader)

    def _end_where(self, gone: Callable[[Key, Lease], bool]) -> list[Key]:
        ended = [key for key, lease in self._leases.items() if gone(key, lease)]
        for key in ended:
            self.end(key)
        return ended

    def check(self, tables: Mapping[Key, list[PageId]]) -> None:
        """Raise InvariantBroken unless each is on pages of a living prompt, as announced.

        `tables`: the page tables of prompts whose decode side may read."""
        for key, lease in self._leases.items():
            end = lease.first + len(lease.pages)
            if key not in tables or lease.pages != tables[key][lease.first : end]:
                raise InvariantBroken(f"{key} is leased to {lease.reader}, and is not its prompt's")
            if any(ref.generation != self._pool.generation(ref.page) for ref in lease.refs):
                raise InvariantBroken(f"{key} is leased to {lease.reader}, and a page is reused")

    def readers(self) -> Iterable[tuple[Key, InstanceId]]:
        """Who has a lease, and on what."""
        return ((key, lease.reader) for key, lease in self._leases.items())

    def held_pages(self) -> Iterable[PageId]:
        """Every hold, with repetition: for the law of conservation."""
        return (page for lease in self._leases.values() for page in lease.pages)
