"""Whether a worker makes progress."""

import pytest

from common.messages import Progress
from launch.gateway.health import is_hung

LONG_CONTEXT = (90.0, 5.0)  # age and prediction, seconds
FIRST_PASS = (250.0, 0.0)
LOADED_MACHINE = (19.0, 0.01)
NOTHING_RUNS = (0.0, 0.0)


@pytest.mark.parametrize("pass_", [LONG_CONTEXT, FIRST_PASS, LOADED_MACHINE, NOTHING_RUNS])
def test_slow_is_not_hung(pass_: tuple[float, float]) -> None:
    assert not is_hung(Progress(7, *pass_))


@pytest.mark.parametrize("pass_", [(101.0, 5.0), (301.0, 0.0), (21.0, 0.01)])
def test_many_times_what_was_predicted_is_hung(pass_: tuple[float, float]) -> None:
    assert is_hung(Progress(7, *pass_))
