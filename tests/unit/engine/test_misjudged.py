"""What predictions of first tokens must keep, from how far they erred."""

import pytest

from common.engine.misjudged import FEWEST, FORGET_S, KEPT, MOST, Misjudged


def learnt(*errors_s: float, owed_s: float = 1.0, at: float = 0.0) -> Misjudged:
    made = Misjudged()
    for error_s in errors_s:
        made.learn(predicted_s=0.5, took_s=0.5 + error_s, owed_s=owed_s, now=at)
    return made


def test_nineteen_of_twenty_errors_are_made_room_for() -> None:
    errors = [0.0] * 18 + [0.2, 0.4]
    assert learnt(*errors).within(1.0, 0.0) == pytest.approx(0.8)
    assert learnt(*errors, owed_s=2.0).within(1.0, 0.0) == pytest.approx(0.9)  # a part of the owed


def test_few_errors_say_nothing_and_earliness_gives_nothing_away() -> None:
    assert learnt(*[0.3] * (FEWEST - 1)).within(1.0, 0.0) == 1.0
    assert learnt(*[-0.3] * KEPT).within(1.0, 0.0) == 1.0


def test_errors_are_forgotten_by_time_and_by_better_ones() -> None:
    assert learnt(*[0.3] * KEPT).within(1.0, FORGET_S + 1) == 1.0
    assert learnt(*[0.3] * KEPT, *[0.0] * KEPT).within(1.0, 0.0) == 1.0


def test_a_queue_is_never_closed() -> None:
    assert learnt(*[30.0] * KEPT).within(1.0, 0.0) == pytest.approx(1 - MOST)
