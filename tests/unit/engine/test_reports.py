from common.engine.reports import Pulse
from common.ids import StepId


def test_the_best_rate_is_that_of_the_fastest_recent_step() -> None:
    pulse = Pulse()
    assert pulse.best_tokens_per_s == 0.0
    now = 0.0
    for step, (rows, seconds) in enumerate([(1, 0.25), (64, 0.5), (2, 0.25), (9, 0.0)]):
        pulse.begin(StepId(step), rows, now)
        now += seconds
        pulse.end(now)
    assert pulse.best_tokens_per_s == 128.0
    assert pulse.tokens_per_s == 76.0


def test_a_step_should_end_as_recent_ones_of_about_as_many_rows_did() -> None:
    pulse = Pulse()
    now = 0.0
    for step, (rows, seconds) in enumerate([(8, 0.5), (9, 0.25), (8, 0.125), (64, 4.0)]):
        pulse.begin(StepId(step), rows, now)
        now += seconds
        pulse.end(now)
    assert pulse.ends_at is None
    pulse.begin(StepId(4), 8, now)
    assert pulse.ends_at == now + 0.25
    pulse.begin(StepId(4), 20, now)
    assert pulse.ends_at is None
