from random import Random

import pytest

from common.engine.pace import FEWEST_PASSES, KEPT_OF_A_SIZE, SHARE, Pace

BASE_S, ROW_S, TOKEN_S = 4e-3, 5e-4, 1e-6


def cost_s(rows: int, context: int) -> float:
    return BASE_S + ROW_S * rows + TOKEN_S * context


def learnt(*, noise: float = 0.0, disturbed: float = 0.0, n: int = 400) -> Pace:
    """From passes of all sizes; some take up to three times as long as they should."""
    random = Random(0)
    pace = Pace()
    for _ in range(n):
        rows = random.choice((1, 2, 8, 9, 32, 48, 280, 512))
        context = rows * random.randrange(1, 2000)
        seconds = cost_s(rows, context) * (1 + noise * random.uniform(-1, 1))
        if random.random() < disturbed:
            seconds *= random.uniform(1, 3)
        pace.learn(rows, context, seconds)
    return pace


def predicted(pace: Pace, rows: int, context: int) -> float:
    seconds = pace.seconds(rows, context)
    assert seconds is not None
    return seconds


@pytest.mark.parametrize(("rows", "context"), [(1, 100), (8, 4000), (32, 20_000), (300, 30_000)])
def test_costs_are_found_again(rows: int, context: int) -> None:
    exact = cost_s(rows, context)
    assert predicted(learnt(), rows, context) == pytest.approx(exact, rel=1e-6)
    assert predicted(learnt(noise=0.1), rows, context) == pytest.approx(exact, rel=0.1)
    assert predicted(learnt(disturbed=0.2), rows, context) == pytest.approx(exact, rel=0.05)


def test_nothing_is_predicted_before_a_few_passes() -> None:
    pace = Pace()
    for n in range(FEWEST_PASSES - 1):
        pace.learn(1 + n, 100, cost_s(1 + n, 100))
    assert pace.seconds(1, 100) is None
    assert pace.prompt_tokens(0.1, 1, 100, least=16) is None
    pace.learn(9, 100, 0.0)
    assert pace.seconds(1, 100) is None
    pace.learn(9, 100, cost_s(9, 100))
    assert pace.seconds(1, 100) is not None


def test_passes_of_one_kind_predict_that_kind() -> None:
    pace = Pace()
    for _ in range(100):
        pace.learn(8, 4000, 0.01)
    assert predicted(pace, 8, 4000) == pytest.approx(0.01)


def test_large_passes_are_not_forgotten_over_many_small_ones() -> None:
    pace = Pace()
    for _ in range(KEPT_OF_A_SIZE):
        pace.learn(512, 5000, cost_s(512, 5000))
    for n in range(1000):
        pace.learn(8, 1000 + n, cost_s(8, 1000 + n))
    assert predicted(pace, 512, 5000) == pytest.approx(cost_s(512, 5000), rel=0.01)


def test_a_machine_that_becomes_slower_is_noticed() -> None:
    pace = learnt()
    for _ in range(KEPT_OF_A_SIZE):
        for rows in (1, 2, 8, 32, 48, 280, 512):
            pace.learn(rows, 10 * rows, 2 * cost_s(rows, 10 * rows))
    assert predicted(pace, 8, 80) == pytest.approx(2 * cost_s(8, 80), rel=0.01)


def test_no_cost_is_negative() -> None:
    pace = Pace()
    for rows in range(1, 40):
        pace.learn(rows, 100 * rows, 0.1 / rows)
    assert 0 <= predicted(pace, 1, 0) <= predicted(pace, 100, 0) <= predicted(pace, 100, 10**6)


def test_prompt_tokens_fill_what_a_pass_has_left() -> None:
    pace = learnt()
    rows, context = 8, 4000
    n = pace.prompt_tokens(0.05, rows, context, least=16)
    assert n is not None
    assert cost_s(rows + n, context + n) <= SHARE * 0.05 < cost_s(rows + n + 2, context + n + 2)


def test_a_limit_that_cannot_be_kept_leaves_the_least() -> None:
    assert learnt().prompt_tokens(0.001, 8, 4000, least=16) == 16


def test_the_same_passes_give_the_same_prediction() -> None:
    assert predicted(learnt(noise=0.3), 9, 99) == predicted(learnt(noise=0.3), 9, 99)
