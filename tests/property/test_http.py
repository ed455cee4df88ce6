"""Whatever a client's body says, the answer is an answer or an error that it can act on."""

import json
import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from launch.gateway.api.prompts import MIN_TEXT_CHARS
from launch.gateway.api.requests import ChatRequest, CompletionRequest
from tests.property.hostile import (
    CHATS,
    COMPLETIONS,
    JSON,
    SMALLEST,
    USER,
    check,
    post,
    written,
)
from tests.servers import RunningServer

pytestmark = pytest.mark.slow
MANY = [60, pytest.param(2000, marks=pytest.mark.full)]
MB = 10**6

CHARACTERS = st.characters(exclude_categories=())  # surrogates, too
TEXTS = st.one_of(
    st.text(CHARACTERS, max_size=5), st.sampled_from(["user", "text", "auto", "1", "\x00", "start"])
)
NUMBERS = st.one_of(
    st.integers(-3, 3),
    st.integers(-(2**80), 2**80),
    st.floats(),
    st.sampled_from([2**31 - 1, 2**31, 2**63 - 1, 2**63, -(2**63), 49151, 49152, 5e-324, 1e-40]),
)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(
            st.one_of(TEXTS, st.sampled_from(["role", "content", "type", "text", "function"])),
            inner,
            max_size=4,
        ),
    ),
    max_leaves=8,
)
KEYWORDS = (
    *("type", "properties", "required", "items", "enum", "const", "pattern", "format", "$ref"),
    *("anyOf", "allOf", "oneOf", "not", "minLength", "maxItems", "minimum", "multipleOf"),
    *("additionalProperties", "patternProperties", "prefixItems", "$defs", "if", "then"),
)
SCHEMAS = st.recursive(
    st.one_of(
        VALUES,
        st.sampled_from(
            ["object", "array", "string", "integer", "null", "#", "#/$defs/a", "(", "a*"]
        ),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from([*KEYWORDS, "a"]), inner, max_size=4),
    ),
    max_leaves=12,
)


def hunt(n_examples: int) -> Callable[[Any], Any]:
    """The few are the same each time: who changes something else is not told of an old fault."""
    return settings(
        max_examples=n_examples,
        derandomize=n_examples == MANY[0],
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.too_slow],
    )


def bodies(kind: type[msgspec.Struct]) -> st.SearchStrategy[dict[str, Any]]:
    """Mostly of fields that there are, with values that mostly cannot be meant."""
    names = [field.encode_name for field in msgspec.structs.fields(kind)]
    return st.dictionaries(st.one_of(st.sampled_from(names), TEXTS), VALUES, max_size=4)


@pytest.mark.parametrize("n_examples", MANY)
@pytest.mark.parametrize(("path", "kind"), [(COMPLETIONS, CompletionRequest), (CHATS, ChatRequest)])
def test_any_fields(
    http_server: RunningServer, path: str, kind: type[msgspec.Struct], n_examples: int
) -> None:
    @hunt(n_examples)
    @given(fields=bodies(kind))
    def try_any(fields: dict[str, Any]) -> None:
        content = written({**SMALLEST[path], **fields})
        check(post(http_server, path, content), content)

    try_any()


@pytest.mark.parametrize("n_examples", MANY)
@pytest.mark.parametrize("path", [COMPLETIONS, CHATS])
def test_any_schema(http_server: RunningServer, path: str, n_examples: int) -> None:
    @hunt(n_examples)
    @given(schema=SCHEMAS)
    def try_any(schema: object) -> None:
        asked = {"type": "json_schema", "json_schema": {"schema": schema}}
        content = written({**SMALLEST[path], "response_format": asked})
        check(post(http_server, path, content), content)

    try_any()


@pytest.mark.parametrize("n_examples", MANY)
def test_any_bytes(http_server: RunningServer, n_examples: int) -> None:
    @hunt(n_examples)
    @given(content=st.binary(max_size=60))
    def try_any(content: bytes) -> None:
        check(post(http_server, COMPLETIONS, content), content)

    try_any()


@pytest.mark.parametrize("n_examples", MANY)
@pytest.mark.parametrize("path", list(SMALLEST))
def test_bodies_that_are_nearly_right(
    http_server: RunningServer, path: str, n_examples: int
) -> None:
    """A few bytes of a good one are lost, doubled or others."""
    good = written({**SMALLEST[path], "model": None})

    @hunt(n_examples)
    @given(seed=st.integers(0, 2**32))
    def try_any(seed: int) -> None:
        drawn, content = random.Random(seed), bytearray(good)
        for _ in range(drawn.randint(1, 3)):
            at = drawn.randrange(len(content))
            content[at : at + drawn.randint(0, 2)] = drawn.randbytes(drawn.randint(0, 2))
        check(post(http_server, path, bytes(content)), bytes(content))

    try_any()


def nested(opens: bytes, closes: bytes, depth: int) -> bytes:
    return opens * depth + b"1" + closes * depth


@pytest.mark.parametrize("path", list(SMALLEST))
@pytest.mark.parametrize(
    "value",
    [
        *(b"NaN", b"Infinity", b"-Infinity", b"1e400", b"1" * 5000, b"-0", b"01", b"0x1"),
        *(b'"\\ud800"', b'"\\udc00\\ud800"', b'"\\ud83d\\ude00"', b'"\xed\xa0\x80"', b'"\xff"'),
        *(b'"\x00"', b'"\\u0000"', b"'a'", b"undefined", b"1 //", b"", b"[1,]"),
        *(nested(b"[", b"]", depth) for depth in (100, 900, 1000, 100_000)),
        *(nested(b'{"a":', b"}", depth) for depth in (100, 900, 1000, 100_000)),
        *(b"[" * 100_000, b'{"a":' * 100_000),
    ],
    ids=lambda value: repr(value[:12]),
)
def test_what_is_no_json_or_just_so(http_server: RunningServer, path: str, value: bytes) -> None:
    """As a field that means nothing, as one that does, and as the body."""
    (name, *_), smallest = SMALLEST[path], written(SMALLEST[path])[:-1]
    contents = [
        value,
        smallest + b', "user": ' + value + b"}",
        smallest + b', "metadata": {"a": ' + value + b"}}",
        smallest + b', "' + name.encode() + b'": ' + value + b"}",
        smallest + b', "' + name.encode() + b'": [' + value + b"]}",
        b'{"' + name.encode() + b'": ' + value + b", " + smallest[1:] + b"}",
    ]
    for content in contents:
        check(post(http_server, path, content), content)


def test_of_a_key_that_comes_twice_the_last_counts(http_server: RunningServer) -> None:
    answer = post(
        http_server, COMPLETIONS, b'{"prompt":"a","max_tokens":9,"n":2,"n":1,"max_tokens":1}'
    )
    told = json.loads(answer.content)
    assert (len(told["choices"]), told["usage"]["completion_tokens"]) == (1, 1)
    answer = post(http_server, COMPLETIONS, b'{"prompt":"a","n":1,"n":0}')
    assert answer.error["param"] == "n"


LONG: Any = "a" * (10 * MB)
WORDS: Any = "one two " * (MB // 4)
TOO_MUCH = "too much"
TOOL = {"type": "function", "function": {"name": "a"}}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": LONG}, "prompt"),
        ({"prompt": [LONG]}, "prompt"),
        ({"stop": LONG}, "stop"),
        ({"stop": ["a", LONG]}, "stop[1]"),
        ({"cache_salt": LONG}, "cache_salt"),
        ({"model": LONG}, "model"),
        ({"suffix": LONG}, "suffix"),
        ({"user": LONG, "metadata": {"a": LONG[: 5 * MB]}}, None),
        ({"n": LONG}, "n"),
        ({"logit_bias": {LONG: 1}}, "logit_bias"),
        ({LONG: 1}, "a" * 60),
        ({"response_format": {"type": LONG}}, "response_format.type"),
        ({"structured_outputs": {"regex": LONG}}, "structured_outputs.regex"),
        ({"structured_outputs": {"grammar": LONG}}, "structured_outputs.grammar"),
        ({"structured_outputs": {"grammar": 'start: "' + LONG}}, "structured_outputs.grammar"),
        ({"structured_outputs": {"choice": [LONG]}}, "structured_outputs.choice"),
        ({"structured_outputs": {"json": LONG}}, "structured_outputs.json"),
        ({"structured_outputs": {"json": {"enum": [LONG]}}}, "structured_outputs.json"),
        ({"prompt": ["a"] * MB}, "prompt"),
        ({"prompt": [[81]] * 30_000}, "prompt"),
        ({"prompt": [[81]] * MB}, TOO_MUCH),
        ({"prompt": [81] * MB}, "prompt"),
        ({"stop_token_ids": [81] * MB}, TOO_MUCH),
        ({"prompt": [{}] * MB}, TOO_MUCH),
        ({"messages": [{**USER, "content": LONG}]}, "messages"),
        ({"messages": [{**USER, "role": LONG}]}, "messages"),
        ({"messages": [USER] * 30_000}, "messages"),
        ({"messages": [USER] * 100_000}, TOO_MUCH),
        ({"messages": [{}] * 30_000}, "messages[0].role"),
        ({"messages": [{}] * MB}, TOO_MUCH),
        ({"messages": [{**USER, "content": [{"type": LONG}]}]}, "messages[0].content"),
        ({"messages": [USER], "chat_template_kwargs": {"a": LONG, LONG[:MB]: 1}}, None),
        ({"messages": [USER], "tools": [TOOL] * 15_000}, "tools"),
        ({"messages": [USER], "tools": [TOOL] * 100_000}, TOO_MUCH),
        ({"messages": [USER], "tools": [TOOL], "tool_choice": LONG}, "tool_choice"),
        (
            {"messages": [USER], "tools": [{**TOOL, "function": {"name": LONG}}]},
            "tools[0].function.name",
        ),
        (
            {
                "messages": [USER],
                "tools": [{**TOOL, "function": {"name": "a", "description": LONG}}],
            },
            None,  # this template shows no tools
        ),
    ],
    ids=lambda one: "+".join(name[:20] for name in one) if isinstance(one, dict) else "",
)
def test_bodies_of_ten_megabytes(
    http_server: RunningServer, fields: dict[str, Any], param: str | None
) -> None:
    path = CHATS if "messages" in fields else COMPLETIONS
    content = written({**SMALLEST[path], **fields})
    answer = post(http_server, path, content)
    if param is None:
        assert answer.status == 200, answer
    elif param == TOO_MUCH:
        assert answer.status == 413, answer
        assert " entries; at most " in answer.error["message"]
    else:
        assert answer.status == (404 if param == "model" else 400), answer
        assert answer.error["param"] == param


def test_long_texts_are_tokenized(http_server: RunningServer) -> None:
    def told(path: str, **body: object) -> dict[str, Any]:
        return dict(json.loads(post(http_server, path, written(body)).content))

    longest = WORDS[:MIN_TEXT_CHARS]
    assert len(told("/tokenize", prompt=longest)["tokens"]) >= len(longest) // 8
    assert told("/tokenize", prompt=longest + "a")["error"]["param"] == "prompt"
    assert told("/detokenize", tokens=[81] * (MB // 4))["prompt"] == "a" * (MB // 4)
    last = {"prompt": longest, "truncate_prompt_tokens": 3, "max_tokens": 1}
    assert told(COMPLETIONS, **last)["usage"]["prompt_tokens"] == 3


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 415),
        ({"content-type": ""}, 415),
        ({"content-type": "text/plain"}, 415),
        ({"content-type": "application/json;"}, 200),
        ({"content-type": "APPLICATION/JSON; charset=UTF-8"}, 200),
        ({"content-type": "application/vnd.api+json"}, 200),
        ({"content-type": "application/jsonp"}, 415),
        ({"content-type": "multipart/form-data; boundary=a"}, 415),
        ({"content-type": "application/x-www-form-urlencoded"}, 415),
        ({"content-type": "a" * 10_000}, 415),
        ({"content-type": "\xff\xfe"}, 415),
        ({**JSON, "content-encoding": "gzip"}, 415),
        ({**JSON, "content-encoding": "identity"}, 200),
        ({**JSON, "accept": "text/html", "accept-encoding": "br;q=x", "range": "bytes=9-"}, 200),
        (
            {**JSON, "authorization": "Bearer \xff", "cookie": "a" * 10_000, "x-request-id": "\t"},
            200,
        ),
        ({**JSON, "x-forwarded-for": "'; --", "forwarded": "for=[", "via": "1.1 a"}, 200),
    ],
)
@pytest.mark.parametrize("path", list(SMALLEST))
def test_headers(
    http_server: RunningServer, path: str, headers: dict[str, str], status: int
) -> None:
    content = written(SMALLEST[path])
    for sent in (content, iter([content[:5], b"", content[5:]])):
        answer = post(http_server, path, sent, headers)
        assert answer.status == status, answer
        check(answer, content)


def test_texts_in_other_codings(http_server: RunningServer) -> None:
    for coding in ("utf-16", "utf-32", "utf-8-sig", "latin-1"):
        content = '{"prompt": "é", "max_tokens": 1}'.encode(coding)
        answer = post(http_server, COMPLETIONS, content)
        check(answer, content)
        assert answer.error["param"] is None
