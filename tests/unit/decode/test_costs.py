import pytest

from decode.costs import COPY_BYTES_PER_S, LATENCY_S, TOKENS_PER_S, Costs

PAGE_BYTES = 1 << 20


def test_before_anything_is_measured_copies_are_far_cheaper_than_passes() -> None:
    costs = Costs(PAGE_BYTES)
    assert costs.copy_s(8) == pytest.approx(LATENCY_S + 8 * PAGE_BYTES / COPY_BYTES_PER_S)
    assert costs.compute_s(100) == 100 / TOKENS_PER_S
    assert costs.spill_pays(8, 128)
    assert costs.least_s(8, 128) == 2 * costs.copy_s(8)


def test_what_is_findable_is_not_computed_so_that_a_spill_may_not_pay() -> None:
    costs = Costs(PAGE_BYTES)
    assert not costs.spill_pays(8, 1)
    assert not costs.spill_pays(0, 0)
    assert costs.least_s(8, 1) == costs.compute_s(1)


def test_copies_are_measured_their_latency_left_out() -> None:
    costs = Costs(PAGE_BYTES)
    for _ in range(100):
        costs.copied(10, LATENCY_S + 0.02)
        costs.copied(2, LATENCY_S + 0.004)
    assert costs.copy_s(5) == pytest.approx(LATENCY_S + 0.01)


def test_the_fastest_pass_counts_and_fades() -> None:
    costs = Costs(PAGE_BYTES)
    costs.computed(128, 0.064)
    for _ in range(10):
        costs.computed(8, 0.01)
    assert 0.98 * 2000 < 1 / costs.compute_s(1) < 2000
    for _ in range(5000):
        costs.computed(8, 0.01)
    assert costs.compute_s(1) == 0.01 / 8


def test_a_slow_host_makes_computing_the_cheaper_way() -> None:
    costs = Costs(PAGE_BYTES)
    costs.computed(128, 0.064)
    assert costs.spill_pays(8, 128)
    for _ in range(100):
        costs.copied(8, 0.1)
    assert not costs.spill_pays(8, 128)
