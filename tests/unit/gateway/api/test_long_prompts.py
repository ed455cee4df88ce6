"""Completions of more token ids than a body may have of anything else."""

import json
from typing import Any

import pytest

from common.errors import ClientError
from launch.gateway.api import amounts, long_prompts
from launch.gateway.api.decoding import decode_any
from launch.gateway.api.long_prompts import decode_completion
from launch.gateway.api.requests import MAX_CHOICES, CompletionRequest

MAX_ENTRIES = 2**14  # in these tests
LEN = 100
FULL: list[Any] = [[7] * LEN for _ in range(MAX_ENTRIES // LEN + 1)]


@pytest.fixture(autouse=True)
def few_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (amounts, long_prompts):
        monkeypatch.setattr(module, "MAX_ENTRIES", MAX_ENTRIES)


def body(prompt: object = FULL, **fields: object) -> bytes:
    return json.dumps({"temperature": 0.5, "prompt": prompt, "n": 2, **fields}).encode()


def refusal(content: bytes, max_model_len: int | None = LEN) -> tuple[str | None, int, str]:
    with pytest.raises(ClientError) as raised:
        decode_completion(content, max_model_len)
    return raised.value.param, raised.value.status, str(raised.value)


def test_they_are_read_as_others_are() -> None:
    for prompt, most in ((FULL, LEN), ([7] * (MAX_ENTRIES + 1), 2 * MAX_ENTRIES)):
        content = body(prompt, user="[,", stop=["a"])
        assert decode_completion(content, most) == decode_any(content, CompletionRequest)
    few = body([1, 2])
    assert decode_completion(few, None) == decode_any(few, CompletionRequest)


def test_each_prompt_is_counted_before_it_is_decoded() -> None:
    flat = body([7] * (MAX_ENTRIES + 1))
    assert refusal(flat)[2].startswith(
        "This model's maximum context length is 100 tokens, but 16385 tokens of prompt"
    )
    assert refusal(body([*FULL, [7] * (LEN + 1)]))[2].startswith(
        "This model's maximum context length is 100 tokens, but 101 tokens of prompt"
    )
    cut = body([7] * (MAX_ENTRIES + 1), truncate_prompt_tokens=4)
    told = "prompt has 16385 token ids; at most 16384 are taken to be truncated"
    assert refusal(cut) == ("prompt", 400, told)
    assert decode_completion(body(truncate_prompt_tokens=4), 9).prompt == FULL


def test_what_is_wrong_has_its_place() -> None:
    assert refusal(body([*FULL, [1, -1]])) == (
        f"prompt[{len(FULL)}][1]",
        400,
        f"prompt[{len(FULL)}][1]: Expected `int` >= 0, got -1",
    )
    assert refusal(body([*FULL, [1, 10**40]]))[0] == f"prompt[{len(FULL)}][1]"
    assert refusal(body([*FULL, [1, "a"]]))[2].endswith('Expected `int`, got "a"')
    assert refusal(body([*FULL, "a"]))[0] == f"prompt[{len(FULL)}]"
    assert refusal(body(temperature=3))[0] == "temperature"
    assert refusal(body(prompts=1))[2] == 'unknown field "prompts"; did you mean prompt?'
    many = "make 32770 choices; at most 1024 in one request"
    assert refusal(body(["a"] * (MAX_ENTRIES + 1)))[2].endswith(many)
    n = MAX_CHOICES // 2 + 1
    assert refusal(body([[7] * LEN] * n))[2].startswith(
        f"{n} prompts with n 2 make {2 * n} choices"
    )


def test_too_much_beside_the_prompt_is_too_much() -> None:
    much = [7] * (MAX_ENTRIES + 1)
    for content in (
        body(stop_token_ids=much),
        body(prompt="a", metadata={"a": much}),
        json.dumps(much).encode(),
        b'{"prompt": ' + json.dumps(much).encode() + b', "prompt": "a"}',
    ):
        told = refusal(content)
        assert told[1] == 413 or told[2].startswith("the body must be a JSON object")
    assert refusal(body(), None)[1] == 413
    assert refusal(body()[:-1])[2].startswith("the body is not valid JSON")


def test_a_copy_of_the_prompt_elsewhere_stays_where_it_is() -> None:
    n = MAX_ENTRIES // 2 + 9
    content = body([7] * n, metadata={"a": [7] * n})
    read = decode_completion(content, MAX_ENTRIES)
    assert read == decode_any(content, CompletionRequest)
