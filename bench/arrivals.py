"""When requests are sent: pure, from rates and a seed to times. Imports nothing of the engine."""

import math
from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np

from bench.client import Request


class RampUp(msgspec.Struct, frozen=True, kw_only=True):
    """The rate rises from start to end over the requests."""

    strategy: Literal["linear", "exponential"]
    start_rps: float
    end_rps: float

    def rate(self, done: float) -> float:
        """Requests per second when that part of the requests (0 to 1) has been sent."""
        if self.strategy == "linear":
            return self.start_rps + (self.end_rps - self.start_rps) * done
        return self.start_rps * (self.end_rps / self.start_rps) ** done


class Arrivals(msgspec.Struct, frozen=True, kw_only=True):
    """An open loop: times are fixed beforehand and no server delays them.

    Only `max_concurrency` holds requests back, inside the client; with an infinite rate it makes
    the closed loop of so many clients.
    """

    request_rate: float = math.inf  # requests/s
    burstiness: float = 1.0  # gamma's shape: 1 is Poisson, less comes in bursts, inf is a clock
    ramp_up: RampUp | None = None  # instead of request_rate
    timed: bool = False  # by the requests' own times instead
    max_concurrency: int | None = None
    seed: int = 0

    def times_s(self, requests: Sequence[Request]) -> list[float]:
        """Seconds after the load's begin, ascending, one a request.

        Gaps are gamma(shape=burstiness, scale=1/(rate*burstiness)), rescaled so that the last
        request comes at n/rate, as in `vllm bench serve`; under a ramp they are not rescaled.
        Raises ValueError where `timed` requests lack times or go back in time.
        """
        if self.timed:
            return _own_times_s(requests)
        n = len(requests)
        rates = np.array([self._rate(i / n) for i in range(n)])
        if n == 0 or math.isinf(rates[0]):
            return [0.0] * n
        if math.isinf(self.burstiness):
            gaps_s = 1 / rates
        else:
            rng = np.random.default_rng(self.seed)
            gaps_s = rng.gamma(self.burstiness, 1 / (rates * self.burstiness))
        times_s = np.cumsum(gaps_s)
        if self.ramp_up is None and times_s[-1] > 0:
            times_s *= n / self.request_rate / times_s[-1]
        return times_s.tolist()

    def _rate(self, done: float) -> float:
        return self.request_rate if self.ramp_up is None else self.ramp_up.rate(done)


def _own_times_s(requests: Sequence[Request]) -> list[float]:
    times_s = [request.at_s for request in requests if request.at_s is not None]
    if len(times_s) < len(requests) or times_s != sorted(times_s):
        raise ValueError("the workload's requests have no times, or not in ascending order")
    return times_s
