"""What is said of a body that is wrong: the field, what it holds, what it may hold."""

from typing import Annotated

import pytest
from msgspec import Meta, Struct

from common.errors import ClientError
from launch.gateway.api.decoding import decode, shown
from launch.gateway.api.item_request import ItemRequest
from launch.gateway.api.requests import ChatRequest, CompletionRequest, SloBody
from launch.gateway.api.text_requests import DetokenizeRequest, TokenizeRequest

DEEP = 30_000  # deeper than any Python goes: 3.13 goes 10,000


def refusal(
    body: str | bytes, kind: type[CompletionRequest | ChatRequest] = CompletionRequest
) -> tuple[str | None, str]:
    with pytest.raises(ClientError) as raised:
        decode(body if isinstance(body, bytes) else body.encode(), kind)
    assert raised.value.status == 400
    return raised.value.param, str(raised.value)


def field(text: str) -> tuple[str | None, str]:
    """Of a completion with one more field."""
    return refusal(f'{{"prompt": "a", {text}}}')


def test_all_fields_of_a_completion() -> None:
    body = b"""{"model": "m", "prompt": ["a", "b"], "max_tokens": 5, "temperature": 0.5, "top_p": 1,
        "top_k": -1, "min_p": 0, "n": 2, "seed": -1, "stop": ["x"], "stop_token_ids": [2],
        "presence_penalty": 1, "frequency_penalty": -1, "repetition_penalty": 1.1, "echo": true,
        "logit_bias": {"7": -100}, "min_tokens": 1, "ignore_eos": true, "logprobs": 3,
        "include_stop_str_in_output": true, "skip_special_tokens": false, "stream": true,
        "stream_options": {"include_usage": true, "include_obfuscation": false},
        "slo": {"ttft_ms": 200, "tpot_ms": 1.5}, "timeout_s": 30,
        "return_token_ids": true, "best_of": 2, "suffix": "", "user": "u", "metadata": {}}"""
    request = decode(body, CompletionRequest)
    assert (request.prompt, request.max_tokens, request.seed) == (["a", "b"], 5, -1)
    assert request.stream_options is not None
    assert request.stream_options.include_usage
    assert request.slo == SloBody(ttft_ms=200, tpot_ms=1.5)
    assert request.timeout_s == 30


@pytest.mark.parametrize(
    ("text", "param", "message"),
    [
        ('"n": 0', "n", "n: Expected `int` >= 1, got 0"),
        ('"n": "two"', "n", 'n: Expected `int`, got "two"'),
        ('"n": 1.5', "n", "n: Expected `int`, got 1.5"),
        ('"n": true', "n", "n: Expected `int`, got true"),
        ('"temperature": -1', "temperature", "temperature: Expected `float` >= 0.0, got -1"),
        ('"temperature": 2.5', "temperature", "temperature: Expected `float` <= 2.0, got 2.5"),
        ('"top_p": 0', "top_p", "top_p: Expected `float` > 0.0, got 0"),
        ('"stop": ["a", 1]', "stop[1]", "stop[1]: Expected `str`, got 1"),
        ('"stream": "yes"', "stream", 'stream: Expected `bool`, got "yes"'),
        (
            '"logit_bias": {"5": 101}',
            "logit_bias",
            'logit_bias: Expected `float` <= 100.0, got {"5":101}',
        ),
        (
            '"response_format": {"type": "json"}',
            "response_format.type",
            'response_format.type is "json"; it must be one of "text", "json_object", '
            '"json_schema", "structural_tag"',
        ),
        (
            '"response_format": {"type": "json_schema", "schema": {}}',
            "response_format.schema",
            'unknown field "response_format.schema"; give it as response_format.json_schema.schema',
        ),
        (
            '"structured_outputs": {"jason": {}}',
            "structured_outputs.jason",
            'unknown field "structured_outputs.jason"; did you mean json?',
        ),
        (
            '"guided_regex": "a"',
            "guided_regex",
            'unknown field "guided_regex"; use structured_outputs.regex',
        ),
        (
            '"temperatures": 1',
            "temperatures",
            'unknown field "temperatures"; did you mean temperature?',
        ),
        ('"zzz": 1', "zzz", 'unknown field "zzz"; leave it out'),
        (
            '"stream_options": {"include_usag": true}',
            "stream_options.include_usag",
            'unknown field "stream_options.include_usag"; did you mean include_usage?',
        ),
        (
            '"slo": {"ttft": 200}',
            "slo.ttft",
            'unknown field "slo.ttft"; did you mean ttft_ms?',
        ),
        (
            '"slo": {"ttft_ms": 0.2}',
            "slo.ttft_ms",
            "slo.ttft_ms: Expected `float` >= 1.0, got 0.2 (milliseconds)",
        ),
        (
            '"slo": {"tpot_ms": 1e9}',
            "slo.tpot_ms",
            "slo.tpot_ms: Expected `float` <= 86400000.0, got 1000000000.0 (milliseconds)",
        ),
        ('"slo": 200', "slo", "slo: Expected `object`, got 200"),
        (
            '"repetition_penalty": 1e-40',
            "repetition_penalty",
            "repetition_penalty: Expected `float` >= 0.01, got 1e-40",
        ),
        ('"timeout_s": -1', "timeout_s", "timeout_s: Expected `float` > 0.0, got -1"),
        ('"timeout_s": 1e6', "timeout_s", "timeout_s: Expected `float` <= 86400.0, got 1000000.0"),
    ],
)
def test_one_wrong_field(text: str, param: str, message: str) -> None:
    assert field(text) == (param, message)


@pytest.mark.parametrize(
    ("text", "param", "message"),
    [
        (f'"stop": {["a"] * 17}', "stop", "stop has 17 items; at most 16"),
        ('"stop": ["a", ""]', "stop[1]", "stop[1] has 0 characters; at least 1"),
        (f'"stop": "{"a" * 1001}"', "stop", "stop has 1001 characters; at most 1000"),
        (
            f'"stop_token_ids": {[1] * 4097}',
            "stop_token_ids",
            "stop_token_ids has 4097 items; at most 4096",
        ),
        (
            f'"logit_bias": {dict.fromkeys(map(str, range(4097)), 1)}',
            "logit_bias",
            "logit_bias has 4097 entries; at most 4096",
        ),
        ('"cache_salt": ""', "cache_salt", "cache_salt has 0 characters; at least 1"),
    ],
)
def test_what_is_too_long_tells_how_long_it_is(text: str, param: str, message: str) -> None:
    assert field(text.replace("'", '"')) == (param, message)


@pytest.mark.parametrize("kind", [CompletionRequest, ChatRequest])
@pytest.mark.parametrize(
    "others", ['"early_stopping": true', '"beam_width": 4', '"best_of": 0', '"length_penalty": "a"']
)
def test_a_refused_field_comes_before_what_means_something_beside_it_alone(
    kind: type[CompletionRequest | ChatRequest], others: str
) -> None:
    what = '"prompt": "a"' if kind is CompletionRequest else '"messages": []'
    param, message = refusal(f'{{{what}, {others}, "use_beam_search": true}}', kind)
    assert (param, message.split(":")[0]) == ("use_beam_search", "use_beam_search is not supported")
    param, _ = refusal(f'{{{what}, "zzz": 1, "use_beam_search": false}}', kind)
    assert param == "zzz"


def test_one_item_is_no_plural() -> None:
    with pytest.raises(ClientError, match="stop has 1 item; at least 2"):
        decode(b'{"stop": ["a"]}', _TwoStops)


class _TwoStops(Struct):
    stop: Annotated[list[str], Meta(min_length=2)]


@pytest.mark.parametrize(
    "key", ["x - at `$.stop[5]", "x` - at `$.stop[5]", f"x - at `$.stop[{'9' * 5000}]", "` - at `$"]
)
@pytest.mark.parametrize("where", ["{}", '"stream_options": {{{}}}'])
def test_keys_that_read_like_the_decoders_own_words(key: str, where: str) -> None:
    param, message = field('"stop": [], ' + where.format(f'"{key}": 1'))
    assert param is not None
    assert len(param) < 300
    assert message.startswith("unknown field ")
    assert len(message) < 120


@pytest.mark.parametrize(
    ("prompt", "param", "message"),
    [
        ("1", "prompt", "prompt: Expected `str | array`, got 1"),
        ("null", "prompt", "prompt: Expected `str | array`"),
        ("[true]", "prompt[0]", "prompt[0]: Expected `int | str | array`, got true"),
        ("[[1, -1]]", "prompt[0][1]", "prompt[0][1]: Expected `int` >= 0, got -1"),
        ("[2147483648]", "prompt[0]", "prompt[0]: Expected `int` <= 2147483647, got 2147483648"),
    ],
)
def test_wrong_prompts(prompt: str, param: str, message: str) -> None:
    assert refusal(f'{{"prompt": {prompt}}}') == (param, message)


def test_what_is_missing() -> None:
    assert refusal("{}") == ("prompt", "prompt is required")
    assert refusal("{}", ChatRequest) == ("messages", "messages is required")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("", "the body is not valid JSON: Input data was truncated"),
        ("null", "the body must be a JSON object: Expected `object`, got `null`"),
        ("[]", "the body must be a JSON object: Expected `object`, got `array`"),
        ('{"prompt": "a"} x', "the body is not valid JSON: JSON is malformed: trailing characters"),
        ('{"prompt": NaN}', "the body is not valid JSON: JSON is malformed: invalid character"),
        ('{"prompt": "a", "n": "x", no', "the body is not valid JSON: JSON is malformed: object"),
        (b'{"prompt": "\xff"}', "the body is not valid JSON: Invalid UTF-8 encoded string"),
        (
            '{"prompt": "\\ud83d"}',
            "the body is not valid JSON: an escape between \\ud800 and \\udfff stands without its",
        ),
        ('{"prompt": "\\ud83d', "the body is not valid JSON: Input data was truncated"),
        ("[" * DEEP, "the body is nested too deeply"),
        ('{"prompt":' + "[" * DEEP, "the body is nested too deeply"),
        ('{"prompt": "a", "metadata": {"a": ' + "[" * DEEP, "the body is nested too deeply"),
    ],
)
def test_bodies_that_are_no_json(body: str | bytes, message: str) -> None:
    param, told = refusal(body)
    assert param is None
    assert told.startswith(message)


@pytest.mark.parametrize(
    "name", ["max_tokens", "top_k", "seed", "min_tokens", "n", "logprobs", "best_of"]
)
@pytest.mark.parametrize("value", [str(2**63), "9" * 30, "9" * 5000, "1e400"])
def test_huge_numbers(name: str, value: str) -> None:
    param, message = field(f'"{name}": {value}')
    assert param == name
    assert message.startswith(f"{name}: ")
    assert len(message) < 160


def test_a_huge_number_elsewhere_does_not_hide_the_error() -> None:
    assert field(f'"temperatures": 1, "user": {"9" * 5000}')[0] == "temperatures"


def test_a_pair_of_surrogates_is_a_character() -> None:
    assert decode(b'{"prompt": "\\ud83d\\ude00"}', CompletionRequest).prompt == "\U0001f600"


def test_nesting_that_can_just_be_read_is_shown_cut_short() -> None:
    nested = "[" * 900 + "]" * 900
    param, message = refusal(f'{{"messages": {nested}}}', ChatRequest)
    assert param == "messages[0]"
    assert len(message) < 120


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "true"),
        (None, "null"),
        ("é", '"é"'),
        (2**70, str(2**70)),
        ("a" * 100, '"' + "a" * 59 + "..."),
    ],
)
def test_values_are_shown_as_json(value: object, text: str) -> None:
    assert shown(value) == text


@pytest.mark.parametrize(
    ("kind", "name", "remedy"),
    [
        (ItemRequest, "messages", "use input"),
        (ChatRequest, "prompt", "use messages"),
        (ChatRequest, "input", "use messages"),
        (CompletionRequest, "messages", "use prompt"),
        (TokenizeRequest, "text", "use prompt"),
        (DetokenizeRequest, "prompt", "use tokens"),
        (ChatRequest, "extra_body", "it is the client's; put its fields at the top level"),
    ],
)
def test_what_is_said_in_another_endpoints_words(kind: type, name: str, remedy: str) -> None:
    with pytest.raises(ClientError) as raised:
        decode(f'{{"{name}": "x"}}'.encode(), kind)
    assert str(raised.value) == f'unknown field "{name}"; {remedy}'
    assert raised.value.param == name
