"""What passes cost, and how long the next may take."""

import pytest

from prefill.pace import HEED_S, RECENT_PASSES, Cost, Limit, Pace, pairs


def paced(*passes: tuple[int, int, float]) -> Pace:
    """Measured these: (position of the first token, tokens, seconds)."""
    pace = Pace()
    for first, n_tokens, seconds in passes:
        pace.begin(n_tokens, pairs(first, n_tokens), 0.0)
        pace.end(seconds)
    return pace


def priced(cost: Cost, *passes: tuple[int, int]) -> Pace:
    """Measured passes of that cost."""
    return paced(*((first, n, cost.seconds(first, n)) for first, n in passes))


# --- costs -----------------------------------------------------------------------------------


def test_a_cost_is_of_tokens_and_of_what_they_attend_to() -> None:
    cost = Cost(0.001, 0.00001)
    assert cost.seconds(0, 100) == pytest.approx(0.1 + 0.05)
    assert cost.seconds(1000, 100) == pytest.approx(0.1 + 1.05)


@pytest.mark.parametrize("cost", [Cost(0.001, 0.0), Cost(0.0, 1e-5), Cost(0.001, 1e-6)])
@pytest.mark.parametrize("first", [0, 5000])
def test_as_many_tokens_as_fit(cost: Cost, first: int) -> None:
    n_tokens = cost.tokens(first, 0.25)
    assert cost.seconds(first, n_tokens) < 0.25 + 1e-6 < cost.seconds(first, n_tokens + 1)
    assert cost.tokens(first, 0.0) == 0


@pytest.mark.parametrize("cost", [Cost(0.001, 1e-6), Cost(0.0005, 0.0)])
def test_shallow_and_deep_passes_tell_both(cost: Cost) -> None:
    pace = priced(cost, (0, 64), (0, 512), (4000, 48), (6000, 48))
    assert pace.cost is not None
    assert pace.cost.token_s == pytest.approx(cost.token_s)
    assert pace.cost.pair_s == pytest.approx(cost.pair_s, abs=1e-12)


def test_one_kind_of_passes_tells_a_mean() -> None:
    assert paced((0, 100, 0.1)).cost == Cost(pytest.approx(0.001), 0.0)  # pyright: ignore[reportArgumentType]
    assert paced((5000, 100, 0.3)).cost == Cost(pytest.approx(0.003), 0.0)  # pyright: ignore[reportArgumentType]
    alike = paced((0, 1500, 1.5), (800, 500, 1.0))  # 750 and 1,050 deep
    assert alike.cost == Cost(pytest.approx(0.002), 0.0)  # pyright: ignore[reportArgumentType]


def test_no_cost_is_below_nothing() -> None:
    """Whatever a disturbed pass seems to say."""
    slow_when_shallow = paced((0, 100, 1.0), (5000, 100, 0.1)).cost
    assert slow_when_shallow == Cost(pytest.approx(0.01), 0.0)  # pyright: ignore[reportArgumentType]
    fast_when_shallow = paced((0, 1900, 0.0001), (5000, 100, 10.0)).cost
    assert fast_when_shallow is not None
    assert fast_when_shallow.token_s == 0.0
    assert fast_when_shallow.seconds(5000, 100) == pytest.approx(10.0)


def test_the_latest_passes_weigh_most() -> None:
    pace = paced(*[(0, 100, 0.1)] * 20, *[(0, 100, 0.2)] * 3)
    assert pace.cost is not None
    assert pace.cost.token_s == pytest.approx(0.002 - 0.001 * 0.8**3, rel=0.02)


def test_before_a_pass_nothing_is_known() -> None:
    pace = Pace()
    assert pace.cost is None
    pace.begin(50, pairs(0, 50), 0.0)
    assert pace.rest_s(0.0) == 0.0
    pace.end(0.0)  # a clock that stood still
    assert pace.cost is None
    assert not pace.is_known(1, 1)


def test_what_is_left_of_the_running_pass() -> None:
    pace = paced((0, 100, 0.1))
    assert pace.rest_s(1.0) == 0.0
    pace.begin(50, pairs(0, 50), 2.0)
    assert pace.rest_s(2.02) == pytest.approx(0.03)
    assert pace.rest_s(2.06) == 0.0
    pace.end(2.06)
    assert pace.rest_s(2.06) == 0.0
    pace = priced(Cost(0.001, 1e-6), (0, 64), (6000, 48))
    pace.begin(48, pairs(6000, 48), 0.0)
    assert pace.rest_s(0.0) == pytest.approx(48 * (0.001 + 0.006024))


def test_small_passes_do_not_tell_what_large_ones_take() -> None:
    pace = paced((0, 100, 0.1))
    assert pace.is_known(400, 400)
    assert not pace.is_known(401, 401)
    for _ in range(RECENT_PASSES):
        pace.begin(1, 0.5, 0.0)
        pace.end(0.01)
    assert not pace.is_known(400, 400)


def test_a_limit_tells_how_long_passes_are_only_where_they_were_cut_to_it() -> None:
    """34 slow tokens do not tell of 1,200 that these would be computed 34 at a time."""
    pace = paced((0, 34, 0.14))
    limit = pace.limit(0.0, asked_s=0.6)
    assert limit is not None
    n_cut = limit.cost.tokens(0, limit.pass_s)
    assert n_cut == 36
    assert not pace.is_known(512, n_cut)
    pace.heed(0.6, now=0.0)
    pace.begin(32, pairs(0, 32), 0.0)  # whole pages of those 36
    pace.end(0.13)
    assert pace.is_known(512, n_cut)
    assert not pace.is_known(512, 129)
    pace.begin(8, pairs(0, 8), 1.0)  # no more was there
    pace.end(1.03)
    assert pace.is_known(512, n_cut)


# --- limits ----------------------------------------------------------------------------------

EVEN = paced((0, 1000, 1.0)).cost


def limit_s(pace: Pace, now: float = 0.0, asked_s: float = float("inf")) -> float | None:
    limit = pace.limit(now, asked_s)
    return None if limit is None else limit.pass_s


def test_a_pass_lasts_a_quarter_of_the_ttft() -> None:
    pace = paced((0, 1000, 1.0))
    pace.heed(0.2, now=0.0)
    assert EVEN is not None
    assert pace.limit(0.0) == Limit(0.05, EVEN)


def test_nothing_is_limited_where_nobody_states_a_ttft_or_nothing_was_measured() -> None:
    assert limit_s(paced((0, 512, 0.5))) is None
    pace = Pace()
    pace.heed(0.2, now=0.0)
    assert limit_s(pace) is None


def test_no_pass_is_shorter_than_anybody_feels() -> None:
    pace = paced((0, 1000, 0.1))
    pace.heed(0.001, now=0.0)
    assert limit_s(pace) == 0.01


def test_who_asks_is_heeded_too() -> None:
    pace = paced((0, 1000, 1.0))
    assert limit_s(pace, asked_s=0.4) == 0.1
    pace.heed(0.2, now=0.0)
    assert limit_s(pace, asked_s=0.4) == 0.05
    assert limit_s(pace, asked_s=0.1) == 0.025


def test_the_tightest_counts_until_it_was_long_ago() -> None:
    pace = paced((0, 1000, 1.0))
    for now, ttft_s in ((0.0, 0.4), (1.0, 0.2), (2.0, 0.8)):
        pace.heed(ttft_s, now)
    assert limit_s(pace, HEED_S + 0.9) == 0.05
    assert limit_s(pace, HEED_S + 1.0) is None
    pace.heed(0.8, HEED_S + 1.0)
    assert limit_s(pace, HEED_S + 1.0) == 0.2


def test_as_tight_a_one_keeps_it_up() -> None:
    pace = paced((0, 1000, 1.0))
    pace.heed(0.2, now=0.0)
    pace.heed(0.21, now=5.0)  # the same, when it had waited elsewhere
    assert limit_s(pace, HEED_S + 4.0) == 0.05
    pace.heed(0.3, now=10.0)
    assert limit_s(pace, HEED_S + 6.0) is None
