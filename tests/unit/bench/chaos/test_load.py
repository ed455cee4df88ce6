"""What a client takes for a refusal, and so asks again."""

import pytest

from bench.chaos.load import is_refusal
from bench.client import Outcome


@pytest.mark.parametrize(
    ("error", "message", "took_s", "refused"),
    [
        ("http_429", "queue full", 1, True),
        ("http_503", "no worker is ready yet", 0, True),
        ("http_503", "no worker could take the request in 15 s: lost d", 25, True),
        ("http_503", "no worker could take the request in 60 s: lost d", 60, False),
        ("http_503", "the worker that computed it crashed", 1, False),
        ("truncated", "", 1, False),
        ("", "", 1, False),
    ],
)
def test_only_what_was_never_taken(
    error: str, message: str, took_s: float, *, refused: bool
) -> None:
    outcome = Outcome(index=0, scheduled_s=0, sent_s=1, ended_s=1 + took_s)
    outcome.error, outcome.message = error, message
    assert is_refusal(outcome) is refused
