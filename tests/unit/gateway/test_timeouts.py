import pytest

from launch.gateway.timeouts import Timeouts
from launch.gateway.transfers import RequestId

A, B, C = map(RequestId, "abc")


def test_the_soonest_comes_first() -> None:
    times = Timeouts()
    assert times.next_at is None
    for request, at in ((A, 3.0), (B, 1.0), (C, 2.0)):
        times.add(request, at)
    assert times.next_at == 1.0
    assert times.passed(0.9) == []
    assert times.passed(2.0) == [B, C]
    times.drop(B, 1.0)
    assert (times.next_at, len(times)) == (2.0, 2)


def test_who_ends_at_the_same_time_is_told_apart() -> None:
    times = Timeouts()
    for request in (B, A, C):
        times.add(request, 1.0)
    times.drop(B, 1.0)
    assert times.passed(1.0) == [A, C]


def test_dropping_what_was_not_added_is_a_bug() -> None:
    times = Timeouts()
    times.add(B, 1.0)
    with pytest.raises(AssertionError):
        times.drop(A, 1.0)
