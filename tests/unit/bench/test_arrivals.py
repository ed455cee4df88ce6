import math

import numpy as np
import pytest

from bench.arrivals import Arrivals, RampUp
from bench.client import Request


def requests(n: int) -> list[Request]:
    return [Request(prompt="a", max_tokens=1)] * n


def gaps(arrivals: Arrivals, n: int) -> np.ndarray:
    return np.diff([0.0, *arrivals.times_s(requests(n))])


def test_without_a_rate_all_come_at_once() -> None:
    assert Arrivals().times_s(requests(3)) == [0.0, 0.0, 0.0]
    assert Arrivals(request_rate=5).times_s([]) == []


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gaps_are_gamma_of_that_shape_and_end_at_n_over_the_rate(burstiness: float) -> None:
    arrivals = Arrivals(request_rate=8.0, burstiness=burstiness, seed=1)
    made = gaps(arrivals, 20_000)
    assert made.sum() == pytest.approx(20_000 / 8.0)
    # A gamma's coefficient of variation is 1 / sqrt(shape).
    assert made.std() / made.mean() == pytest.approx(burstiness**-0.5, rel=0.05)
    assert (made >= 0).all()


def test_an_infinite_burstiness_is_a_clock() -> None:
    times_s = Arrivals(request_rate=4.0, burstiness=math.inf).times_s(requests(4))
    assert times_s == pytest.approx([0.25, 0.5, 0.75, 1.0])


def test_times_are_the_seeds() -> None:
    def times_s(seed: int) -> list[float]:
        return Arrivals(request_rate=2.0, seed=seed).times_s(requests(9))

    assert times_s(1) == times_s(1)
    assert times_s(1) != times_s(2)


@pytest.mark.parametrize(
    ("strategy", "middle"), [("linear", 5.5), ("exponential", math.sqrt(10.0))]
)
def test_a_ramp_rises_from_its_start_to_its_end(strategy: str, middle: float) -> None:
    ramp_up = RampUp(
        strategy="linear" if strategy == "linear" else "exponential", start_rps=1.0, end_rps=10.0
    )
    made = 1 / gaps(Arrivals(ramp_up=ramp_up, burstiness=math.inf), 1000)
    assert made[0] == pytest.approx(1.0)
    assert made[500] == pytest.approx(middle)
    assert made[999] == pytest.approx(10.0, rel=0.01)


def test_timed_requests_come_at_their_own_times() -> None:
    timed = [Request(prompt="a", max_tokens=1, at_s=at_s) for at_s in (0.0, 0.5, 0.5, 2.0)]
    assert Arrivals(timed=True).times_s(timed) == [0.0, 0.5, 0.5, 2.0]


@pytest.mark.parametrize("times_s", [(0.0, None), (1.0, 0.5)])
def test_requests_without_times_or_out_of_order_are_refused(times_s: tuple[float, ...]) -> None:
    timed = [Request(prompt="a", max_tokens=1, at_s=at_s) for at_s in times_s]
    with pytest.raises(ValueError, match="no times"):
        Arrivals(timed=True).times_s(timed)
