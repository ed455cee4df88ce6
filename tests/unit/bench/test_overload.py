"""The arithmetic of `bench.overload`."""

import pytest

from bench.client import Outcome
from bench.measures import Goodput
from bench.overload import Point, point, verdict

SLO = Goodput(ttft_ms=1000, tpot_ms=60)


def answered(ttft_s: float, gap_s: float) -> Outcome:
    times = [ttft_s, ttft_s + gap_s]
    return Outcome(
        index=0, scheduled_s=0, sent_s=0, ended_s=times[-1], chunk_times_s=times, output_tokens=2
    )


def refused(error: str) -> Outcome:
    return Outcome(index=0, scheduled_s=0, sent_s=0, error=error)


def test_goodput_is_over_the_time_in_which_requests_came() -> None:
    outcomes = [answered(0.5, 0.05), answered(0.5, 0.07), answered(1.5, 0.05), refused("http_429")]
    made = point(2.0, 4.0, outcomes, SLO)
    assert (made.sent, made.taken, made.kept, made.refused, made.failed) == (4, 3, 1, 1, 0)
    assert made.goodput == pytest.approx(1.0)  # one in the second that four came in
    assert made.p90_ttft_ms == pytest.approx(1300)
    assert made.p90_tpot_ms == pytest.approx(66)


def seen(rate: float, goodput: float, *, taken: int = 10, kept: int = 10, failed: int = 0) -> Point:
    return Point(rate, rate, 20, 10, failed, taken, kept, goodput, 0.0, 0.0)


@pytest.mark.parametrize(
    ("points", "holds"),
    [
        ([seen(1, 1.0), seen(5, 0.95)], True),
        ([seen(1, 1.0), seen(5, 0.85)], False),  # it collapses
        ([seen(1, 1.0), seen(5, 1.0, kept=8)], False),  # what is taken is late
        ([seen(1, 1.0, failed=1), seen(5, 1.0)], False),  # an answer that is neither
        ([seen(5, 1.0), seen(1, 1.0, kept=0)], True),  # the highest rate decides, not the last
    ],
)
def test_the_bars_are_of_the_highest_rate(points: list[Point], *, holds: bool) -> None:
    assert (not verdict(points).missed) is holds


def test_no_goodput_at_all_holds_nothing() -> None:
    assert len(verdict([seen(1, 0.0, kept=0), seen(5, 0.0, kept=0)]).missed) == 2
