from itertools import pairwise

import pytest

from common.engine.priority import levels


def test_lower_priorities_come_first_and_none_is_worth_much() -> None:
    assert [levels(priority) for priority in (-3, -1, 0, 1, 3, 7)] == [-2, -1, 0, 1, 2, 3]
    assert all(levels(a) < levels(b) for a, b in pairwise(range(-1000, 1000)))
    assert levels(2**31 - 1) == pytest.approx(31)
    assert levels(-(2**31)) == pytest.approx(-31)
