"""Thoughts through the whole application: written by a model, told apart for a client."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import openai
import pytest

from common.config import ServeConfig
from common.messages import FinishReason
from common.text.load import TextModel
from common.text.template import ChatTemplate
from tests.unit.gateway.scripted import Served, serving

END = 2  # <|im_end|>
CHAT = "/v1/chat/completions"
USER: Any = {"role": "user", "content": "Why?"}
THINKING = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"
)
WRITTEN = "<think>\nWell.\n</think>\n\nSo."
QWEN3 = ServeConfig(served_model_name="tiny", reasoning_parser="qwen3")
R1 = ServeConfig(served_model_name="tiny", reasoning_parser="deepseek_r1")


@pytest.fixture
def thinking(smollm2: TextModel) -> TextModel:
    return replace(smollm2, template=ChatTemplate({"default": THINKING}, {}))


def run(
    text: TextModel,
    says: str,
    test: Callable[[Served], Coroutine[Any, Any, None]],
    config: ServeConfig = QWEN3,
) -> None:
    ids = [*text.tokenizer.encode(says, add_special_tokens=False), END]

    async def whole() -> None:
        said = (ids, FinishReason.STOP)
        async with serving(text, lambda _expect, _sample: said, config=config) as served:
            await test(served)

    asyncio.run(whole())


async def message(served: Served, **body: Any) -> dict[str, Any]:  # noqa: ANN401
    response = await served.post(CHAT, messages=[USER], max_tokens=90, **body)
    assert response.status_code == 200, response.text
    return dict(response.json()["choices"][0]["message"])


def test_thoughts_are_told_apart_whole_and_streamed(thinking: TextModel) -> None:
    async def test(served: Served) -> None:
        client = openai.AsyncOpenAI(
            base_url="http://t/v1", api_key="none", http_client=served.client, max_retries=0
        )
        asked: Any = {"model": "tiny", "messages": [USER], "max_tokens": 90}
        whole = await client.chat.completions.create(**asked)
        told: Any = whole.choices[0].message
        assert (told.reasoning_content, told.content) == ("\nWell.\n", "\n\nSo.")
        assert told.reasoning == told.reasoning_content
        assert whole.usage is not None
        details = whole.usage.completion_tokens_details
        assert details is not None
        assert details.reasoning_tokens is not None
        assert 6 < details.reasoning_tokens < whole.usage.completion_tokens - 2
        stream = await client.chat.completions.create(
            stream=True, stream_options={"include_usage": True}, **asked
        )
        chunks = [chunk async for chunk in stream]
        deltas: list[Any] = [choice.delta for chunk in chunks for choice in chunk.choices]
        thought = [getattr(delta, "reasoning_content", None) or "" for delta in deltas]
        assert thought == [getattr(delta, "reasoning", None) or "" for delta in deltas]
        said = [delta.content or "" for delta in deltas]
        assert ("".join(thought), "".join(said)) == ("\nWell.\n", "\n\nSo.")
        assert sum(map(bool, thought)) > 2  # as they come
        assert not any(a and b for a, b in zip(thought, said, strict=True))
        assert chunks[-1].usage == whole.usage

    run(thinking, WRITTEN, test)


def test_a_prompt_that_has_thought_leaves_the_answer_as_it_is(thinking: TextModel) -> None:
    async def test(served: Served) -> None:
        told = await message(served, chat_template_kwargs={"enable_thinking": False})
        assert told["content"] == WRITTEN
        assert "reasoning_content" not in told

    run(thinking, WRITTEN, test)


def test_a_model_that_leaves_the_first_mark_out_thinks_from_the_start(thinking: TextModel) -> None:
    async def test(served: Served) -> None:
        told = await message(served)
        assert (told["reasoning_content"], told["content"]) == ("Well.", " So.")
        cut = await message(served, stop="</th")
        assert (cut["reasoning_content"], cut["content"]) == ("Well.", None)

    run(thinking, "Well.</think> So.", test, R1)


def test_an_answer_without_thoughts_says_that_there_are_none(thinking: TextModel) -> None:
    async def test(served: Served) -> None:
        told = await message(served)
        assert (told["reasoning_content"], told["content"]) == (None, "So.")

    run(thinking, "So.", test)


def test_an_answer_that_is_held_to_a_form_has_no_thoughts(thinking: TextModel) -> None:
    async def test(served: Served) -> None:
        told = await message(served, structured_outputs={"choice": ["So."]})
        assert told["content"] == "So."
        assert "reasoning_content" not in told

    run(thinking, "So.", test, R1)


def test_without_a_parser_thoughts_are_text(thinking: TextModel) -> None:
    async def test(served: Served) -> None:
        told = await message(served)
        assert told["content"] == WRITTEN
        assert "reasoning_content" not in told
        body = (await served.post(CHAT, messages=[USER])).json()
        assert "completion_tokens_details" not in body["usage"]

    run(thinking, WRITTEN, test, ServeConfig(served_model_name="tiny"))


def test_thoughts_need_not_be_told(thinking: TextModel) -> None:
    async def test(served: Served) -> None:
        told = await message(served, include_reasoning=False)
        assert told["content"] == "\n\nSo."
        assert "reasoning_content" not in told
        asked: Any = {"messages": [USER], "max_tokens": 90, "include_reasoning": False}
        events = await served.events(CHAT, **asked)
        deltas = [event["choices"][0]["delta"] for event in events]
        assert "".join(delta.get("content") or "" for delta in deltas) == "\n\nSo."
        assert not any("reasoning_content" in delta for delta in deltas)

    run(thinking, WRITTEN, test)


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_thoughts_that_come_back_have_the_name_that_the_template_knows(
    smollm2: TextModel, name: str
) -> None:
    """Whichever the client has told them by."""
    shows = ChatTemplate(
        {
            "default": "{% for m in messages %}{{ m.reasoning_content }}|{{ m.reasoning }}"
            "{% endfor %}"
        },
        {},
    )

    async def test(served: Served) -> None:
        thought = {"role": "assistant", "content": "So.", name: "Hm."}
        response = await served.post("/tokenize", messages=[thought], return_token_strs=True)
        assert "".join(response.json()["token_strs"]) == "Hm.|Hm."

    run(replace(smollm2, template=shows), "So.", test)
