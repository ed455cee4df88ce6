"""Texts to tokens and back."""

from typing import Any

import msgspec
import pytest

from common.errors import ClientError
from common.text.load import TextModel
from launch.gateway.api.amounts import MAX_ENTRIES
from launch.gateway.api.decoding import decode
from launch.gateway.api.prompts import MIN_TEXT_CHARS
from launch.gateway.api.responses import Tokenized
from launch.gateway.api.served import Served
from launch.gateway.api.text_requests import DetokenizeRequest, TokenizeRequest
from launch.gateway.api.tokenizing import detokenized, tokenized
from tests.unit.gateway.api.preparing import CAPITAL, USER, chat

SHOWN = "{% for m in messages %}<{{ m.content }}>{% endfor %}{{ tools | tojson }}"
TOOL = {"type": "function", "function": {"name": "f"}}


def tokens(text: TextModel, *, trusts: bool = False, **body: Any) -> Tokenized:  # noqa: ANN401
    request = decode(msgspec.json.encode(body), TokenizeRequest)
    return tokenized(request, text, max_model_len=7, trusts_templates=trusts)


def refused(text: TextModel, **body: Any) -> str | None:  # noqa: ANN401
    with pytest.raises(ClientError) as raised:
        tokens(text, **body)
    return raised.value.param


def test_a_prompt(smollm2: TextModel) -> None:
    told = tokens(smollm2, prompt="The capital of France is", return_token_strs=True)
    assert told == Tokenized(
        count=5,
        max_model_len=7,  # however long the text is
        tokens=list(CAPITAL),
        token_strs=["The", " capital", " of", " France", " is"],
    )
    assert tokens(smollm2, prompt="a").token_strs is None
    assert tokens(smollm2, prompt="").tokens == []


def test_messages_are_the_prompt_that_a_chat_would_have(smollm2: TextModel, served: Served) -> None:
    assert tokens(smollm2, messages=[USER]).tokens == list(chat(served).prompts[0].ids)
    for options in ({"add_generation_prompt": False}, {"continue_final_message": True}):
        told = tokens(smollm2, messages=[USER], **options)
        assert tuple(told.tokens) == chat(served, **options).prompts[0].ids


def test_a_clients_own_template_and_its_tools(smollm2: TextModel) -> None:
    told = tokens(smollm2, trusts=True, messages=[USER], chat_template=SHOWN, tools=[TOOL])
    text = detokenized(DetokenizeRequest(tokens=told.tokens), smollm2).prompt
    assert text == '<Hi>[{"type": "function", "function": {"name": "f"}}]'
    assert refused(smollm2, messages=[USER], chat_template=SHOWN) == "chat_template"


def test_what_cannot_be_asked(smollm2: TextModel) -> None:
    assert refused(smollm2) == "prompt"
    assert refused(smollm2, prompt="a", messages=[USER]) == "prompt"
    assert refused(smollm2, prompt="a", tools=[TOOL]) == "tools"
    assert refused(smollm2, prompt="a", add_generation_prompt=True) == "add_generation_prompt"
    assert refused(smollm2, messages=[]) == "messages"
    assert refused(smollm2, messages=[USER], tools=[TOOL, TOOL]) == "tools[1].function.name"
    assert refused(smollm2, messages=[{"role": "user"}]) == "messages[0].content"


def test_ids_that_the_model_has_not(smollm2: TextModel) -> None:
    with pytest.raises(ClientError) as raised:
        detokenized(DetokenizeRequest(tokens=[49_152]), smollm2)
    assert raised.value.param == "tokens"


def test_a_text_may_be_longer_than_the_context_yet_has_an_end(smollm2: TextModel) -> None:
    assert tokens(smollm2, prompt="ab " * 10_000).count > 7
    text = "a" * (MIN_TEXT_CHARS + 1)
    bodies: dict[str, Any] = {"prompt": text, "messages": [{"role": "user", "content": text}]}
    for param, value in bodies.items():
        with pytest.raises(ClientError) as raised:
            tokens(smollm2, **{param: value})
        assert raised.value.param == param
        assert f"at most {MIN_TEXT_CHARS} are made tokens" in str(raised.value)
    ids = msgspec.json.encode({"tokens": [1] * MAX_ENTRIES})
    with pytest.raises(ClientError, match=f"entries; at most .*{MAX_ENTRIES}"):
        decode(ids, DetokenizeRequest)
