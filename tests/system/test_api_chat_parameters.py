"""Each parameter of chats and of responses that completions have not, or have otherwise, with the
official client in each of its ways."""

import json
from typing import Any

import jsonschema
import pytest

from tests.servers import RunningServer
from tests.system.asking import MODES, Answer, Asker, Mode, N

pytestmark = pytest.mark.slow
ASKED = "What is a relay race?"
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "blue"]}, "n": {"type": "integer", "maximum": 9}},
    "required": ["colour", "n"],
    "additionalProperties": False,
}
FUNCTION: dict[str, Any] = {"name": "paint", "description": "Paints.", "parameters": SCHEMA}
TOOLS = [
    {"type": "function", "function": FUNCTION},
    {"type": "function", "function": {**FUNCTION, "name": "draw"}},
]


@pytest.fixture(params=MODES)
def ask(server: RunningServer, request: pytest.FixtureRequest) -> Asker:
    mode: Mode = request.param
    return Asker(server, mode)


@pytest.fixture(scope="module")
def greedy(server: RunningServer) -> Answer:
    return Asker(server, "sync").chat(ASKED, max_tokens=2 * N, return_token_ids=True)


def test_messages_of_every_kind(ask: Asker, greedy: Answer) -> None:
    parts = [{"type": "text", "text": ASKED}]
    assert ask.chat([{"role": "user", "content": parts}], max_tokens=2 * N).text == greedy.text
    system = {"role": "system", "content": "Answer in French."}
    other = ask.chat([system, {"role": "user", "content": ASKED}], max_tokens=2 * N)
    assert other.usage["prompt_tokens"] != greedy.usage["prompt_tokens"]


def test_lengths_by_both_names(ask: Asker, greedy: Answer) -> None:
    for name in ("max_tokens", "max_completion_tokens"):
        answer = ask.chat(ASKED, **{"max_tokens": None, name: 3})
        assert (answer.only.finish, answer.usage["completion_tokens"]) == ("length", 3)
        assert greedy.text.startswith(answer.text)


def test_log_probabilities(ask: Asker) -> None:
    told = ask.chat(ASKED, logprobs=True, top_logprobs=2).only
    assert len(told.logprobs) == N
    assert set(told.top) == {2}
    assert ask.chat(ASKED, logprobs=True).only.logprobs == told.logprobs
    assert ask.chat(ASKED).only.logprobs == ()


def test_samples_seeds_and_stops(ask: Asker, greedy: Answer) -> None:
    two = ask.chat(ASKED, n=2, temperature=1.5, seed=3)
    assert two.choices[0].text != two.choices[1].text
    assert two.choices[0] == ask.chat(ASKED, temperature=1.5, seed=3).only
    stop = greedy.text[6:10]
    cut = ask.chat(ASKED, stop=stop, max_tokens=2 * N).only
    assert (cut.text, cut.finish) == (greedy.text[: greedy.text.index(stop)], "stop")


def test_answers_of_a_schema(ask: Asker) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "c", "schema": SCHEMA}}
    answer = ask.chat(ASKED, response_format=form, max_tokens=60)
    jsonschema.validate(json.loads(answer.text), SCHEMA)
    assert answer.only.finish == "stop"
    assert ask.chat(ASKED, response_format={"type": "text"}, max_tokens=2).text


def test_calls_that_are_required(ask: Asker) -> None:
    one = {"tools": TOOLS, "parallel_tool_calls": False, "max_tokens": 80}
    required = ask.chat(ASKED, tool_choice="required", **one).only
    ((name, arguments),) = required.calls
    assert (required.finish, required.text) == ("tool_calls", "")
    assert name in ("paint", "draw")
    jsonschema.validate(json.loads(arguments), SCHEMA)
    named = {"type": "function", "function": {"name": "draw"}}
    ((name, arguments),) = ask.chat(ASKED, tool_choice=named, **one).only.calls
    assert name == "draw"
    jsonschema.validate(json.loads(arguments), SCHEMA)
    none = ask.chat(ASKED, tools=TOOLS, tool_choice="none").only
    assert none.calls == ()


def test_how_the_template_is_used(ask: Asker, greedy: Answer) -> None:
    begun = ask.chat(ASKED, max_tokens=4).text
    said = [{"role": "user", "content": ASKED}, {"role": "assistant", "content": begun}]
    on = {"continue_final_message": True, "add_generation_prompt": False}
    assert greedy.text.startswith(begun + ask.chat(said, max_tokens=4, **on).text)
    bare = ask.chat(ASKED, add_generation_prompt=False, max_tokens=1)
    assert bare.usage["prompt_tokens"] < greedy.usage["prompt_tokens"]
    assert (
        ask.chat(ASKED, chat_template_kwargs={"unused": 1}).usage["prompt_tokens"]
        == (greedy.usage["prompt_tokens"])
    )


def test_what_changes_no_answer(ask: Asker, greedy: Answer) -> None:
    told = {"user": "u", "metadata": {"a": "b"}, "store": True, "reasoning_effort": "low"}
    for options in (told, {"priority": 3, "verbosity": "low", "modalities": ["text"]}):
        assert greedy.text.startswith(ask.chat(ASKED, **options).text)


# --- responses -------------------------------------------------------------------------------


def said(response: dict[str, Any]) -> str:
    messages = [item for item in response["output"] if item["type"] == "message"]
    return "".join(part["text"] for item in messages for part in item["content"])


def test_a_response_is_what_the_chat_says(ask: Asker, greedy: Answer) -> None:
    short = ask.respond(ASKED, max_output_tokens=2 * N)
    assert (said(short), short["status"]) == (greedy.text, "incomplete")
    assert short["incomplete_details"] == {"reason": "max_output_tokens"}
    assert short["usage"]["input_tokens"] == greedy.usage["prompt_tokens"]
    assert short["usage"]["output_tokens"] == 2 * N
    items = [{"role": "user", "content": [{"type": "input_text", "text": ASKED}]}]
    assert said(ask.respond(items, max_output_tokens=2 * N)) == greedy.text
    stop = greedy.text[6:10]
    cut = ask.respond(ASKED, stop=stop, max_output_tokens=2 * N)
    assert (said(cut), cut["status"]) == (greedy.text[: greedy.text.index(stop)], "completed")


def test_instructions_are_the_systems(ask: Asker) -> None:
    system = {"role": "system", "content": "Answer in French."}
    asked = ask.chat([system, {"role": "user", "content": ASKED}])
    told = ask.respond(ASKED, instructions="Answer in French.")
    assert (said(told), told["instructions"]) == (asked.text, "Answer in French.")


def test_a_response_of_a_schema_and_of_a_call(ask: Asker) -> None:
    form = {"format": {"type": "json_schema", "name": "c", "schema": SCHEMA, "strict": True}}
    told = ask.respond(ASKED, text=form, max_output_tokens=60)
    jsonschema.validate(json.loads(said(told)), SCHEMA)
    assert told["status"] == "completed"
    tools = [{"type": "function", "strict": True, **FUNCTION}]
    one = {"tools": tools, "tool_choice": "required", "parallel_tool_calls": False}
    (call,) = ask.respond(ASKED, max_output_tokens=80, **one)["output"]
    assert (call["type"], call["name"], call["status"]) == ("function_call", "paint", "completed")
    jsonschema.validate(json.loads(call["arguments"]), SCHEMA)
    items = [
        {"role": "user", "content": ASKED},
        call,
        {"type": "function_call_output", "call_id": call["call_id"], "output": "done"},
    ]
    assert said(ask.respond(items))


def test_log_probabilities_of_a_response(ask: Asker) -> None:
    include = ["message.output_text.logprobs"]
    told = ask.respond(ASKED, include=include, top_logprobs=2)
    scores = told["output"][0]["content"][0]["logprobs"]
    chat = ask.chat(ASKED, logprobs=True)
    assert tuple(score["logprob"] for score in scores) == chat.only.logprobs
    assert all(len(score["top_logprobs"]) == 2 for score in scores)
