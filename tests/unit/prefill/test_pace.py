"""How fast passes are, and how long the next may be."""

import pytest

from prefill.pace import HEED_S, Pace

PAGE = 16


def paced(*passes: tuple[int, float]) -> Pace:
    """Measured these: (rows, seconds)."""
    pace = Pace()
    for rows, seconds in passes:
        pace.begin(rows, 0.0)
        pace.end(seconds)
    return pace


def test_a_pass_lasts_a_quarter_of_the_ttft_in_whole_pages() -> None:
    pace = paced((512, 0.512))  # 1,000 tokens a second
    pace.heed(0.2, now=0.0)
    assert pace.pass_tokens(0.0, PAGE) == 48  # of 50
    assert pace.pass_tokens(0.0, 10) == 50


def test_nothing_is_cut_where_nobody_states_a_ttft_or_nothing_was_measured() -> None:
    assert paced((512, 0.5)).pass_tokens(0.0, PAGE) is None
    pace = paced()
    pace.heed(0.2, now=0.0)
    assert pace.pass_tokens(0.0, PAGE) is None


def test_a_page_is_the_least() -> None:
    pace = paced((4, 1.0))
    pace.heed(0.2, now=0.0)
    assert pace.pass_tokens(0.0, PAGE) == PAGE


def test_no_pass_is_shorter_than_anybody_feels() -> None:
    pace = paced((1000, 0.1))
    pace.heed(0.001, now=0.0)
    assert pace.pass_tokens(0.0, 1) == 100  # 10 ms


def test_the_tightest_counts_until_it_was_long_ago() -> None:
    pace = paced((1000, 1.0))
    for now, ttft_s in ((0.0, 0.4), (1.0, 0.2), (2.0, 0.8)):
        pace.heed(ttft_s, now)
    assert pace.pass_tokens(HEED_S + 0.9, 1) == 50
    assert pace.pass_tokens(HEED_S + 1.0, 1) is None
    pace.heed(0.8, HEED_S + 1.0)
    assert pace.pass_tokens(HEED_S + 1.0, 1) == 200


def test_as_tight_a_one_keeps_it_up() -> None:
    pace = paced((1000, 1.0))
    pace.heed(0.2, now=0.0)
    pace.heed(0.2, now=5.0)
    assert pace.pass_tokens(HEED_S + 4.0, 1) == 50


def test_the_fastest_of_the_last_passes_tells_the_rate() -> None:
    assert paced((100, 0.1), (5, 0.02)).tokens_per_s == pytest.approx(1000)
    slower = [(100, 0.2)] * 4
    assert paced((100, 0.1), *slower).tokens_per_s == pytest.approx(500)
    assert paced().tokens_per_s == 0.0


def test_what_is_left_of_the_running_pass() -> None:
    pace = paced((100, 0.1))
    assert pace.rest_s(1.0) == 0.0
    pace.begin(50, 2.0)
    assert pace.rest_s(2.02) == pytest.approx(0.03)
    assert pace.rest_s(2.06) == 0.0
    pace.end(2.06)
    assert pace.rest_s(2.06) == 0.0


def test_of_the_first_pass_nothing_is_known() -> None:
    pace = Pace()
    pace.begin(50, 0.0)
    assert pace.rest_s(0.0) == 0.0
    pace.end(0.0)  # a clock that stood still
    assert pace.tokens_per_s == 0.0
