"""How long answers are, from those that ended lately."""

import pytest

from common.engine.lengths import Lengths


def learnt(*lengths: int, cut: tuple[int, ...] = ()) -> Lengths:
    made = Lengths()
    for length in lengths:
        made.ended(length, cut=False)
    for length in cut:
        made.ended(length, cut=True)
    made.go_on(())
    return made


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
