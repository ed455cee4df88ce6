"""What the server offers, in tests of what is asked of it."""

import pytest

from common.text.load import TextModel
from launch.gateway.api.served import Served
from launch.gateway.transfers import Slo


@pytest.fixture
def served(smollm2: TextModel) -> Served:
    return Served(
        model="tiny",
        text=smollm2,
        max_model_len=100,
        max_logprobs=5,
        draw_seed=lambda: 77,
        slo=Slo(),
    )
