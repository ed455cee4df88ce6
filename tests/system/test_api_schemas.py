"""Answers of many random schemas at temperature 1: all of them validate, and come to their end."""

import asyncio
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jsonschema
import openai
import pytest
from openai.types.chat import ChatCompletion
from openai.types.chat.chat_completion import Choice

from tests.servers import RunningServer, serving
from tests.system.random_schemas import Schema, schemas

pytestmark = pytest.mark.slow
MODEL = "smollm2"
USER: Any = [{"role": "user", "content": "Invent an example, as JSON."}]
AT_ONCE = 32
MAX_BY_LENGTH = 0.02
_FORMATS = jsonschema.FormatChecker(["ipv4", "uuid"])  # of a date the calendar is not checked


@pytest.fixture(scope="module")
def default_server(default_model: Path) -> Iterator[RunningServer]:
    """As a user starts it."""
    with serving(default_model, "--served-model-name", MODEL) as running:
        yield running


async def _answer(client: openai.AsyncOpenAI, max_tokens: int, **asked: Any) -> ChatCompletion:  # noqa: ANN401
    return await client.chat.completions.create(
        model=MODEL, messages=USER, temperature=1.0, max_tokens=max_tokens, **asked
    )


def choices(
    server: RunningServer, asked: Sequence[dict[str, Any]], *, at_once: int, max_tokens: int
) -> list[Choice]:
    """Of each request its one choice, in their order."""

    async def all_of_them() -> list[Choice]:
        async with openai.AsyncOpenAI(
            base_url=f"{server.url}/v1", api_key="none", max_retries=0
        ) as client:
            places = asyncio.Semaphore(at_once)

            async def one(fields: dict[str, Any]) -> Choice:
                async with places:
                    return (await _answer(client, max_tokens, **fields)).choices[0]

            return list(await asyncio.gather(*map(one, asked)))

    return asyncio.run(all_of_them())


def of_schema(schema: Schema, seed: int) -> dict[str, Any]:
    form = {"name": "example", "schema": schema}
    return {"seed": seed, "response_format": {"type": "json_schema", "json_schema": form}}


def validate(text: str | None, schema: Schema) -> None:
    try:
        value = json.loads(text or "")
        jsonschema.Draft202012Validator(schema, format_checker=_FORMATS).validate(value)
    except ValueError as error:
        raise AssertionError(f"{error}: {text} is no answer to {json.dumps(schema)}") from error


def n_cut_short(answers: Sequence[Choice], wanted: Sequence[Schema]) -> int:
    """How many ended by length; whoever did not must be as its schema says."""
    ends = Counter(answer.finish_reason for answer in answers)
    assert ends.keys() <= {"stop", "length"}
    for answer, schema in zip(answers, wanted, strict=True):
        if answer.finish_reason == "stop":
            validate(answer.message.content, schema)
    return ends["length"]


def test_a_few_random_schemas(server: RunningServer) -> None:
    wanted = schemas(6, seed=1)
    asked = [of_schema(schema, seed=1) for schema in wanted]
    assert n_cut_short(choices(server, asked, at_once=6, max_tokens=400), wanted) == 0


@pytest.mark.full
@pytest.mark.parametrize(("seed", "at_once"), [(1, AT_ONCE), (2, AT_ONCE), (3, AT_ONCE), (4, 1)])
def test_a_hundred_random_schemas(default_server: RunningServer, seed: int, at_once: int) -> None:
    wanted = schemas(100, seed=0)
    asked = [of_schema(schema, seed) for schema in wanted]
    answers = choices(default_server, asked, at_once=at_once, max_tokens=1000)
    assert n_cut_short(answers, wanted) < MAX_BY_LENGTH * len(wanted)


@pytest.mark.full
def test_calls_that_are_required_always_parse(default_server: RunningServer) -> None:
    objects = [schema for schema in schemas(100, seed=0) if schema.get("type") == "object"]
    sets = [objects[at : at + 3] for at in range(len(objects) - 3)]
    asked = [
        {"seed": at, "tool_choice": "required", "tools": _tools(s)} for at, s in enumerate(sets)
    ]
    answers = choices(default_server, asked, at_once=AT_ONCE, max_tokens=2000)
    assert {answer.finish_reason for answer in answers} == {"tool_calls"}
    for answer, offered in zip(answers, sets, strict=True):
        assert answer.message.tool_calls
        for call in answer.message.tool_calls:
            assert call.type == "function"
            validate(call.function.arguments, offered[int(call.function.name.removeprefix("f"))])


def _tools(offered: Sequence[Schema]) -> list[dict[str, Any]]:
    return [
        {"type": "function", "function": {"name": f"f{at}", "parameters": schema}}
        for at, schema in enumerate(offered)
    ]
