"""Instructor over the official client, in the modes that such servers have. Run with its own venv's
Python: URL KEY MODEL."""

# pyright: basic, reportMissingImports=false
import asyncio
import sys
from typing import Any, Literal

import instructor
import openai
from instructor import Mode
from pydantic import BaseModel, Field

URL, KEY, MODEL = sys.argv[1:]
MODES = (Mode.TOOLS, Mode.TOOLS_STRICT, Mode.JSON_SCHEMA)
ASKED: Any = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "Who runs which leg of the relay?"}],
    "temperature": 0,
    "max_tokens": 60,
    "max_retries": 0,
}


class Runner(BaseModel):
    """Who runs which leg."""

    name: str = Field(max_length=8)
    leg: Literal[1, 2, 3, 4]


def made(key: str = KEY) -> openai.OpenAI:
    return openai.OpenAI(base_url=URL, api_key=key, max_retries=0)


def models(mode: Mode) -> None:
    client = instructor.from_openai(made(), mode=mode)
    runner = client.chat.completions.create(response_model=Runner, **ASKED)
    assert isinstance(runner, Runner), (mode, runner)
    parts = list(client.chat.completions.create_partial(response_model=Runner, **ASKED))
    assert parts[-1].model_dump() == runner.model_dump(), (mode, parts)


async def at_once(mode: Mode) -> None:
    async with openai.AsyncOpenAI(base_url=URL, api_key=KEY, max_retries=0) as inner:
        client = instructor.from_openai(inner, mode=mode)
        assert isinstance(
            await client.chat.completions.create(response_model=Runner, **ASKED), Runner
        )


def refusals() -> None:
    wrong: list[tuple[type[Exception], str, dict[str, Any]]] = [
        (openai.NotFoundError, KEY, {"model": "other"}),
        (openai.BadRequestError, KEY, {"temperature": 3}),
        (openai.AuthenticationError, "wrong", {}),
    ]
    for kind, key, fields in wrong:
        client = instructor.from_openai(made(key), mode=Mode.TOOLS)
        try:
            client.chat.completions.create(response_model=Runner, **{**ASKED, **fields})
        except Exception as error:  # noqa: BLE001 - its own, which tells of the client's
            found: BaseException | None = error
            while found is not None and not isinstance(found, kind):
                found = found.__cause__ or found.__context__
            assert found is not None, repr(error)
            continue
        raise AssertionError(f"{fields} raised no {kind}")


for mode in MODES:
    models(mode)
    asyncio.run(at_once(mode))
refusals()
