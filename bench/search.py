"""The highest rate that keeps an SLO: bracket by doubling, then bisect. Pure.

Attainment is noisy, so points are judged together: the curve that is nearest to them and never
rises decides which rates keep the target. Must not measure anything.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

MIN_TOLERANCE = 0.01
_FAR_ABOVE = 4.0
"""Times what is completed: there all requests are sent before the first ones end, and a still
higher rate is the same load."""
_DIGITS = 4  # of a proposed rate; finer than any tolerance


@dataclass(frozen=True, slots=True)
class Sample:
    """What was seen at one rate."""

    rate: float  # requests/s
    attainment: float  # share of requests that met the SLO, 0 to 1
    weight: float = 1.0  # requests that it was seen on
    completed: float = math.inf  # requests/s


@dataclass(frozen=True, slots=True)
class Bracket:
    """Two measured rates with no measured one between them; the answer lies between."""

    kept: float | None  # the highest rate that keeps the target
    lost: float | None  # the lowest that does not

    def is_within(self, tolerance: float) -> bool:
        """Both ends are known, and `lost` is at most 1 + `tolerance` times `kept`."""
        return (
            self.kept is not None
            and self.lost is not None
            and self.lost <= self.kept * (1 + tolerance)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Where a search starts and ends."""

    start: float = 1.0  # requests/s
    lowest: float = 2.0**-10
    highest: float = 2.0**17
    tolerance: float = 0.05
    step: float = 2.0  # how far to go where only one side is known

    def __post_init__(self) -> None:
        if not 0 < self.lowest <= self.start <= self.highest:
            raise ValueError(f"rates must be 0 < {self.lowest} <= {self.start} <= {self.highest}")
        if self.tolerance < MIN_TOLERANCE:
            raise ValueError(f"tolerance must be at least {MIN_TOLERANCE}, not {self.tolerance}")
        if self.step <= 1:
            raise ValueError(f"step must be above 1, not {self.step}")

    def from_start(self, start: float) -> "Limits":
        """The same, from another rate."""
        return replace(self, start=start)


def never_rising(samples: Sequence[Sample]) -> list[Sample]:
    """The non-increasing curve with the least weighted square error; ascending, one a rate.

    Pool-adjacent-violators (Barlow et al., 1972).
    """
    blocks: list[tuple[list[float], float, float]] = []  # rates, weight, weight * attainment
    for sample in sorted(samples, key=lambda sample: sample.rate):
        rates, weight, mass = [sample.rate], sample.weight, sample.weight * sample.attainment
        while blocks and (
            blocks[-1][0][-1] == rates[0] or blocks[-1][2] * weight <= mass * blocks[-1][1]
        ):
            before, before_weight, before_mass = blocks.pop()
            rates, weight, mass = before + rates, before_weight + weight, before_mass + mass
        blocks.append((rates, weight, mass))
    return [
        Sample(rate, mass / weight, weight)
        for rates, weight, mass in blocks
        for rate in dict.fromkeys(rates)
    ]


def bracket(samples: Sequence[Sample], target: float) -> Bracket:
    """Where the curve through `samples` falls below `target` (0 to 1)."""
    curve = never_rising(samples)
    kept = [sample.rate for sample in curve if sample.attainment >= target]
    lost = [sample.rate for sample in curve if sample.attainment < target]
    return Bracket(max(kept, default=None), min(lost, default=None))


def is_out_of_reach(samples: Sequence[Sample], target: float) -> bool:
    """Every rate keeps the target, up to one that so few requests do not tell from any higher."""
    found = bracket(samples, target)
    if found.kept is None or found.lost is not None:
        return False
    return found.kept > _FAR_ABOVE * max(sample.completed for sample in samples)


def next_rate(samples: Sequence[Sample], target: float, limits: Limits) -> float | None:
    """The rate to measure next, never one of `samples`; None when the search is over.

    It ends: each proposal splits a gap wider than the tolerance, or lies a `step` outside.
    """
    found = bracket(samples, target)
    match found.kept, found.lost:
        case None, None:
            return limits.start
        case kept, None:
            if is_out_of_reach(samples, target):
                return None
            proposal = limits.step * kept
        case None, lost:
            proposal = lost / limits.step
        case kept, lost:
            if found.is_within(limits.tolerance):
                return None
            proposal = math.sqrt(kept * lost)
    proposal = float(f"{proposal:.{_DIGITS}g}")
    return proposal if limits.lowest <= proposal <= limits.highest else None
