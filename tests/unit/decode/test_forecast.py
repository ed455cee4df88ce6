import pytest

from common.engine.lengths import Lengths
from decode.forecast import Future, page_passes, peak_pages, rank


def learnt(*lengths: int, cut: tuple[int, ...] = ()) -> Lengths:
    made = Lengths()
    for length in lengths:
        made.ended(length, cut=False)
    for length in cut:
        made.ended(length, cut=True)
    made.go_on(())
    return made


# --- lengths ---------------------------------------------------------------------------------


def test_before_anything_is_known_a_sequence_says_all_it_may() -> None:
    assert Lengths().predict(0, 100, 0.0) == 100


@pytest.mark.parametrize(
    ("rank", "expected"),
    [(0.0, 10), (0.19, 10), (0.21, 20), (0.5, 30), (0.79, 40), (0.81, 1000)],
)
def test_a_rank_is_a_place_among_those_that_ended(rank: float, expected: int) -> None:
    assert learnt(10, 20, 30, 40).predict(0, 1000, rank) == expected


@pytest.mark.parametrize(
    ("n_said", "rank", "expected"),
    [(9, 0.0, 10), (10, 0.0, 20), (25, 0.3, 30), (25, 0.4, 40), (39, 0.4, 40), (40, 0.0, 1000)],
)
def test_what_is_said_already_rules_the_shorter_ones_out(
    n_said: int, rank: float, expected: int
) -> None:
    assert learnt(10, 20, 30, 40).predict(n_said, 1000, rank) == expected


def test_nobody_says_more_than_it_may() -> None:
    assert learnt(10, 20, 30, 40).predict(5, 7, 0.5) == 7


def test_one_that_was_cut_off_says_only_that_it_was_as_long() -> None:
    """1/6 end at 10; of the three that are left after the cut, 1/3 at 30, and so on."""
    lengths = learnt(10, 30, 40, cut=(20, 20))
    assert lengths.predict(0, 1000, 0.16) == 10
    assert lengths.predict(0, 1000, 1 / 6 + 5 / 6 / 3 - 0.01) == 30
    assert lengths.predict(0, 1000, 1 / 6 + 5 / 6 / 3 + 0.01) == 40
    assert learnt(cut=(16,) * 100).predict(0, 1000, 0.0) == 1000


def test_those_that_go_on_are_longer_than_what_they_have_said() -> None:
    lengths = Lengths()
    lengths.ended(10, cut=False)
    lengths.go_on((12,) * 8)
    assert lengths.predict(0, 1000, 0.09) == 10
    assert lengths.predict(0, 1000, 0.11) == 1000


def test_only_the_last_ones_are_remembered() -> None:
    lengths = Lengths(window=2)
    for length in (10, 20, 30):
        lengths.ended(length, cut=False)
    lengths.go_on(())
    assert lengths.predict(0, 1000, 0.0) == 20


def test_it_learns_between_predictions() -> None:
    lengths = learnt(10)
    assert lengths.predict(0, 1000, 0.4) == 10
    lengths.ended(5, cut=False)
    lengths.go_on(())
    assert lengths.predict(0, 1000, 0.3) == 5


def test_consecutive_ranks_are_spread_evenly() -> None:
    for start in (0, 77):
        places = sorted(rank(start + n) for n in range(16))
        assert all(abs(place - n / 16) < 0.1 for n, place in enumerate(places))


# --- pages -----------------------------------------------------------------------------------


def test_one_sequence_is_largest_in_its_last_pass() -> None:
    assert peak_pages([Future(6, 3)], 4) == 2  # the KV of tokens 1 .. 8
    assert peak_pages([Future(6, 4)], 4) == 3
    assert peak_pages([Future(6, 4, n_shared=1)], 4) == 2


def test_nobody_needs_nothing() -> None:
    assert peak_pages([], 4) == 0


def test_the_peak_is_before_the_short_one_ends() -> None:
    assert peak_pages([Future(100, 1), Future(10, 50)], 1) == 110
    assert peak_pages([Future(10, 1), Future(10, 50)], 1) == 59
    assert peak_pages([Future(10, 20), Future(10, 20)], 1) == 58


def test_the_peak_may_be_in_between() -> None:
    futures = [Future(10, 5), Future(10, 10), Future(10, 30)]
    assert [Future(10, 5).n_tokens + 4, 2 * (10 + 9), 10 + 29] == [14, 38, 39]
    assert peak_pages(futures, 1) == 3 * 14
    assert peak_pages([Future(2, 5), Future(30, 20), Future(30, 22)], 1) == 2 * 49


def test_deviations_are_those_of_as_many_coins_as_there_are_sequences() -> None:
    futures = [Future(3, 1), Future(4, 1)]
    assert peak_pages(futures, 1, deviations=2.0) == 3 + 4 + 5
    assert peak_pages([Future(3, 1)] * 100, 1, deviations=1.0) == 300 + 15


def test_a_volume_is_pages_times_passes() -> None:
    assert page_passes(Future(6, 3), 4) == 2 + 2 + 2
    assert page_passes(Future(6, 4), 4) == 2 + 2 + 2 + 3
    assert page_passes(Future(6, 4, n_shared=1), 4) == 5
    assert page_passes(Future(1, 1), 4) == 1
