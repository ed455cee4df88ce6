"""PagePool: where pages are, who may take them, and in which order they are evicted."""

import numpy as np
import pytest

from common.errors import InvariantBroken
from common.ids import PageHash, PageId
from common.kv.pages import PagePool


def pool(n_pages: int = 4) -> PagePool:
    return PagePool(n_pages, np.zeros(n_pages, np.uint64))


def named(n: int) -> PageHash:
    return PageHash(n.to_bytes(16, "little"))


def pages(*ids: int) -> tuple[PageId, ...]:
    return tuple(PageId(i) for i in ids)


def cached(p: PagePool, *hashes: int) -> tuple[PageId, ...]:
    """A finished sequence whose pages are published under `hashes`."""
    taken = p.take(len(hashes))
    for page, n in zip(taken, hashes, strict=True):
        assert p.publish(page, named(n))
    p.give_back(taken)
    return taken


def counts(p: PagePool) -> tuple[int, int, int]:
    p.check()
    return p.n_free, p.n_held, p.n_cached


def test_take_gives_the_lowest_pages_first_and_raises_their_generations_alone() -> None:
    generations = np.array([7, 7, 7, 7], np.uint64)
    p = PagePool(4, generations)
    assert p.take(2) == pages(0, 1)
    assert generations.tolist() == [8, 8, 7, 7]
    assert p.generation(PageId(0)) == 8
    assert counts(p) == (2, 2, 0)


def test_taking_more_than_is_available_is_a_bug_and_changes_nothing() -> None:
    p = pool()
    p.take(3)
    with pytest.raises(InvariantBroken, match="took 2 pages of 1"):
        p.take(2)
    assert counts(p) == (1, 3, 0)


def test_taking_none_is_allowed() -> None:
    p = pool()
    assert p.take(0) == ()
    assert counts(p) == (4, 0, 0)


def test_a_page_returns_when_its_last_holder_leaves() -> None:
    p = pool()
    taken = p.take(1)
    p.publish(taken[0], named(1))
    p.share(taken[0])
    p.give_back(taken)
    assert counts(p) == (3, 1, 0)
    p.give_back(taken)
    assert counts(p) == (3, 0, 1)


def test_giving_back_twice_is_a_bug() -> None:
    p = pool()
    taken = p.take(1)
    p.give_back(taken)
    with pytest.raises(InvariantBroken, match="page 0 is given back"):
        p.give_back(taken)


def test_sharing_a_page_whose_content_means_nothing_is_a_bug() -> None:
    p = pool()
    with pytest.raises(InvariantBroken, match="page 3 is shared"):
        p.share(PageId(3))


def test_a_revived_page_keeps_its_generation_and_a_new_life_gets_another() -> None:
    p = pool(1)
    (page,) = cached(p, 1)
    p.share(page)
    assert p.generation(page) == 1
    p.give_back((page,))
    assert p.take(1) == (page,)
    assert p.generation(page) == 2
    assert p.lookup(named(1)) is None


# --- fences ----------------------------------------------------------------------------------


def test_a_fenced_page_is_held_until_its_fence_is_final() -> None:
    p = pool()
    p.give_back(p.take(2), fence=("step", 1))
    assert counts(p) == (2, 2, 0)
    p.fence_final(("step", 2))
    assert counts(p) == (2, 2, 0)
    p.fence_final(("step", 1))
    assert counts(p) == (4, 0, 0)


def test_a_published_page_is_cached_when_its_fence_is_final() -> None:
    p = pool()
    taken = p.take(1)
    p.publish(taken[0], named(1))
    p.give_back(taken, fence=("step", 1))
    p.fence_final(("step", 1))
    assert counts(p) == (3, 0, 1)


def test_a_page_waits_for_all_of_its_fences() -> None:
    p = pool()
    taken = p.take(1)
    p.publish(taken[0], named(1))
    p.share(taken[0])
    p.give_back(taken, fence=("step", 1))
    p.give_back(taken, fence=("ticket", 1))
    p.fence_final(("step", 1))
    assert counts(p) == (3, 1, 0)
    p.fence_final(("ticket", 1))
    assert counts(p) == (3, 0, 1)


def test_a_fence_left_by_an_earlier_holder_outlives_the_last_one() -> None:
    p = pool()
    taken = p.take(1)
    p.publish(taken[0], named(1))
    p.share(taken[0])
    p.give_back(taken, fence=("step", 1))
    p.give_back(taken)
    assert counts(p) == (3, 1, 0)
    p.fence_final(("step", 1))
    assert counts(p) == (3, 0, 1)


def test_a_fence_that_is_final_while_others_hold_the_page_frees_nothing() -> None:
    p = pool()
    taken = p.take(1)
    p.publish(taken[0], named(1))
    p.share(taken[0])
    p.give_back(taken, fence=("step", 1))
    p.fence_final(("step", 1))
    assert counts(p) == (3, 1, 0)


def test_a_fenced_page_is_found_and_revived_if_it_is_published() -> None:
    p = pool()
    (page,) = p.take(1)
    p.give_back((page,), fence=("ticket", 1))
    with pytest.raises(InvariantBroken):
        p.share(page)
    assert p.publish(page, named(1))  # the pull was good, though who asked for it is gone
    p.share(page)
    p.fence_final(("ticket", 1))
    assert counts(p) == (3, 1, 0)


# --- the prefix cache ------------------------------------------------------------------------


def test_the_first_page_under_a_hash_stays_and_the_second_is_freed() -> None:
    p = pool()
    first, second = p.take(2)
    assert p.publish(first, named(1))
    assert p.publish(first, named(1))
    assert not p.publish(second, named(1))
    p.give_back((second,))
    assert p.lookup(named(1)) == first
    assert counts(p) == (3, 1, 0)


def test_a_page_has_one_hash_and_only_a_held_page_gets_one() -> None:
    p = pool()
    (page,) = p.take(1)
    p.publish(page, named(1))
    with pytest.raises(InvariantBroken, match="two hashes"):
        p.publish(page, named(2))
    p = pool()
    with pytest.raises(InvariantBroken, match="nobody holds"):
        p.publish(PageId(0), named(1))


def test_longest_prefix_stops_at_the_first_hash_that_is_missing() -> None:
    p = pool()
    a, b, _ = cached(p, 1, 2, 4)
    assert p.longest_prefix([named(n) for n in (1, 2, 3, 4)]) == (a, b)
    assert p.longest_prefix([named(9), named(1)]) == ()


def test_tails_are_evicted_before_heads_and_older_sequences_before_newer() -> None:
    p = pool(6)
    cached(p, 1, 2, 3)
    cached(p, 11, 12, 13)
    order: list[int] = []
    for _ in range(6):
        before = set(p.published())
        p.take(1)
        order += [int.from_bytes(h, "little") for h in before - set(p.published())]
    assert order == [3, 2, 1, 13, 12, 11]


def test_a_reused_prefix_is_evicted_last() -> None:
    p = pool(4)
    first = cached(p, 1, 2)
    cached(p, 11, 12)
    p.share(first[0])
    p.give_back(first[:1])
    p.take(3)
    assert list(p.published()) == [named(1)]


def test_tails_go_first_though_two_sequences_left_their_prefix_to_one_fence() -> None:
    p = pool(3)
    head, a, b = p.take(3)
    for page, n in ((head, 1), (a, 2), (b, 3)):
        p.publish(page, named(n))
    p.share(head)
    p.give_back((head, a), fence=("step", 1))
    p.give_back((head, b), fence=("step", 1))
    p.fence_final(("step", 1))
    p.take(2)
    assert list(p.published()) == [named(1)]


def evicted(p: PagePool, n: int) -> list[int]:
    """The hashes that are lost, one page taken after the other."""
    order: list[int] = []
    for _ in range(n):
        before = set(p.published())
        p.take(1)
        order += [int.from_bytes(h, "little") for h in before - set(p.published())]
    return order


def test_what_somebody_waits_for_is_evicted_after_all_else_and_tail_first() -> None:
    p = pool(6)
    cached(p, 1, 2, 3)
    cached(p, 11, 12, 13)
    p.want([named(1), named(2), named(99)])
    assert evicted(p, 6) == [3, 13, 12, 11, 2, 1]
    p.check()


def test_a_wanted_page_that_comes_later_is_kept_too_and_waits_are_counted() -> None:
    p = pool(4)
    p.want([named(1), named(2)])
    p.want([named(1)])
    cached(p, 1, 2)
    cached(p, 11, 12)
    p.unwant([named(1)])
    p.check()
    assert evicted(p, 1) == [12]
    p.unwant([named(1), named(2)])
    p.check()
    assert evicted(p, 3) == [11, 2, 1]


def test_a_wanted_page_can_be_shared_and_unpublished() -> None:
    p = pool(3)
    first, second = cached(p, 1, 2)
    p.want([named(1), named(2)])
    p.share(first)
    assert counts(p) == (1, 1, 1)
    p.unpublish(second)
    assert counts(p) == (2, 1, 0)
    p.give_back([first])
    assert counts(p) == (2, 0, 1)
    p.unwant([named(1), named(2)])
    assert counts(p) == (2, 0, 1)


def test_free_pages_are_taken_before_cached_ones() -> None:
    p = pool(4)
    cached(p, 1, 2)
    p.take(2)
    assert p.n_cached == 2


def test_unpublish_frees_a_cached_page_and_leaves_a_held_one_to_its_holders() -> None:
    p = pool()
    first, second = cached(p, 1, 2)
    p.share(first)
    p.unpublish(first)
    p.unpublish(second)
    p.unpublish(second)
    assert list(p.published()) == []
    assert counts(p) == (3, 1, 0)
    p.give_back((first,))
    assert counts(p) == (4, 0, 0)


def test_drop_cache_forgets_held_pages_too() -> None:
    p = pool()
    first, _ = cached(p, 1, 2)
    p.share(first)
    p.drop_cache()
    assert p.lookup(named(1)) is None
    assert counts(p) == (3, 1, 0)


# --- events ----------------------------------------------------------------------------------


def test_events_say_what_changed_since_the_last_drain() -> None:
    p = pool(2)
    cached(p, 1, 2)
    assert p.drain_events() == ((named(1), named(2)), ())
    assert p.drain_events() == ((), ())
    p.take(1)
    assert p.drain_events() == ((), (named(2),))


def test_a_store_and_a_removal_cancel_in_either_order() -> None:
    p = pool(2)
    cached(p, 1)
    p.drop_cache()
    assert p.drain_events() == ((), ())
    cached(p, 1)
    p.drain_events()
    p.drop_cache()
    cached(p, 1)
    assert p.drain_events() == ((), ())


# --- check -----------------------------------------------------------------------------------


@pytest.mark.parametrize("page", [0, 2])
def test_check_sees_a_page_in_two_places_and_one_in_none(page: int) -> None:
    p = pool()
    p.take(2)
    assert p._free == [3, 2]
    p._free[0] = PageId(page)
    with pytest.raises(InvariantBroken):
        p.check()


def test_generations_must_fit_the_pool() -> None:
    with pytest.raises(InvariantBroken, match="generations for 4 pages"):
        PagePool(4, np.zeros(3, np.uint64))
