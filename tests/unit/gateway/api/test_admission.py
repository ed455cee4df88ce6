"""What is in progress at once, and what it holds."""

import pytest

from common.errors import Overloaded
from common.metrics import GatewayMetrics
from launch.gateway.api.admission import FULL_RETRY_S, Admission


def test_prompts_are_held_to_a_bound_together_and_one_may_be_longer() -> None:
    admission = Admission(9, GatewayMetrics("tiny"), max_held_tokens=100)

    def enter(n_tokens: int) -> int:
        admission.enter()
        try:
            return admission.hold(n_tokens)
        except Overloaded:
            admission.leave()
            raise

    admission.leave(enter(1000))
    first = enter(60)
    enter(40)
    with pytest.raises(Overloaded, match="100 tokens of prompts are waiting") as raised:
        enter(1)
    assert (raised.value.status, raised.value.retry_after_s) == (429, FULL_RETRY_S)
    admission.leave(first)
    enter(60)
    assert (admission.held_tokens, admission.in_progress) == (100, 2)
