"""What is asked of /v1/responses, as the chat that it becomes."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from common.errors import ClientError
from common.text.template import ChatTemplate
from launch.gateway.api.decoding import decode
from launch.gateway.api.item_conversation import conversation
from launch.gateway.api.item_prepare import as_chat, prepare_items
from launch.gateway.api.item_request import ItemRequest
from launch.gateway.api.served import Served
from launch.gateway.api.tool_bodies import NamedTool

SAID = {"type": "message", "role": "assistant", "id": "msg_1", "status": "completed"}
CALL = {
    "type": "function_call",
    "id": "fc_1",
    "status": "completed",
    "call_id": "c1",
    "name": "weather",
    "arguments": '{"city": "Paris"}',
}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "rain"}
THOUGHT = {
    "type": "reasoning",
    "id": "rs_1",
    "summary": [],
    "content": [{"type": "reasoning_text", "text": "Hm."}],
}
TOOL = {"type": "function", "name": "weather", "parameters": {"type": "object"}, "strict": True}
OTHER = {"type": "function", "name": "time"}


def request(**fields: object) -> ItemRequest:
    return decode(msgspec.json.encode({"input": "Hi", **fields}), ItemRequest)


def refused(served: Served, **fields: object) -> tuple[str | None, str]:
    with pytest.raises(ClientError) as raised:
        prepare_items(request(**fields), served)
    return raised.value.param, str(raised.value)


def called(*ids: str) -> list[dict[str, Any]]:
    function = {"name": "weather", "arguments": {"city": "Paris"}}
    return [{"id": name, "type": "function", "function": function} for name in ids]


def test_a_text_is_what_the_user_says() -> None:
    assert conversation(request()) == [{"role": "user", "content": "Hi"}]
    assert conversation(request(instructions="Be brief.")) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
    ]


def test_items_are_messages_and_a_turn_of_the_models_is_one() -> None:
    text = {"type": "output_text", "text": "Let me see.", "annotations": []}
    items = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "input_text", "text": "Rain?"}]},
        THOUGHT,
        {**SAID, "content": [text]},
        CALL,
        {**CALL, "call_id": "c2"},
        OUTPUT,
        {**OUTPUT, "call_id": "c2", "output": [{"type": "input_text", "text": "sun"}]},
        {"role": "assistant", "content": "Both."},
        {**SAID, "content": [{"type": "refusal", "refusal": "No more."}]},
    ]
    assert conversation(request(input=items)) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Rain?"}]},
        {
            "role": "assistant",
            "reasoning_content": "Hm.",
            "content": [{"type": "text", "text": "Let me see."}],
            "tool_calls": called("c1", "c2"),
        },
        {"role": "tool", "tool_call_id": "c1", "content": "rain"},
        {"role": "tool", "tool_call_id": "c2", "content": [{"type": "text", "text": "sun"}]},
        {"role": "assistant", "content": "Both."},
        {"role": "assistant", "content": [{"type": "text", "text": "No more."}]},
    ]


def test_a_call_without_words_is_a_turn_of_its_own() -> None:
    items = [{"role": "user", "content": "Rain?"}, CALL, OUTPUT]
    assert conversation(request(input=items))[1] == {
        "role": "assistant",
        "content": "",
        "tool_calls": called("c1"),
    }


def test_what_is_asked_of_the_drawing_is_the_same_for_a_chat() -> None:
    chat = as_chat(
        request(
            max_output_tokens=7,
            temperature=0.5,
            top_p=0.25,
            top_k=3,
            seed=4,
            stop="x",
            priority=2,
            cache_salt="s",
            include=["message.output_text.logprobs"],
            top_logprobs=2,
            stream=True,
            stream_options={"include_obfuscation": False},
            text={"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}},
        )
    )
    assert (chat.max_completion_tokens, chat.temperature, chat.top_p, chat.top_k) == (
        7,
        0.5,
        0.25,
        3,
    )
    assert (chat.seed, chat.stop, chat.priority, chat.cache_salt) == (4, "x", 2, "s")
    assert (chat.logprobs, chat.top_logprobs, chat.stream) == (True, 2, True)
    assert chat.stream_options is not None
    assert chat.stream_options.include_usage is None
    assert chat.response_format is not None
    assert chat.response_format.json_schema is not None
    assert chat.response_format.json_schema.schema == {"type": "object"}


def test_tools_and_which_of_them() -> None:
    chat = as_chat(request(tools=[TOOL, OTHER], tool_choice={"type": "function", "name": "time"}))
    assert chat.tools is not None
    assert [tool.function.name for tool in chat.tools] == ["weather", "time"]
    assert chat.tools[0].function.parameters == {"type": "object"}
    assert isinstance(chat.tool_choice, NamedTool)
    assert chat.tool_choice.function.name == "time"
    time = {"type": "function", "name": "time"}
    only = {"type": "allowed_tools", "mode": "required", "tools": [time]}
    chat = as_chat(request(tools=[TOOL, OTHER], tool_choice=only))
    assert chat.tools is not None
    assert ([tool.function.name for tool in chat.tools], chat.tool_choice) == (["time"], "required")


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({"store": True}, "store", "store is true, but no answer is stored here"),
        ({"previous_response_id": "resp_1"}, "previous_response_id", "send the conversation"),
        ({"conversation": "conv_1"}, "conversation", "no conversation is stored here"),
        ({"background": True}, "background", "leave it out, or stream"),
        ({"prompt": {"id": "p"}}, "prompt", "no prompts are stored here"),
        ({"truncation": "auto"}, "truncation", "nothing is left out of a conversation"),
        ({"top_logprobs": 2}, "top_logprobs", "needs message.output_text.logprobs in include"),
        ({"max_output_tokens": 500}, "max_output_tokens", "maximum context length is 100"),
        ({"min_tokens": 9, "max_output_tokens": 4}, "min_tokens", "but max_output_tokens is 4"),
        (
            {"top_logprobs": 9, "include": ["message.output_text.logprobs"]},
            "top_logprobs",
            "at most 5",
        ),
        (
            {"text": {"format": {"type": "json_schema", "name": "n"}}},
            "text.format.schema",
            "text.format of type json_schema needs schema",
        ),
        (
            {"text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "x"}}}},
            "text.format.schema",
            "",
        ),
        (
            {
                "text": {"format": {"type": "json_object"}},
                "structured_outputs": {"choice": ["a"]},
            },
            "structured_outputs.choice",
            "text.format and structured_outputs.choice both say what the answer must be",
        ),
        ({"stream_options": {}}, "stream_options", "needs stream to be true"),
        ({"tools": [TOOL, TOOL]}, "tools[1].name", "tools[1].name is"),
        (
            {"tools": [TOOL], "tool_choice": {"type": "function", "name": "x"}},
            "tool_choice.name",
            'tool_choice names "x", which is none of the tools; they are weather',
        ),
        (
            {
                "tools": [TOOL],
                "tool_choice": {
                    "type": "allowed_tools",
                    "mode": "auto",
                    "tools": [{"type": "function", "name": "x"}],
                },
            },
            "tool_choice.tools[0].name",
            "which is none of the tools; they are weather",
        ),
        ({"input": []}, "input", "input is empty"),
        ({"input": [{"role": "tool", "content": "x"}]}, "input[0]", "Invalid enum value 'tool'"),
        ({"input": [{"role": "user"}]}, "input[0]", "missing required field `content`"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "input[0].content[0].type",
            'is of type "input_image"; only texts are supported',
        ),
        (
            {"input": [{"type": "item_reference", "id": "msg_1"}]},
            "input[0].type",
            "nothing else is kept or run here",
        ),
        ({"input": [{**CALL, "arguments": "{oops"}]}, "input[0].arguments", "is no JSON object"),
        ({"model": "gpt-4"}, "model", "does not exist"),
    ],
)
def test_what_cannot_be_asked_is_refused_in_the_words_of_this_endpoint(
    served: Served, fields: dict[str, Any], param: str, says: str
) -> None:
    told_param, message = refused(served, **fields)
    assert (told_param, says in message) == (param, True), message
    for chats in ("max_completion_tokens", "response_format", "function.name", "messages"):
        assert chats not in message


def test_what_a_template_says_is_said_of_the_input(served: Served) -> None:
    strict = "{{ raise_exception('only users speak') }}"
    text = replace(served.text, template=ChatTemplate({"default": strict}, {}))
    param, message = refused(replace(served, text=text))
    assert (param, "only users speak" in message) == ("input", True)


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({"tools": [{"type": "web_search"}]}, "tools[0].type", 'must be one of "function"'),
        ({"messages": []}, "messages", 'unknown field "messages"'),
        ({"max_tokens": 5}, "max_tokens", "use max_output_tokens"),
        ({"n": 2}, "n", 'unknown field "n"'),
        ({"max_output_tokens": 0}, "max_output_tokens", "got 0"),
        ({"tool_choice": {"type": "mcp"}}, "tool_choice", ""),
    ],
)
def test_what_is_not_a_body_of_this_endpoint(fields: dict[str, Any], param: str, says: str) -> None:
    with pytest.raises(ClientError) as raised:
        request(**fields)
    assert raised.value.param is not None
    assert raised.value.param.startswith(param)
    assert says in str(raised.value)


def test_what_is_refused_may_say_only_what_is_done_anyway(served: Served) -> None:
    for name in ("conversation", "prompt", "moderation", "context_management"):
        assert refused(served, **{name: False})[0] == name
    assert prepare_items(request(store=False, background=False, truncation="disabled"), served)


def test_tools_that_are_allowed_twice_are_there_once(served: Served) -> None:
    named = {"type": "function", "name": "f"}
    choice = {"type": "allowed_tools", "mode": "required", "tools": [named, named]}
    assert prepare_items(request(tools=[named], tool_choice=choice), served)
    nameless = {"type": "allowed_tools", "mode": "required", "tools": [{"name": "f"}]}
    assert refused(served, tools=[named], tool_choice=nameless)[0] == "tool_choice.tools[0].type"
