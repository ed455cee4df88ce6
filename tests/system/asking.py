"""One question asked in four ways with the official client: whole or as a stream, by the client
that waits or by the one for event loops. What comes is told in one form, so that a test of a
parameter is one for all four.
"""

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, get_args

import openai
from openai.resources.chat.completions import Completions as Chat
from openai.resources.completions import Completions
from openai.resources.responses import Responses

from tests.servers import RunningServer

Mode = Literal["sync", "sync stream", "async", "async stream"]
MODES: tuple[Mode, ...] = get_args(Mode)
MODEL = "smollm2"
STORY = "Once upon a time, there was a little girl who"
N = 6  # tokens of an answer, unless a test needs more
Event = dict[str, Any]
_RESOURCES: dict[str, Any] = {
    "completions": Completions,
    "chat.completions": Chat,
    "responses": Responses,
}


@dataclass(frozen=True, slots=True)
class Said:
    """One choice."""

    text: str
    finish: str | None
    stop_reason: str | int | None = None
    tokens: tuple[int, ...] = ()  # where they were asked for
    logprobs: tuple[float | None, ...] = ()  # the same
    top: tuple[int, ...] = ()  # alternatives told of each token
    calls: tuple[tuple[str, str], ...] = ()  # (name, arguments)


@dataclass(frozen=True, slots=True)
class Answer:
    """All choices, and what they cost."""

    choices: tuple[Said, ...]
    usage: Mapping[str, Any]

    @property
    def text(self) -> str:
        """Of the only choice."""
        return self.only.text

    @property
    def only(self) -> Said:
        (choice,) = self.choices
        return choice


@dataclass(frozen=True, slots=True)
class Asker:
    """Asks that server, in that way."""

    server: RunningServer
    mode: Mode

    @property
    def streams(self) -> bool:
        return self.mode.endswith("stream")

    def complete(self, prompt: Any = STORY, **options: Any) -> Answer:  # noqa: ANN401
        asked = {"prompt": prompt, "temperature": 0, "max_tokens": N, **options}
        return _answer(self.events("completions", asked), _completion)

    def chat(self, messages: Any, **options: Any) -> Answer:  # noqa: ANN401
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        asked = {"messages": messages, "temperature": 0, "max_tokens": N, **options}
        return _answer(self.events("chat.completions", asked), _chat)

    def respond(self, told: Any, **options: Any) -> Event:  # noqa: ANN401
        """The response as it is in the end."""
        asked = {"input": told, "temperature": 0, "max_output_tokens": N, **options}
        events = self.events("responses", asked)
        return dict(events[-1]["response"]) if self.streams else events[0]

    def events(self, resource: str, options: Mapping[str, Any]) -> list[Event]:
        """The events of a stream, or what came at once. Names that the client does not know go
        into its `extra_body`."""
        asked: dict[str, Any] = {"model": MODEL}
        if self.streams:
            asked["stream"] = True
            if resource != "responses":
                asked["stream_options"] = {"include_usage": True}
        known = _parameters(resource)
        asked |= {name: value for name, value in options.items() if name in known}
        extra = {name: value for name, value in options.items() if name not in known}
        base: Any = {"base_url": f"{self.server.url}/v1", "api_key": "none", "max_retries": 0}
        if self.mode.startswith("async"):
            return asyncio.run(_ask_in_a_loop(base, resource, asked, extra))
        with openai.OpenAI(**base) as client:
            got = _create(client, resource)(**asked, extra_body=extra)
            return [event.to_dict() for event in (got if self.streams else [got])]


async def _ask_in_a_loop(
    base: dict[str, Any], resource: str, asked: Mapping[str, Any], extra: Mapping[str, Any]
) -> list[Event]:
    async with openai.AsyncOpenAI(**base) as client:
        got = await _create(client, resource)(**asked, extra_body=extra)
        if "stream" in asked:
            return [event.to_dict() async for event in got]
        return [got.to_dict()]


@cache
def _parameters(resource: str) -> frozenset[str]:
    """That the client knows."""
    return frozenset(inspect.signature(_RESOURCES[resource].create).parameters)


def _create(client: Any, resource: str) -> Callable[..., Any]:  # noqa: ANN401 - of either kind
    for name in resource.split("."):
        client = getattr(client, name)
    return client.create  # type: ignore[no-any-return]


def _answer(events: Sequence[Event], said: Callable[[list[Event]], Said]) -> Answer:
    parts: dict[int, list[Event]] = {}
    for event in events:
        for choice in event["choices"]:
            parts.setdefault(choice["index"], []).append(choice)
    choices = tuple(said(parts[index]) for index in sorted(parts))
    return Answer(choices, events[-1].get("usage") or {})


def _completion(parts: list[Event]) -> Said:
    scores = [part["logprobs"] for part in parts if part.get("logprobs")]
    return Said(
        text="".join(part["text"] for part in parts),
        finish=parts[-1].get("finish_reason"),
        stop_reason=parts[-1].get("stop_reason"),
        tokens=tuple(token for part in parts for token in part.get("token_ids") or ()),
        logprobs=tuple(value for score in scores for value in score["token_logprobs"]),
        top=tuple(len(top or ()) for score in scores for top in score["top_logprobs"]),
    )


def _chat(parts: list[Event]) -> Said:
    told = [part.get("message") or part["delta"] for part in parts]
    scores = [part["logprobs"]["content"] for part in parts if part.get("logprobs")]
    calls: list[list[str]] = []
    for call in (call for one in told for call in one.get("tool_calls") or ()):
        if call["function"].get("name"):
            calls.append([call["function"]["name"], ""])
        calls[-1][1] += call["function"]["arguments"]
    return Said(
        text="".join(one.get("content") or "" for one in told),
        finish=parts[-1].get("finish_reason"),
        stop_reason=parts[-1].get("stop_reason"),
        tokens=tuple(token for part in parts for token in part.get("token_ids") or ()),
        logprobs=tuple(token["logprob"] for score in scores for token in score),
        top=tuple(len(token["top_logprobs"]) for score in scores for token in score),
        calls=tuple((name, arguments) for name, arguments in calls),
    )
