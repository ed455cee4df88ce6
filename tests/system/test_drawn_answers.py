"""A worker dies under an answer that is held to a grammar or to rules of tokens, or drawn with
penalties: what is drawn after it is what would have been."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.api_client import metrics, until
from tests.servers import RunningServer, serving
from tests.system.streams import SMALL, connected

pytestmark = [pytest.mark.slow, pytest.mark.full, pytest.mark.timeout(900)]
SHORT = "Describe a person."
LONG = [(11 * n) % 40_000 + 500 for n in range(900)]  # 15 chunks: time to be killed in
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 12, "maxLength": 16},
        "likes": {
            "type": "array",
            "items": {"enum": ["tea", "cake"]},
            "minItems": 3,
            "maxItems": 3,
        },
        "motto": {"type": "string", "minLength": 12, "maxLength": 40},
    },
    "required": ["name", "likes", "motto"],
}
PENALTIES = {"frequency_penalty": 0.7, "presence_penalty": 0.4}
ASKED: dict[str, dict[str, Any]] = {
    "a schema": {"structured_outputs": {"json": SCHEMA}},
    "a regular expression": {"structured_outputs": {"regex": "([a-z]{4,8} ){12,16}[.]"}},
    "penalties": {**PENALTIES, "repetition_penalty": 1.2, "ignore_eos": True},
    "a grammar and penalties": {
        **PENALTIES,
        "structured_outputs": {"grammar": 'root ::= (("a" | "bc") " "){20} "."'},
    },
    "bad words": {"bad_words": ["the", "a person", " of the"], "ignore_eos": True},
    "allowed tokens and bad words": {
        "allowed_token_ids": list(range(200, 600)),
        "bad_words": ["the", "in the"],
    },
}
Said = tuple[str, str | None]
"""All of the text, and why it ended."""


@pytest.fixture(scope="module")
def mortal(default_model: Path) -> Iterator[RunningServer]:
    flags = ("--disaggregate", "always", "--recovery-seconds", "240")
    with serving(default_model, *SMALL, *flags) as running:
        yield running


def said(
    server: RunningServer,
    asked: dict[str, Any],
    prompt: str | list[int],
    n_before: int | None = None,
    then: Callable[[], None] | None = None,
) -> Said:
    """A stream's end. `then` is done after so many of its events."""
    with (
        connected(server) as client,
        client.completions.create(
            model="smollm2",
            prompt=prompt,
            stream=True,
            max_tokens=90,
            temperature=1.0,
            seed=7,
            extra_body=asked,
        ) as stream,
    ):
        return _read(stream, n_before, then)


def _read(
    stream: "openai.Stream[Any]", n_before: int | None, then: Callable[[], None] | None
) -> Said:
    text, finish = "", None
    if then is not None and n_before == 0:
        then()
    for n, event in enumerate(stream, 1):
        text += event.choices[0].text
        finish = event.choices[0].finish_reason or finish
        if then is not None and n == n_before:
            then()
    return text, finish


def kill(server: RunningServer, role: str) -> None:
    (pid,) = server.workers(role)
    os.kill(pid, signal.SIGKILL)


def wait_for_restart(server: RunningServer) -> None:
    def is_whole() -> bool:
        return server.is_ready() and len(server.processes()) == 3

    until(is_whole, "the worker is started again", within_s=240)


def is_computed(server: RunningServer) -> bool:
    return metrics(server.url).total("kv_cache_usage_perc", "prefill") > 0


@pytest.mark.parametrize("kind", ASKED)
def test_the_decode_worker_dies(mortal: RunningServer, kind: str) -> None:
    undisturbed = said(mortal, ASKED[kind], SHORT)
    disturbed = said(mortal, ASKED[kind], SHORT, 9, lambda: kill(mortal, "decode"))
    assert disturbed == undisturbed
    wait_for_restart(mortal)
    assert mortal.log().count("worker_exited") >= 1


@pytest.mark.parametrize("kind", ASKED)
def test_the_prefill_worker_dies(mortal: RunningServer, kind: str) -> None:
    def kill_when_it_computes() -> None:
        until(lambda: is_computed(mortal), "the prompt is computed")
        kill(mortal, "prefill")

    prompt = [token + len(kind) for token in LONG]  # no prefix of another's
    disturbed = said(mortal, ASKED[kind], prompt, 0, kill_when_it_computes)
    wait_for_restart(mortal)
    assert disturbed == said(mortal, ASKED[kind], prompt)
