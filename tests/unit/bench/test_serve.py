"""What `baton bench serve` makes of refusals, and of what is served."""

from argparse import Namespace

import pytest

from bench.client import Outcome, said
from bench.serve import NotServed, is_refused_for_a_target, model_told
from common.errors import SloHopeless, SloMissed, TpotHopeless, TpotMissed


def outcome(error: str, message: str) -> Outcome:
    return Outcome(index=0, scheduled_s=0, sent_s=0, error=error, message=message)


@pytest.mark.parametrize(
    "refusal",
    [
        SloMissed(0.2, 1.5, retry_after_s=1.0),
        SloHopeless(0.2, 1.5),
        TpotMissed(0.03, 0.05, retry_after_s=1.0),
        TpotHopeless(0.001, 0.05),
    ],
)
def test_a_refusal_for_a_target_is_seen_as_such(refusal: Exception) -> None:
    assert is_refused_for_a_target([outcome("", ""), outcome("http_429", said(str(refusal)))])


def test_other_refusals_are_not() -> None:
    others = [outcome("http_429", "the queue is full"), outcome("http_503", "--slo-ttft")]
    assert not is_refused_for_a_target(others)


MODELS = '{"data": [{"id": "a", "max_model_len": 5}, {"id": "b"}]}'


def test_a_server_that_asks_for_a_key_is_told_by_the_flag() -> None:
    with pytest.raises(
        NotServed, match=r"^http://s asks for a key: --api-key KEY, or the variable"
    ):
        model_told(Namespace(base_url="http://s", model=None), 401, '{"error": {}}')


def test_a_model_that_is_not_served_is_refused_with_those_that_are() -> None:
    options = Namespace(base_url="http://s", model="c")
    with pytest.raises(NotServed, match=r"^--model c is not served at http://s: there is a, b$"):
        model_told(options, 200, MODELS)
    assert model_told(Namespace(base_url="", model="b"), 200, MODELS) == {"id": "b"}
    assert model_told(Namespace(base_url="", model=None), 200, MODELS)["max_model_len"] == 5
    assert model_told(options, 404, "not found") == {"id": "c"}  # whoever tells no models
