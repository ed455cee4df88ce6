"""The published document is true: what it allows is taken, and what it does not is refused.

So far as JSON schema can say it; what only the server can judge is named here.
"""

import json
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.request import urlopen

import pytest

from tests.property.hostile import (
    CHATS,
    COMPLETIONS,
    ITEMS,
    PATIENCE_S,
    SERVED_NAME,
    SMALLEST,
    Answer,
    check,
    post,
    written,
)
from tests.property.schema_values import Values
from tests.servers import RunningServer

pytestmark = pytest.mark.slow
AT_ONCE = 8
TOOL = {"type": "function", "function": {"name": "a"}}
BESIDE: Mapping[tuple[str, str], dict[str, Any]] = {  # what a field needs
    (COMPLETIONS, "max_tokens"): {"echo": True},
    (COMPLETIONS, "stream_options"): {"stream": True},
    (CHATS, "stream_options"): {"stream": True},
    (CHATS, "top_logprobs"): {"logprobs": True},
    (CHATS, "tool_choice"): {"tools": [TOOL]},
    (ITEMS, "stream_options"): {"stream": True},
    (ITEMS, "top_logprobs"): {"include": ["message.output_text.logprobs"]},
    (ITEMS, "tool_choice"): {"tools": [{"type": "function", "name": "a"}]},
    ("/tokenize", "prompt"): {"messages": None},
}
MAY_BE = {"timeout_s": 504, "slo": 429, "model": 404}
MANY = 100  # prompts: more, and the queues are full


def _names_no_tool(value: Any) -> bool:  # noqa: ANN401 - any JSON
    return isinstance(value, dict) and "a" not in (value.get("name"), value.get("function"))


def _fits_not(value: Any) -> bool:  # noqa: ANN401
    return isinstance(value, int) and value > 8


def _holds_a_grammar(value: Any) -> bool:  # noqa: ANN401
    return isinstance(value, dict)


def _counts(value: Any) -> bool:  # noqa: ANN401
    return isinstance(value, int)


UNTOLD: Mapping[str, Callable[[Any], bool]] = {  # what no schema can say of a value that it allows
    "tool_choice": _names_no_tool,
    "max_tokens": _fits_not,
    "max_completion_tokens": _fits_not,
    "max_output_tokens": _fits_not,
    "text": _holds_a_grammar,
    "min_tokens": _counts,  # not over max_tokens
    "best_of": _counts,  # as n
    "response_format": _holds_a_grammar,
    "structured_outputs": _holds_a_grammar,
    "tools": lambda value: isinstance(value, list) and len(value) > 1,  # names are told apart
    "continue_final_message": lambda value: value is True,  # of a template that allows it
    "chat_template": lambda value: isinstance(value, str),  # this server trusts nobody's
    "prompt": lambda value: value is None,  # of /tokenize, which needs it or messages
    "messages": lambda value: value is None,
}


@pytest.fixture(scope="module")
def document(http_server: RunningServer) -> dict[str, Any]:
    with urlopen(f"{http_server.url}/openapi.json", timeout=PATIENCE_S) as answer:
        return dict(json.load(answer))


def posts(document: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    """The schema of a POST's body."""
    content = document["paths"][path]["post"]["requestBody"]["content"]
    name = content["application/json"]["schema"]["$ref"].rpartition("/")[2]
    return document["components"]["schemas"][name]


def judge(field: str, value: object, *, allowed: bool, answer: Answer) -> None:
    """One field of a body that is right otherwise."""
    said = f"{field}={json.dumps(value)[:200]}, allowed: {allowed}, {answer}"
    if answer.status in (200, MAY_BE.get(field)) and allowed:
        return
    untold = field in UNTOLD and UNTOLD[field](value)
    assert untold or not allowed, said
    assert answer.status == 400 or answer.status == MAY_BE.get(field), said
    at_fault = str(answer.error["param"]).partition(".")[0].partition("[")[0]
    assert at_fault == field or value is None, said  # then what it left out is at fault


@pytest.mark.parametrize("path", list(SMALLEST))
def test_each_field_is_taken_as_the_document_says(
    http_server: RunningServer, document: dict[str, Any], path: str
) -> None:
    values, properties = Values(document), posts(document, path)["properties"]
    asked: list[tuple[str, Any, bool]] = []
    of_chats = posts(document, CHATS)["properties"] if path == ITEMS else {}  # tried there
    for field, schema in properties.items():
        if schema == of_chats.get(field):
            continue
        allows = values.allows(schema)
        for value in values.around(schema, field):
            many_prompts = field == "prompt" and isinstance(value, list) and len(value) > MANY
            allowed = allows(value)
            if not (allowed and many_prompts):
                asked.append((field, value, allowed))

    def ask(one: tuple[str, Any, bool]) -> Answer:
        field, value, _ = one
        content = written({**SMALLEST[path], **BESIDE.get((path, field), {}), field: value})
        answer = post(http_server, path, content)
        check(answer, content, [MAY_BE[field]] if field in MAY_BE else [])
        return answer

    with ThreadPoolExecutor(AT_ONCE) as pool:
        for (field, value, allowed), answer in zip(asked, pool.map(ask, asked), strict=True):
            judge(field, value, allowed=allowed, answer=answer)
    n_allowed = sum(allowed for *_, allowed in asked)
    n_fields = len({field for field, *_ in asked})
    assert n_allowed > n_fields
    assert len(asked) - n_allowed > 10 * n_fields


@pytest.mark.parametrize("path", list(SMALLEST))
def test_what_is_required_is_missed(
    http_server: RunningServer, document: dict[str, Any], path: str
) -> None:
    required = posts(document, path).get("required", ["prompt"])  # or messages
    for name in required:
        body = {key: value for key, value in SMALLEST[path].items() if key != name}
        assert post(http_server, path, written(body)).error["param"] == name


def test_the_document_tells_the_servers_own_limits(document: dict[str, Any]) -> None:
    completion = posts(document, COMPLETIONS)["properties"]
    assert {"enum": [SERVED_NAME], "type": "string"} in completion["model"]["anyOf"]
    assert completion["logprobs"]["anyOf"][0]["maximum"] == 20
    assert posts(document, "/detokenize")["properties"]["tokens"]["items"]["maximum"] == 49151
