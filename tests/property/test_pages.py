"""Any history of sequences: pages held are what tokens need, and what is cached is what was."""

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from common.ids import PageHash, PageId
from common.kv.layout import pages_for
from common.kv.pages import Fence, PagePool
from common.kv.prefix import page_hashes

N_PAGES, PAGE_TOKENS = 24, 4
texts = st.lists(st.integers(0, 1), min_size=1, max_size=24)  # few words: prefixes are shared
picks = st.integers(0, 2**16)


def named(tokens: list[int]) -> tuple[PageHash, ...]:
    return page_hashes(tokens, PAGE_TOKENS, fingerprint="m", salt="")


@dataclass(eq=False)
class Running:
    """A sequence, its page table, and the pass that may be writing its last page."""

    tokens: list[int]
    pages: list[PageId] = field(default_factory=list[PageId])


class Histories(RuleBasedStateMachine):
    """The pool beside a model of it: who holds what, and what every page's content is."""

    def __init__(self) -> None:
        super().__init__()
        self.generations = np.zeros(N_PAGES, np.uint64)
        self.pool = PagePool(N_PAGES, self.generations)
        self.running: list[Running] = []
        self.content: dict[PageId, PageHash] = {}  # of full pages, whoever wrote them last
        self.lives: dict[PageId, int] = {}
        self.fenced: dict[Fence, list[PageId]] = {}
        self.n_fences = 0
        self.known: set[PageHash] = set()  # what a router believes is here
        self.waiting: list[tuple[PageHash, ...]] = []

    # --- what sequences do

    def take(self, n: int) -> list[PageId]:
        before = self.generations.copy()
        wanted = {page_hash for hashes in self.waiting for page_hash in hashes}
        found = set(self.pool.published())
        taken = list(self.pool.take(n))
        evicted = found - set(self.pool.published())
        if evicted & wanted:  # then there was nothing else
            held = {page for page, n_left in enumerate(self.refcounts()) if n_left}
            left = {h for h in self.pool.published() if self.pool.lookup(h) not in held}
            assert left <= wanted | self.fenced_hashes()
        assert len(set(taken)) == n
        raised = np.flatnonzero(self.generations > before).tolist()
        assert sorted(raised) == sorted(taken)
        for page in taken:
            self.content.pop(page, None)
            self.lives[page] = self.pool.generation(page)
        return taken

    def publish(self, one: Running) -> None:
        for page, page_hash in zip(one.pages, named(one.tokens), strict=False):
            self.content[page] = page_hash
            self.pool.publish(page, page_hash)

    @rule(tokens=texts)
    def join(self, tokens: list[int]) -> None:
        """With the longest cached prefix, but for the last token, which must be computed."""
        found = self.pool.longest_prefix(named(tokens[:-1]))
        for page, page_hash in zip(found, named(tokens), strict=False):
            assert self.content[page] == page_hash
        for page in found:
            self.pool.share(page)
        n_new = pages_for(len(tokens), PAGE_TOKENS) - len(found)
        if n_new > self.pool.n_available:
            self.pool.give_back(found)
            return
        one = Running(tokens, [*found, *self.take(n_new)])
        self.publish(one)
        self.running.append(one)

    @precondition(lambda self: self.running)
    @rule(pick=picks, more=texts)
    def grow(self, pick: int, more: list[int]) -> None:
        one = self.running[pick % len(self.running)]
        n_new = pages_for(len(one.tokens) + len(more), PAGE_TOKENS) - len(one.pages)
        if n_new <= self.pool.n_available:
            one.tokens = one.tokens + more
            one.pages += self.take(n_new)
            self.publish(one)

    @precondition(lambda self: self.running)
    @rule(pick=picks)
    def fork(self, pick: int) -> None:
        """Full pages are shared, a partial one is copied: it will be written by both."""
        one = self.running[pick % len(self.running)]
        n_full = len(one.tokens) // PAGE_TOKENS
        n_copied = len(one.pages) - n_full
        shareable = all(self.pool.lookup(self.content[p]) == p for p in one.pages[:n_full])
        if n_copied > self.pool.n_available or not shareable:
            return
        for page in one.pages[:n_full]:
            self.pool.share(page)
        copied = self.take(n_copied)
        self.running.append(Running(list(one.tokens), one.pages[:n_full] + copied))

    @precondition(lambda self: self.running)
    @rule(pick=picks, fenced=st.booleans())
    def leave(self, pick: int, *, fenced: bool) -> None:
        one = self.running.pop(pick % len(self.running))
        if not fenced:
            self.pool.give_back(one.pages)
            return
        fence = ("step", self.n_fences // 2)  # two sequences may leave during one step
        self.n_fences += 1
        self.fenced.setdefault(fence, []).extend(one.pages)
        self.pool.give_back(one.pages, fence=fence)

    @precondition(lambda self: self.fenced)
    @rule(pick=picks)
    def step_is_final(self, pick: int) -> None:
        fence = list(self.fenced)[pick % len(self.fenced)]
        del self.fenced[fence]
        self.n_fences += 2 - self.n_fences % 2  # a final step is never named again
        self.pool.fence_final(fence)

    # --- who waits

    @rule(tokens=texts)
    def wait(self, tokens: list[int]) -> None:
        self.waiting.append(named(tokens))
        self.pool.want(self.waiting[-1])

    @precondition(lambda self: self.waiting)
    @rule(pick=picks)
    def wait_no_more(self, pick: int) -> None:
        self.pool.unwant(self.waiting.pop(pick % len(self.waiting)))

    def refcounts(self) -> list[int]:
        return [self.pool.refcount(PageId(page)) for page in range(N_PAGES)]

    def fenced_hashes(self) -> set[PageHash]:
        pages = {page for pages in self.fenced.values() for page in pages}
        return {self.content[page] for page in pages if page in self.content}

    # --- what happens to the cache

    @precondition(lambda self: self.running)
    @rule(pick=picks)
    def lose_trust(self, pick: int) -> None:
        for page in self.running[pick % len(self.running)].pages:
            self.pool.unpublish(page)
            assert self.content.get(page) is None or self.pool.lookup(self.content[page]) != page

    @rule()
    def drop_cache(self) -> None:
        self.pool.drop_cache()
        assert self.pool.n_cached == 0
        assert not self.pool.published()

    @rule()
    def tell_router(self) -> None:
        stored, removed = self.pool.drain_events()
        assert not self.known & set(stored)
        assert self.known >= set(removed)
        self.known = (self.known | set(stored)) - set(removed)
        assert self.known == set(self.pool.published())

    # --- what holds after every step

    @invariant()
    def the_pool_keeps_its_laws(self) -> None:
        self.pool.check()

    @invariant()
    def pages_held_are_what_tokens_need_less_what_is_shared(self) -> None:
        holders = Counter(page for one in self.running for page in one.pages)
        needed = sum(pages_for(len(one.tokens), PAGE_TOKENS) for one in self.running)
        shared = sum(n - 1 for n in holders.values())
        fenced = {page for pages in self.fenced.values() for page in pages} - set(holders)
        assert self.pool.n_held == needed - shared + len(fenced)
        assert all(self.pool.refcount(page) == n for page, n in holders.items())

    @invariant()
    def what_is_held_keeps_its_life_and_what_is_found_is_right(self) -> None:
        for one in self.running:
            assert all(self.pool.generation(page) == self.lives[page] for page in one.pages)
        for page_hash in self.pool.published():
            page = self.pool.lookup(page_hash)
            assert page is not None
            assert self.content[page] == page_hash

    def teardown(self) -> None:
        """Idle, nothing is held."""
        for one in self.running:
            self.pool.give_back(one.pages)
        for fence in self.fenced:
            self.pool.fence_final(fence)
        assert self.pool.n_held == 0
        self.pool.check()


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
