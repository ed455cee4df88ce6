from itertools import pairwise

import pytest

from common.engine.priority import is_full, levels, most_waiting


def test_lower_priorities_come_first_and_none_is_worth_much() -> None:
    assert [levels(priority) for priority in (-3, -1, 0, 1, 3, 7)] == [-2, -1, 0, 1, 2, 3]
    assert all(levels(a) < levels(b) for a, b in pairwise(range(-1000, 1000)))
    assert levels(2**31 - 1) == pytest.approx(31)
    assert levels(-(2**31)) == pytest.approx(-31)


def test_those_that_are_less_urgent_leave_a_place_in_a_full_queue() -> None:
    waiting = [0, 0, 0, 5]
    assert is_full(0, waiting[:3], 3)
    assert not is_full(-1, waiting[:3], 3)
    assert not is_full(5, waiting[:2], 3)
    assert is_full(0, waiting, 3)  # three others come no later
    assert not is_full(4, [5, 5, 5], 3)
    assert not is_full(0, [0, 0, 5], 3)


def test_every_queue_is_bounded_however_urgent_one_is() -> None:
    assert [most_waiting(n) for n in (1, 3, 4, 256)] == [6, 16, 21, 1344]
    assert is_full(-(2**31), [0] * 320, 256)
    assert not is_full(-(2**31), [0] * 319, 256)


def test_who_was_accepted_has_places_that_no_newcomer_takes() -> None:
    assert is_full(0, [0, 0, 0], 3)
    assert not is_full(9, [0] * 15, 3, recovering=True)
    assert is_full(-9, [0] * 16, 3, recovering=True)
