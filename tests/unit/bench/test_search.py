"""The search for goodput, against attainment curves whose answer is known."""

import math
import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.search import Bracket, Limits, Sample, bracket, is_out_of_reach, never_rising, next_rate

N_REQUESTS = 200

capacities = st.floats(0.05, 500)
targets = st.sampled_from([0.5, 0.9, 0.99])
sharpness = st.floats(2, 40)
samples = st.lists(
    st.builds(
        Sample,
        st.integers(1, 20).map(float),
        st.integers(0, 200).map(lambda n: n / 200),
        st.sampled_from([1.0, 200.0, 1000.0]),
    ),
    max_size=12,
)


def attainment(rate: float, capacity: float, sharp: float) -> float:
    """Falls from 1 to 0 around `capacity`, the faster the sharper."""
    return 1 / (1 + min((rate / capacity) ** sharp, 1e300))


def rate_at(target: float, capacity: float, sharp: float) -> float:
    """Its inverse."""
    return capacity * (1 / target - 1) ** (1 / sharp)


def test_it_starts_where_it_is_told_then_doubles() -> None:
    limits = Limits(start=3)
    assert next_rate([], 0.9, limits) == 3
    assert next_rate([Sample(3, 1)], 0.9, limits) == 6
    assert next_rate([Sample(3, 1), Sample(6, 0.95)], 0.9, limits) == 12


def test_it_stops_where_so_few_requests_tell_no_rate_from_a_higher_one() -> None:
    seen = [Sample(8, 1, completed=5), Sample(16, 1, completed=5)]
    assert next_rate(seen, 0.9, Limits()) == 32
    assert not is_out_of_reach(seen, 0.9)
    seen.append(Sample(32, 1, completed=5))
    assert next_rate(seen, 0.9, Limits()) is None
    assert is_out_of_reach(seen, 0.9)
    seen.append(Sample(64, 0.1, completed=5))  # one that loses is told, wherever it is
    assert next_rate(seen, 0.9, Limits()) is not None
    assert not is_out_of_reach(seen, 0.9)


def test_it_halves_where_the_first_rate_is_too_much() -> None:
    assert next_rate([Sample(4, 0.2)], 0.9, Limits()) == 2


def test_who_knows_about_where_it_is_goes_in_smaller_steps() -> None:
    limits = Limits(start=4, step=1.25)
    assert next_rate([Sample(4, 1)], 0.9, limits) == 5
    assert next_rate([Sample(4, 0.2)], 0.9, limits) == 3.2
    with pytest.raises(ValueError, match=r"step must be above 1, not 1\.0"):
        Limits(step=1.0)


def test_between_a_rate_that_keeps_and_one_that_does_not_it_takes_their_geometric_mean() -> None:
    assert next_rate([Sample(4, 0.95), Sample(9, 0.1)], 0.9, Limits()) == 6


def test_it_ends_within_the_tolerance() -> None:
    seen = [Sample(4, 0.95), Sample(4.2, 0.1)]
    assert next_rate(seen, 0.9, Limits(tolerance=0.05)) is None
    assert next_rate(seen, 0.9, Limits(tolerance=0.04)) is not None


def test_it_gives_up_outside_its_limits() -> None:
    assert next_rate([Sample(8, 1)], 0.9, Limits(highest=15)) is None
    assert next_rate([Sample(1, 0)], 0.9, Limits(lowest=0.6)) is None


def test_one_bad_point_among_many_requests_does_not_decide() -> None:
    seen = [Sample(1, 1.0, 200), Sample(2, 0.88, 200), Sample(3, 0.99, 200), Sample(6, 0.2, 200)]
    assert bracket(seen, 0.9) == Bracket(kept=3, lost=6)


def test_a_rate_seen_twice_counts_by_its_requests() -> None:
    seen = [Sample(2, 1.0, 100), Sample(2, 0.7, 300)]
    assert never_rising(seen) == [Sample(2, 0.775, 400)]


@given(samples)
def test_the_curve_never_rises_and_keeps_the_mean(seen: list[Sample]) -> None:
    curve = never_rising(seen)
    assert [sample.rate for sample in curve] == sorted({sample.rate for sample in seen})
    values = [sample.attainment for sample in curve]
    assert all(after <= before for before, after in pairwise(values))
    by_rate = {sample.rate: sample.attainment for sample in curve}
    error = sum(sample.weight * (sample.attainment - by_rate[sample.rate]) for sample in seen)
    assert math.isclose(error, 0, abs_tol=1e-6)


@given(samples, targets)
def test_a_bracket_has_no_measured_rate_inside(seen: list[Sample], target: float) -> None:
    found = bracket(seen, target)
    low = -math.inf if found.kept is None else found.kept
    high = math.inf if found.lost is None else found.lost
    assert low < high
    assert not any(low < sample.rate < high for sample in seen)


@given(capacities, targets, sharpness)
def test_without_noise_it_finds_the_answer(capacity: float, target: float, sharp: float) -> None:
    limits = Limits()
    seen: list[Sample] = []
    while (rate := next_rate(seen, target, limits)) is not None:
        seen.append(Sample(rate, attainment(rate, capacity, sharp)))
        assert len(seen) < 40
    found = bracket(seen, target)
    assert found.kept is not None
    assert found.lost is not None
    assert found.kept <= rate_at(target, capacity, sharp) * (1 + 1e-9) <= found.lost * (1 + 2e-9)
    assert found.is_within(limits.tolerance)


@settings(max_examples=50)
@given(capacities, targets, sharpness, st.integers(0, 2**32))
def test_with_noise_it_ends_and_is_off_by_no_more_than_the_noise(
    capacity: float, target: float, sharp: float, seed: int
) -> None:
    """Each point is drawn from `N_REQUESTS` independent requests. Five standard errors either
    way, one search of some ten points: the answer's true attainment lies within."""
    draw = random.Random(seed)
    limits = Limits()
    seen: list[Sample] = []
    while (rate := next_rate(seen, target, limits)) is not None:
        chance = attainment(rate, capacity, sharp)
        n_good = sum(draw.random() < chance for _ in range(N_REQUESTS))
        assert rate not in [sample.rate for sample in seen]
        seen.append(Sample(rate, n_good / N_REQUESTS, N_REQUESTS))
        assert len(seen) < 60
    found = bracket(seen, target)
    assert found.kept is not None
    error = 5 * math.sqrt(target * (1 - target) / N_REQUESTS) + 5 / N_REQUESTS
    low = rate_at(min(target + error, 1 - 1e-4), capacity, sharp)
    high = rate_at(target - error, capacity, sharp)
    assert low / (1 + limits.tolerance) <= found.kept <= high


@pytest.mark.parametrize(
    ("fields", "word"), [({"start": 0.0001}, "rates"), ({"tolerance": 0.001}, "tolerance")]
)
def test_limits_that_make_no_sense_are_refused(fields: dict[str, float], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        Limits(**fields)
