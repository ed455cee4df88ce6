"""Whatever a client sends, the answer is an answer or an error that it can act on: never a bug."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.messages import Expect, FinishReason
from common.text.load import load_text_model
from launch.gateway.api.requests import ChatRequest, CompletionRequest
from tests.unit.gateway.scripted import Said, Served, serving

JSON = {"content-type": "application/json"}
NUMBERS = st.one_of(
    st.integers(-3, 3),
    st.integers(-(2**80), 2**80),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([2**31 - 1, 2**31, 2**63 - 1, 2**63, -(2**63), 49151, 49152]),
)
TEXTS = st.one_of(st.text(max_size=5), st.sampled_from(["user", "text", "auto", "1", "\x00"]))
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(
            st.one_of(TEXTS, st.sampled_from(["role", "content", "type", "text"])),
            inner,
            max_size=4,
        ),
    ),
    max_leaves=8,
)


def bodies(kind: type[msgspec.Struct]) -> st.SearchStrategy[dict[str, Any]]:
    """Mostly of fields that there are, with values that mostly cannot be meant."""
    names = [field.encode_name for field in msgspec.structs.fields(kind)]
    return st.dictionaries(st.one_of(st.sampled_from(names), TEXTS), VALUES, max_size=4)


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def served(default_model: Path, loop: asyncio.Runner) -> Iterator[Served]:
    def says(_expect: Expect, _sample: int) -> Said:
        return [81, 10813], FinishReason.LENGTH

    context = serving(load_text_model(default_model), says)
    yield loop.run(context.__aenter__())
    loop.run(context.__aexit__(None, None, None))


def check(loop: asyncio.Runner, served: Served, path: str, content: bytes) -> None:
    response = loop.run(served.client.post(path, content=content, headers=JSON))
    if response.status_code != 200:
        timed_out = response.status_code == 504 and b"timeout_s" in content
        assert timed_out or response.status_code in (400, 404), response.text
        assert response.json()["error"]["message"]


@given(body=bodies(CompletionRequest))
@settings(max_examples=150, deadline=None)
def test_any_completion(loop: asyncio.Runner, served: Served, body: dict[str, Any]) -> None:
    whole = {"prompt": "a", "max_tokens": 3, **body}
    check(loop, served, "/v1/completions", msgspec.json.encode(whole))


@given(body=bodies(ChatRequest))
@settings(max_examples=150, deadline=None)
def test_any_chat(loop: asyncio.Runner, served: Served, body: dict[str, Any]) -> None:
    whole = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 3, **body}
    check(loop, served, "/v1/chat/completions", msgspec.json.encode(whole))


@given(content=st.binary(max_size=60))
@settings(max_examples=50, deadline=None)
def test_any_bytes(loop: asyncio.Runner, served: Served, content: bytes) -> None:
    check(loop, served, "/v1/completions", content)
