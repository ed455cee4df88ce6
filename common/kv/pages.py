"""Who owns which page of one pool: reference counts, fences, the prefix cache and its eviction.

Decides, and touches nothing: no tensor, no clock, no randomness. The only memory it writes is the
array of generations it is given, which may lie in memory that other processes read.
"""

from collections import OrderedDict
from collections.abc import Hashable, Iterable, KeysView, Sequence

import numpy as np
from numpy.typing import NDArray

from common.errors import InvariantBroken
from common.ids import PageHash, PageId

Fence = Hashable
"""Whatever may still touch a page after its holders have left: ("step", 12), ("ticket", 7)."""


class PagePool:
    """Every page is in exactly one of three places (law 1):

    - free:   nobody's; its content means nothing;
    - held:   refcount >= 1, or fenced: left by its last holder while a fence is not final;
    - cached: refcount 0, no fence, published under a hash, evictable.

    Fences stick to pages. Each `give_back` may leave one; a page may gather several, also while
    others hold it, and it is held until all of them are final and its refcount is 0. Name only
    fences that will become final later: one that already was would hold its pages for ever.

    Eviction is LRU by leaf. `give_back` takes pages in token order and files them tail first, so
    the oldest end of a queue is always a tail: whoever holds a page holds what precedes it. Cached
    pages that somebody who waits will need (`want`) are in a queue of their own, and go last.
    """

    def __init__(self, n_pages: int, generations: NDArray[np.uint64]) -> None:
        """`generations` [n_pages]: kept and written, never copied."""
        if generations.shape != (n_pages,):
            raise InvariantBroken(f"{generations.shape} generations for {n_pages} pages")
        self.n_pages = n_pages
        self._generations = generations.data  # one element costs a tenth of numpy's
        self._refcounts = [0] * n_pages
        self._hashes: list[PageHash | None] = [None] * n_pages
        self._index: dict[PageHash, PageId] = {}
        self._free = [PageId(page) for page in reversed(range(n_pages))]  # a stack: 0 first
        self._cached: OrderedDict[PageId, None] = OrderedDict()  # next to be evicted first
        self._wanted: OrderedDict[PageId, None] = OrderedDict()  # cached, too
        self._wants: dict[PageHash, int] = {}
        self._fences: dict[PageId, set[Fence]] = {}
        self._fenced: dict[Fence, dict[PageId, None]] = {}  # pages tail first
        self._stored: dict[PageHash, None] = {}
        self._removed: dict[PageHash, None] = {}

    @property
    def n_free(self) -> int:
        return len(self._free)

    @property
    def n_cached(self) -> int:
        return len(self._cached) + len(self._wanted)

    @property
    def n_held(self) -> int:
        return self.n_pages - self.n_available

    @property
    def n_available(self) -> int:
        """Pages that `take` can give now: free ones and cached ones."""
        return len(self._free) + self.n_cached

    @property
    def n_wants(self) -> int:
        """Hashes that somebody waits for."""
        return len(self._wants)

    def generation(self, page: PageId) -> int:
        """What to announce with the page, so that its reader can tell this life from the next."""
        return self._generations[page]

    def refcount(self, page: PageId) -> int:
        """How many hold it; 0 for a fenced one."""
        return self._refcounts[page]

    # --- holding -----------------------------------------------------------------------------

    def take(self, n: int) -> tuple[PageId, ...]:
        """`n` pages with refcount 1 and no content, evicting cached pages if too few are free.

        Generations are raised before this returns, thus before anybody can write the new life.
        Callers check `n_available` first (asking for more is a bug, not a state), and `share` the
        cached pages they want before they take, or these may be the ones evicted.
        """
        if n > self.n_available:
            raise InvariantBroken(f"took {n} pages of {self.n_available} available")
        for _ in range(n - len(self._free)):
            self._evict_one()
        pages = tuple(self._free.pop() for _ in range(n))
        for page in pages:
            self._generations[page] += 1
            self._refcounts[page] = 1
        return pages

    def share(self, page: PageId) -> None:
        """One more holder. Revives a cached page; its content and generation stay."""
        if self._refcounts[page] == 0:
            if self._hashes[page] is None:
                raise InvariantBroken(f"page {page} is shared, and its content means nothing")
            self._unfile(page)  # a published page that is fenced is in no queue
        self._refcounts[page] += 1

    def give_back(self, pages: Sequence[PageId], *, fence: Fence | None = None) -> None:
        """One holder fewer for each page. `pages` are in token order, as in a page table.

        `fence` names what may touch them still. A page without holders and fences is cached if it
        is published, else free.
        """
        for page in reversed(pages):
            if self._refcounts[page] == 0:
                raise InvariantBroken(f"page {page} is given back, and nobody holds it")
            self._refcounts[page] -= 1
            if fence is not None:
                self._fences.setdefault(page, set()).add(fence)
                fenced = self._fenced.setdefault(fence, {})
                fenced.pop(page, None)  # an earlier tail under the same fence must not outlive it
                fenced[page] = None
            self._settle(page)

    def fence_final(self, fence: Fence) -> None:
        """Nothing behind the fence will touch a page again. A no-op for one that holds none."""
        for page in self._fenced.pop(fence, {}):
            fences = self._fences[page]
            fences.remove(fence)
            if not fences:
                del self._fences[page]
            self._settle(page)

    def _settle(self, page: PageId) -> None:
        """File the page where it belongs, if nothing holds it any more."""
        if self._refcounts[page] or page in self._fences:
            return
        page_hash = self._hashes[page]
        if page_hash is None:
            self._free.append(page)
        else:
            self._queue(page_hash)[page] = None

    def _queue(self, page_hash: PageHash) -> OrderedDict[PageId, None]:
        return self._wanted if page_hash in self._wants else self._cached

    def _unfile(self, page: PageId) -> bool:
        """Out of whatever queue it is in. False: it was in none."""
        for queue in (self._cached, self._wanted):
            if page in queue:
                del queue[page]
                return True
        return False

    def _evict_one(self) -> None:
        """The policy of eviction, all of it: the page that was filed first, and of those that
        somebody waits for, none while there are others."""
        page, _ = (self._cached or self._wanted).popitem(last=False)
        self._forget_hash(page)
        self._free.append(page)

    # --- who waits ---------------------------------------------------------------------------

    def want(self, hashes: Iterable[PageHash]) -> None:
        """Somebody who waits will need these, here or not yet. `unwant` the same ones once."""
        for page_hash in hashes:
            n_wants = self._wants.get(page_hash, 0)
            self._wants[page_hash] = n_wants + 1
            page = self._index.get(page_hash)
            if n_wants == 0 and page is not None and page in self._cached:
                del self._cached[page]
                self._wanted[page] = None
                self._wanted.move_to_end(page, last=False)  # in token order: the tail ends first

    def unwant(self, hashes: Sequence[PageHash]) -> None:
        """As recently used as what is given back now. `hashes` are in token order."""
        for page_hash in reversed(hashes):
            n_wants = self._wants.pop(page_hash) - 1
            if n_wants:
                self._wants[page_hash] = n_wants
                continue
            page = self._index.get(page_hash)
            if page is not None and page in self._wanted:
                del self._wanted[page]
                self._cached[page] = None

    # --- the prefix cache --------------------------------------------------------------------

    def publish(self, page: PageId, page_hash: PageHash) -> bool:
        """The held page is complete and validated: `page_hash` finds it from now on.

        False if another page stands under the hash already; this one then stays unpublished.
        """
        if self._refcounts[page] == 0 and page not in self._fences:
            raise InvariantBroken(f"page {page} is published, and nobody holds it")
        if self._index.setdefault(page_hash, page) != page:
            return False
        if self._hashes[page] == page_hash:
            return True
        if self._hashes[page] is not None:
            raise InvariantBroken(f"page {page} is published under two hashes")
        self._hashes[page] = page_hash
        if page_hash in self._removed:
            del self._removed[page_hash]
        else:
            self._stored[page_hash] = None
        return True

    def unpublish(self, page: PageId) -> None:
        """The content is not to be trusted: no longer found; free once nobody holds it."""
        if self._hashes[page] is None:
            return
        self._forget_hash(page)
        if self._unfile(page):
            self._free.append(page)

    def drop_cache(self) -> None:
        """Nothing that was published is found any more; cached pages are free."""
        for page in list(self._index.values()):
            self.unpublish(page)

    def lookup(self, page_hash: PageHash) -> PageId | None:
        """The page under the hash, held or cached. Its place in the queue stays: `share` it."""
        return self._index.get(page_hash)

    def longest_prefix(self, hashes: Iterable[PageHash]) -> tuple[PageId, ...]:
        """The pages of the leading run of hashes that are found."""
        found: list[PageId] = []
        for page_hash in hashes:
            page = self._index.get(page_hash)
            if page is None:
                break
            found.append(page)
        return tuple(found)

    def published(self) -> KeysView[PageHash]:
        """Every hash that is found now: a live view, in order of publication."""
        return self._index.keys()

    def drain_events(self) -> tuple[tuple[PageHash, ...], tuple[PageHash, ...]]:
        """Hashes (stored, removed) since the last call, what cancels left out; disjoint.

        Bounded: each holds at most `n_pages` hashes however rare the calls.
        """
        events = tuple(self._stored), tuple(self._removed)
        self._stored.clear()
        self._removed.clear()
        return events

    def _forget_hash(self, page: PageId) -> None:
        page_hash = self._hashes[page]
        assert page_hash is not None
        self._hashes[page] = None
        del self._index[page_hash]
        if page_hash in self._stored:
            del self._stored[page_hash]
        else:
            self._removed[page_hash] = None

    # --- the laws ----------------------------------------------------------------------------

    def check(self) -> None:
        """Raise InvariantBroken unless the laws hold. O(n_pages): for tests and idle moments."""
        hashes, index, wants = self._hashes, self._index, self._wants
        of = hashes.__getitem__
        held = [p for p, n in enumerate(self._refcounts) if n or p in self._fences]
        places = sorted([*self._free, *self._cached, *self._wanted, *held])
        _require(places == list(range(self.n_pages)), "a page is lost, or in two places")
        _require(min(self._refcounts, default=0) >= 0, "a refcount is negative")
        cached, wanted = set(map(of, self._cached)), set(map(of, self._wanted))
        _require(None not in cached and None not in wanted, "a cached page is not published")
        _require(wants.keys().isdisjoint(cached), "a page that is wanted is among the others")
        _require(wanted <= wants.keys(), "a page that nobody wants is among the wanted")
        _require(not any(map(of, self._free)), "a free page is published")
        by_hash = dict(zip(hashes, range(self.n_pages), strict=True))
        by_hash.pop(None, None)
        _require(by_hash == index, "index and pages' hashes differ")
        n_named = self.n_pages - hashes.count(None)
        _require(n_named == len(index), "two pages stand under one hash")
        _require(self._stored.keys() <= index.keys(), "a stored hash is not found")
        _require(self._removed.keys().isdisjoint(index), "a removed hash is found")
        if self._fences or self._fenced:
            pairs = {(page, fence) for page, fences in self._fences.items() for fence in fences}
            mirror = {(page, fence) for fence, pages in self._fenced.items() for page in pages}
            _require(pairs == mirror, "fences and fenced pages differ")

    def check_holds(self, holds: Iterable[PageId]) -> None:
        """Raise InvariantBroken unless the laws hold and each page is held as often as it is in
        `holds`."""
        self.check()
        known = [0] * self.n_pages
        for page in holds:
            known[page] += 1
        if known != self._refcounts:
            raise InvariantBroken(f"pages are held {self._refcounts} times, {known} are known")


def _require(holds: bool, what: str) -> None:  # noqa: FBT001  reads as a sentence
    if not holds:
        raise InvariantBroken(what)
