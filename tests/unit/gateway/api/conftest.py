"""What the server offers, in tests of what is asked of it."""

import pytest

from common.text.grammar import GrammarTokenizer
from common.text.load import TextModel
from launch.gateway.api.served import Served
from launch.gateway.transfers import Slo


@pytest.fixture(scope="session")
def grammars(smollm2: TextModel) -> GrammarTokenizer:
    return GrammarTokenizer(smollm2)


@pytest.fixture
def served(smollm2: TextModel, grammars: GrammarTokenizer) -> Served:
    return Served(
        model="tiny",
        text=smollm2,
        max_model_len=100,
        max_logprobs=5,
        draw_seed=lambda: 77,
        slo=Slo(),
        tool_call_parser="auto",
        reasoning_parser="none",
        check_grammar=lambda grammar, param: grammars.check(grammar, param=param),
    )
