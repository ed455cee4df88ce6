"""A client of the HTTP API for tests: completions by token ids, whole or streamed; metrics."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.request import urlopen

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

_Result = TypeVar("_Result")
Body = dict[str, Any]
Event = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Answer:
    """One choice, and what it cost. `logprobs`: of the tokens, where they were asked for."""

    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: str
    prompt_tokens: int
    cached_tokens: int

    @property
    def said(self) -> tuple[str, tuple[int, ...], tuple[float, ...], str]:
        """All of it that must not depend on where and beside what it was computed."""
        return self.text, self.tokens, self.logprobs, self.finish


class Client:
    """Use within `connected`."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def post(self, path: str, body: Body) -> Event:
        """The answer's JSON. Fails on any status but 200."""
        async with self._session.post(path, json=body) as response:
            content = await response.text()
            assert response.status == 200, f"{response.status}: {content}"
            return dict(json.loads(content))

    async def events(self, path: str, body: Body) -> AsyncGenerator[Event]:
        """Of a stream that must run to its end. Leave it early and the connection is closed."""
        streamed = {**body, "stream": True, "stream_options": {"include_usage": True}}
        async with self._session.post(path, json=streamed) as response:
            assert response.status == 200, f"{response.status}: {await response.text()}"
            done = False
            async for line in response.content:
                data = line.removeprefix(b"data: ").strip()
                done = done or data == b"[DONE]"
                if data and not done:
                    event = dict(json.loads(data))
                    assert "error" not in event, event
                    yield event
            assert done, "the stream was cut off"

    async def complete(self, body: Body, *, stream: bool = False) -> Answer:
        """POST /v1/completions for one choice."""
        asked = {"return_token_ids": True, **body}
        if stream:
            return gathered([event async for event in self.events("/v1/completions", asked)])
        return gathered([await self.post("/v1/completions", asked)])


def gathered(events: Sequence[Event]) -> Answer:
    """The one choice that was asked for, from the events of a stream or an answer that came
    whole."""
    (answer,) = choices(events)
    return answer


def choices(events: Sequence[Event]) -> tuple[Answer, ...]:
    """All choices, by their index."""
    parts: dict[int, list[Event]] = {}
    for event in events:
        for part in event["choices"]:
            parts.setdefault(part["index"], []).append(part)
    usage = events[-1]["usage"]
    answers = tuple(_joined(parts[index], usage) for index in sorted(parts))
    assert usage["completion_tokens"] == sum(len(answer.tokens) for answer in answers)
    return answers


def _joined(parts: Sequence[Event], usage: Event) -> Answer:
    scores = [part["logprobs"] for part in parts if part.get("logprobs")]
    return Answer(
        text="".join(part["text"] for part in parts),
        tokens=tuple(token for part in parts for token in part["token_ids"]),
        logprobs=tuple(value for score in scores for value in score["token_logprobs"]),
        finish=parts[-1]["finish_reason"],
        prompt_tokens=usage["prompt_tokens"],
        cached_tokens=usage["prompt_tokens_details"]["cached_tokens"],
    )


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Client]:
    """As many connections at once as are asked for, with no limit of time."""
    async with aiohttp.ClientSession(
        url,
        connector=aiohttp.TCPConnector(limit=0),
        timeout=aiohttp.ClientTimeout(total=None),
    ) as session:
        yield Client(session)


def run(url: str, work: Callable[[Client], Coroutine[Any, Any, _Result]]) -> _Result:
    """`work` with a client, in a loop of its own."""

    async def whole() -> _Result:
        async with connected(url) as client:
            return await work(client)

    return asyncio.run(whole())


def at_once(url: str, bodies: Mapping[str, Body]) -> dict[str, Answer]:
    """All completions together, every other one streamed."""

    async def work(client: Client) -> list[Answer]:
        asked = [client.complete(body, stream=n % 2 == 1) for n, body in enumerate(bodies.values())]
        return await asyncio.gather(*asked)

    return dict(zip(bodies, run(url, work), strict=True))


def alone(url: str, bodies: Mapping[str, Body]) -> dict[str, Answer]:
    """One after the other."""

    async def work(client: Client) -> dict[str, Answer]:
        return {name: await client.complete(body) for name, body in bodies.items()}

    return run(url, work)


@dataclass(frozen=True, slots=True)
class Metrics:
    """One reading of /metrics: (name, labels) -> value."""

    values: Mapping[tuple[str, frozenset[tuple[str, str]]], float]

    def each(self, name: str, role: str) -> list[float]:
        """Of every worker of that role that has told."""
        return [
            value
            for (known, labels), value in self.values.items()
            if known == f"baton:{name}" and ("role", role) in labels
        ]

    def total(self, name: str, role: str) -> float:
        return sum(self.each(name, role))


def metrics(url: str) -> Metrics:
    with urlopen(f"{url}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    families = text_string_to_metric_families(text)
    return Metrics(
        {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in families
            for sample in family.samples
        }
    )


def until(condition: Callable[[], bool], what: str, within_s: float = 30.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {within_s} s: {what}"
        time.sleep(0.05)
