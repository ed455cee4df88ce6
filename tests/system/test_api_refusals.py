"""What cannot be asked is refused before any work, with its field, in every way of asking."""

from typing import Any

import openai
import pytest

from tests.servers import RunningServer
from tests.system.asking import MODES, Asker, Mode

pytestmark = pytest.mark.slow
TOOL: dict[str, Any] = {"type": "function", "function": {"name": "f"}}
OF_ALL: dict[str, dict[str, Any]] = {  # by what is in `param`
    "temperature": {"temperature": 2.5},
    "top_p": {"top_p": 0},
    "top_k": {"top_k": -2},
    "min_p": {"min_p": 1.5},
    "seed": {"seed": 2**63},
    "stop": {"stop": ["x"] * 17},
    "stop_token_ids": {"stop_token_ids": [49_152]},
    "presence_penalty": {"presence_penalty": 3},
    "frequency_penalty": {"frequency_penalty": -3},
    "repetition_penalty": {"repetition_penalty": 0},
    "logit_bias": {"logit_bias": {"x": 1}},
    "min_tokens": {"min_tokens": 5000},
    "cache_salt": {"cache_salt": ""},
    "priority": {"priority": 2**40},
    "timeout_s": {"timeout_s": 0},
    "slo.ttft_ms": {"slo": {"ttft_ms": 0}},
    "structured_outputs": {"structured_outputs": {}},
    "structured_outputs.regex": {"structured_outputs": {"regex": "(["}},
    "temperatur": {"temperatur": 1},
}
OF_CHOICES: dict[str, dict[str, Any]] = {
    "max_tokens": {"max_tokens": 5000},
    "n": {"n": 129},
    "truncate_prompt_tokens": {"truncate_prompt_tokens": 0},
    "response_format.json_schema": {"response_format": {"type": "json_schema"}},
}
OF_COMPLETIONS: dict[str, dict[str, Any]] = {
    "prompt": {"prompt": []},
    "logprobs": {"logprobs": 21},
    "suffix": {"suffix": "x"},
    "best_of": {"best_of": 2, "n": 3},
}
OF_CHATS: dict[str, dict[str, Any]] = {
    "messages": {"messages": []},
    "messages[0].role": {"messages": [{"content": "x"}]},
    "messages[0].content": {"messages": [{"role": "user", "content": 5}]},
    "top_logprobs": {"top_logprobs": 2},
    "tools": {"tools": [TOOL]},  # the template tells of no way of calling
    "tool_choice": {"tool_choice": "required"},
    "tools[1].function.name": {"tools": [TOOL, TOOL]},
    "functions": {"functions": [{"name": "f"}]},
    "modalities": {"modalities": ["audio"]},
    "continue_final_message": {"continue_final_message": True, "add_generation_prompt": True},
    "chat_template_kwargs": {"chat_template_kwargs": {"messages": []}},
}
OF_RESPONSES: dict[str, dict[str, Any]] = {
    "input": {"input": []},
    "input[0].type": {"input": [{"type": "item_reference", "id": "x"}]},
    "max_output_tokens": {"max_output_tokens": 5000},
    "store": {"store": True},
    "previous_response_id": {"previous_response_id": "resp_1"},
    "conversation": {"conversation": "c"},
    "background": {"background": True},
    "truncation": {"truncation": "auto"},
    "text.format.schema": {"text": {"format": {"type": "json_schema", "name": "n"}}},
    "tools[0].type": {"tools": [{"type": "web_search"}]},
    "tool_choice.name": {
        "tools": [{"type": "function", "name": "f"}],
        "tool_choice": {"type": "function", "name": "g"},
    },
}
RESOURCES: dict[str, tuple[dict[str, Any], dict[str, dict[str, Any]]]] = {
    "completions": ({"prompt": "x"}, {**OF_ALL, **OF_CHOICES, **OF_COMPLETIONS}),
    "chat.completions": (
        {"messages": [{"role": "user", "content": "x"}]},
        {**OF_ALL, **OF_CHOICES, **OF_CHATS},
    ),
    "responses": ({"input": "x"}, {**OF_ALL, **OF_RESPONSES}),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("resource", RESOURCES)
def test_what_cannot_be_asked(server: RunningServer, resource: str, mode: Mode) -> None:
    ask = Asker(server, mode)
    plain, wrong = RESOURCES[resource]
    for param, options in wrong.items():
        with pytest.raises(openai.BadRequestError) as raised:
            ask.events(resource, {**plain, **options})
        error = raised.value
        assert error.param == param
        assert error.type == "invalid_request_error"
        assert len(error.message) > 20


@pytest.mark.parametrize("mode", MODES)
def test_what_streams_alone_or_not_at_all(server: RunningServer, mode: Mode) -> None:
    ask = Asker(server, mode)
    if ask.streams:
        wrong = {"prompt_logprobs": {"prompt_logprobs": 1}, "best_of": {"best_of": 2}}
    else:
        wrong = {"stream_options": {"stream_options": {"include_usage": True}}}
    for param, options in wrong.items():
        with pytest.raises(openai.BadRequestError) as raised:
            ask.events("completions", {"prompt": "x", **options})
        assert raised.value.param == param


@pytest.mark.parametrize("mode", ["sync", "async stream"])
def test_another_model_is_not_there(server: RunningServer, mode: Mode) -> None:
    for resource, (plain, _) in RESOURCES.items():
        with pytest.raises(openai.NotFoundError) as raised:
            Asker(server, mode).events(resource, {**plain, "model": "gpt-4"})
        assert raised.value.param == "model"
