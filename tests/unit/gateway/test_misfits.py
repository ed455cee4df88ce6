"""What is told at start of flags that the model has no use of."""

from dataclasses import replace

import pytest

from common.config import ServeConfig
from common.text.load import TextModel
from common.text.template import ChatTemplate
from common.text.tokenizer import Tokenizer
from launch.gateway.misfits import misfits
from tests.unit.text.hf_directory import byte_level_backend


def events(text: TextModel, config: ServeConfig) -> list[str]:
    return [event for event, _ in misfits(text, config)]


def with_templates(text: TextModel, **sources: str) -> TextModel:
    return replace(text, template=ChatTemplate(sources, {}))


def test_nothing_is_said_of_what_nobody_asked_for(smollm2: TextModel) -> None:
    assert events(smollm2, ServeConfig()) == []


@pytest.mark.parametrize(
    ("sources", "told"),
    [
        ({"default": "no tools {# tools #} {{ messages }}"}, ["tools_not_shown"]),
        ({"default": "{% for tool in tools or [] %}{{ tool }}{% endfor %}"}, []),
        ({"default": "plain", "tool_use": "{{ tools | tojson }}"}, []),
    ],
)
def test_a_parser_of_calls_without_tools_in_the_template(
    smollm2: TextModel, sources: dict[str, str], told: list[str]
) -> None:
    text = with_templates(smollm2, **sources)
    assert events(text, ServeConfig(tool_call_parser="hermes")) == told
    assert events(text, ServeConfig()) == []


def test_a_parser_of_thoughts_where_nothing_has_their_marks(smollm2: TextModel) -> None:
    asked = ServeConfig(reasoning_parser="qwen3")
    assert events(smollm2, asked) == ["thoughts_not_known"]
    assert events(with_templates(smollm2, default="{{ m.split('</think>') }}"), asked) == []
    own = smollm2.tokenizer.vocabulary
    taught = replace(own, token_bytes=(*own.token_bytes, b"<think>"))
    tokenizer = Tokenizer(byte_level_backend(), taught)
    assert events(replace(smollm2, tokenizer=tokenizer), asked) == []
