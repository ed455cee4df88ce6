"""Priorities of those that wait for room: a head start, and no more."""

from common.messages import Accept
from decode.scheduler import MAX_PASSED, PRIORITY_PASSES, turn
from tests.unit.decode.builders import Bench, P, ended, expect


def test_a_level_is_worth_so_many_passes() -> None:
    assert turn(5, 30, 16, 1) == turn(5, 30, 16) + PRIORITY_PASSES
    assert turn(5, 30, 16, -3) == turn(5, 30, 16) - 2 * PRIORITY_PASSES


def test_whoever_is_passed_has_waited_enough_in_the_end() -> None:
    last = turn(0, 16, 16, 2**31 - 1)
    assert turn(62 * PRIORITY_PASSES + MAX_PASSED + 1, 0, 16, -(2**31)) > last


def test_a_request_of_a_lower_number_is_let_in_first() -> None:
    """However large it is, and though it came last."""
    bench = Bench(n_pages=8)
    bench.hear(expect(28, transfer="full", max_tokens=4))
    for name, n_tokens, priority in (("small", 4, 0), ("late", 4, 9), ("large", 20, -1)):
        bench.hear(expect(n_tokens, transfer=name, max_tokens=4, priority=priority))
    assert not bench.said(Accept, P)
    bench.hear(ended("full"))
    names = [accept.transfer for accept in bench.said(Accept, P)]
    assert names == ["large", "small", "late"][: len(names)]
    assert names
