"""What the log tells of requests: no text of a client's, unless the operator asks for it."""

import asyncio
import logging

import pytest

from common.config import ServeConfig
from common.messages import FinishReason
from common.text.load import TextModel
from tests.unit.gateway.scripted import Served, serving

SECRET = "a secret\nevent=forged \x1b[2J"
CLIENT_ID = {"x-request-id": "mine\x0b event=forged"}


def lines(
    text: TextModel, caplog: pytest.LogCaptureFixture, level: int, config: ServeConfig
) -> list[str]:
    """Logged of a request with two prompts."""
    ids = text.tokenizer.encode("Hello", add_special_tokens=False)

    async def asked() -> None:
        async with serving(text, lambda *_: (ids, FinishReason.STOP), config=config) as served:
            await ask(served)

    async def ask(served: Served) -> None:
        body = {"prompt": [SECRET, "b"], "max_tokens": 7, "stop": ["SECRET STOP"]}
        answer = await served.client.post("/v1/completions", json=body, headers=CLIENT_ID)
        assert answer.status_code == 200

    with caplog.at_level(level):
        asyncio.run(asked())
    told = [record.getMessage() for record in caplog.records if record.name != "asyncio"]
    return [text for text in told if "request=cmpl-" in text]


def test_how_a_request_ends_is_told_and_nothing_that_it_says(
    smollm2: TextModel, caplog: pytest.LogCaptureFixture
) -> None:
    told = lines(smollm2, caplog, logging.INFO, ServeConfig())
    assert [" event=finished " in text for text in told] == [True, True]
    debug = lines(smollm2, caplog, logging.DEBUG, ServeConfig())
    assert not any("secret" in text or "SECRET" in text for text in debug)
    (arrived,) = (text for text in debug if "event=request " in text)
    assert r'client_request="mine\u000b event=forged"' in arrived
    assert "prompts=2 prompt_tokens=" in arrived


def test_prompts_and_parameters_are_told_where_they_are_asked_for(
    smollm2: TextModel, caplog: pytest.LogCaptureFixture
) -> None:
    config = ServeConfig(enable_log_requests=True, max_log_len=20)
    first, second = (
        text for text in lines(smollm2, caplog, logging.INFO, config) if "event=request " in text
    )
    assert r'prompt="a secret\nevent=forge" params=' in first
    assert "prompt=b params=" in second
    assert r"\"max_tokens\":7" in first
    assert "\n" not in first
