from common.engine.reports import Pulse
from common.ids import StepId


def rate_after(*steps: tuple[int, float]) -> float:
    """(rows, seconds) of each."""
    pulse, now = Pulse(), 0.0
    for step, (rows, seconds) in enumerate(steps):
        pulse.begin(StepId(step), rows, now)
        now += seconds
        pulse.end(now)
    return pulse.prompt_tokens_per_s


def test_large_steps_tell_how_fast_prompts_are_computed() -> None:
    assert rate_after((1, 0.25), (31, 0.25), (64, 0.0)) == 0.0
    assert rate_after((64, 0.5)) == 128.0
    assert rate_after((128, 0.5), (64, 0.5), (63, 0.5), (96, 0.5)) == 192.0
    assert rate_after((32, 0.5), (33, 0.5), (128, 0.25)) == 512.0  # others were not large after all


def test_prompts_come_on_top_of_a_small_step() -> None:
    assert rate_after((1, 0.25), (64, 1.25), (2, 0.5)) == 64.0
    assert rate_after((1, 0.25), (64, 0.375)) == 64 / 0.1875


def test_a_large_step_is_not_forgotten_for_small_ones() -> None:
    assert rate_after((64, 0.5), *[(8, 0.25)] * 100) == 256.0
    assert rate_after((64, 0.5), *[(64, 0.25)] * 8) == 256.0


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


def test_while_its_process_stands_still_a_step_does_not_age() -> None:
    pulse = Pulse()
    pulse.begin(StepId(0), 1, 100.0)
    assert pulse.progress(101.0).step_age_s == 1.0
    assert pulse.progress(131.0).step_age_s == 1.0  # stopped, and woken
    assert pulse.progress(132.0).step_age_s == 2.0
