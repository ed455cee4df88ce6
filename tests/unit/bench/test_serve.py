"""What `baton bench serve` makes of refusals."""

import pytest

from bench.client import Outcome, said
from bench.serve import is_refused_for_a_target
from common.errors import SloHopeless, SloMissed, TpotMissed


def outcome(error: str, message: str) -> Outcome:
    return Outcome(index=0, scheduled_s=0, sent_s=0, error=error, message=message)


@pytest.mark.parametrize(
    "refusal",
    [
        SloMissed(0.2, 1.5, retry_after_s=1.0),
        SloHopeless(0.2, 1.5),
        TpotMissed(0.03, 0.05, retry_after_s=1.0),
    ],
)
def test_a_refusal_for_a_target_is_seen_as_such(refusal: Exception) -> None:
    assert is_refused_for_a_target([outcome("", ""), outcome("http_429", said(str(refusal)))])


def test_other_refusals_are_not() -> None:
    others = [outcome("http_429", "the queue is full"), outcome("http_503", "--slo-ttft")]
    assert not is_refused_for_a_target(others)
