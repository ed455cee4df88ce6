"""From what a client wrote to token ids."""

import time
from dataclasses import replace

import pytest

from common.errors import ClientError
from common.text.load import TextModel
from launch.gateway.api.prompts import MIN_TEXT_CHARS
from launch.gateway.api.served import Served
from tests.unit.gateway.api.preparing import CAPITAL, USER, chat, completion, refused


def test_every_kind_of_prompt(served: Served) -> None:
    def ids(prompt: object) -> list[tuple[int, ...]]:
        return [one.ids for one in completion(served, prompt=prompt).prompts]

    assert ids("a") == [(81,)]
    assert ids(["a", "b"]) == [(81,), (82,)]
    assert ids([81, 82]) == [(81, 82)]
    assert ids([[81], [82]]) == [(81,), (82,)]


def test_a_prompt_may_be_cut_to_its_last_tokens(served: Served) -> None:
    def ids(**fields: object) -> tuple[int, ...]:
        return completion(served, **fields).prompts[0].ids

    assert ids(truncate_prompt_tokens=2) == CAPITAL[-2:]
    assert ids(truncate_prompt_tokens=2, truncation_side="left") == CAPITAL[-2:]
    assert ids(truncate_prompt_tokens=2, truncation_side="right") == CAPITAL[:2]
    assert ids(truncate_prompt_tokens=9) == CAPITAL
    long = list(range(1, 201))
    assert ids(prompt=long, truncate_prompt_tokens=-1, max_tokens=10) == tuple(long[-90:])
    assert len(ids(prompt="a b " * 999, truncate_prompt_tokens=-1, max_tokens=10)) == 90
    alone = chat(served).prompts[0].ids
    assert chat(served, truncate_prompt_tokens=3).prompts[0].ids == alone[-3:]
    assert refused(served, truncate_prompt_tokens=0)[0] == "truncate_prompt_tokens"
    param, message = refused(served, truncate_prompt_tokens=-1, max_tokens=105)
    assert param == "max_tokens"
    assert "1 token of prompt and 105 of output" in message


def test_calls_that_were_made_need_no_content(served: Served) -> None:
    """As the official client sends an answer back: this model's template adds the content to its
    text, and knows of no calls."""
    function = {"name": "weather", "arguments": '{"city": "Paris"}'}
    call = {"id": "a", "type": "function", "function": function}
    made = {"role": "assistant", "tool_calls": [call]}
    told = {"role": "tool", "tool_call_id": "a", "content": "sunny"}
    empty = chat(served, messages=[USER, {**made, "content": ""}, told]).prompts[0].ids
    assert chat(served, messages=[USER, {**made, "content": None}, told]).prompts[0].ids == empty
    assert chat(served, messages=[USER, made, told]).prompts[0].ids == empty


def test_a_prompt_that_does_not_fit_names_both_numbers(served: Served) -> None:
    param, message = refused(served, prompt=[81] * 100, max_tokens=1)
    assert param == "prompt"
    assert "context length is 100 tokens, but 100 tokens of prompt and 1 of output" in message
    assert completion(served, prompt=[81] * 99, max_tokens=1).prompts[0].params.max_tokens == 1


def test_a_prompt_that_can_never_fit_is_not_encoded(served: Served) -> None:
    param, message = refused(served, prompt="a" * 10**6)
    assert param == "prompt"
    assert "maximum context length is 100 tokens" in message


def test_prompts_that_are_too_many_are_not_encoded(served: Served) -> None:
    began = time.thread_time()
    param, message = refused(served, prompt=["one two"] * 200_000)
    assert (param, message) == (
        "prompt",
        "200000 prompts with n 1 make 200000 choices; at most 1024 in one request",
    )
    assert time.thread_time() - began < 1


def test_parts_and_text_make_the_same_prompt(served: Served) -> None:
    parts = [{"type": "text", "text": "Hi"}]
    assert chat(served, messages=[{"role": "user", "content": parts}]) != chat(served)
    assert (
        chat(served, messages=[{"role": "user", "content": parts}]).prompts[0].ids
        == chat(served).prompts[0].ids
    )


def test_a_model_without_a_template_cannot_chat(served: Served, smollm2: TextModel) -> None:
    with pytest.raises(ClientError, match="this model has no chat template; give one with"):
        chat(replace(served, text=replace(smollm2, template=None)))


def test_a_clients_own_template_where_clients_are_trusted(served: Served) -> None:
    source = "{{ messages[0].content }}{{ documents | map(attribute='text') | join }}"
    trusting = replace(served, trusts_templates=True)
    told = chat(trusting, chat_template=source, documents=[{"text": " one"}, {"text": " two"}])
    expected = served.text.tokenizer.encode("Hi one two", add_special_tokens=False)
    assert told.prompts[0].ids == tuple(expected)
    param, message = refused(served, messages=[USER], chat_template=source)
    assert param == "chat_template"
    assert "--trust-request-chat-template" in message
    for broken in ("{% if %}", "{{ 1 // 0 }}", "{% for a in b %}" * 25 + "{% endfor %}" * 25):
        assert refused(trusting, messages=[USER], chat_template=broken)[0] in (
            "chat_template",
            "messages",
        )
    escape = "{{ ().__class__.__bases__ }}"
    param, message = refused(trusting, messages=[USER], chat_template=escape)
    assert param == "chat_template"
    assert message.startswith("the request's chat template refuses this conversation: ")


def test_tools_are_called_as_the_clients_template_tells(served: Served) -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert refused(served, messages=[USER], tools=tools)[0] == "tools"
    hermes = "{{ messages[0].content }}{{ tools }}<tool_call>"
    trusting = replace(served, trusts_templates=True)
    assert chat(trusting, tools=tools, chat_template=hermes).calling is not None


def test_special_tokens_beside_the_templates(served: Served) -> None:
    """This model's encoding adds none."""
    assert chat(served, add_special_tokens=True).prompts == chat(served).prompts


def test_a_prompt_that_is_truncated_has_an_end_too(served: Served) -> None:
    half = "a" * (MIN_TEXT_CHARS // 2 + 1)
    for body, param in (
        ({"prompt": [half, half]}, "prompt"),
        ({"messages": [{"role": "user", "content": half + half}]}, "messages"),
    ):
        told, message = refused(served, truncate_prompt_tokens=5, **body)
        assert told == param
        assert f"at most {MIN_TEXT_CHARS} are made tokens" in message
