"""What models write when they call, as their families have it, however it is cut."""

import json
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launch.gateway.tools.constrained import ListReader, OneCallReader, some_call
from launch.gateway.tools.families import READERS, Family, family_of
from launch.gateway.tools.hermes import HermesReader
from launch.gateway.tools.llama3 import Llama3Reader
from launch.gateway.tools.mistral import MistralReader
from launch.gateway.tools.reader import Reader, Said

PARIS = '{"city": "Paris", "unit": "°C"}'
Calls = list[tuple[str, Any]]


def read(reader: Reader, *texts: str) -> tuple[str, Calls]:
    """(text, calls)"""
    said = Said()
    for text in texts:
        said += reader.push(text)
    said += reader.finish()
    names: list[str] = []
    arguments: list[str] = []
    for part in said.calls:
        if part.name is not None:
            assert part.index == len(names)
            names.append(part.name)
            arguments.append("")
        arguments[part.index] += part.arguments
    return said.text, [(n, json.loads(a)) for n, a in zip(names, arguments, strict=True)]


WEATHER = ("weather", {"city": "Paris", "unit": "°C"})
TIME = ("time", {})
WRITTEN: list[tuple[Callable[[], Reader], str, str, Calls]] = [
    (HermesReader, "Hello <tool", "Hello <tool", []),
    (
        HermesReader,
        f'<tool_call>\n{{"name": "weather", "arguments": {PARIS}}}\n</tool_call>',
        "",
        [WEATHER],
    ),
    (
        HermesReader,
        f'Let me see.\n<tool_call>{{"name": "weather", "arguments": {PARIS}}}</tool_call>\n'
        '<tool_call>{"name": "time", "arguments": {}}</tool_call> done',
        "Let me see.\n\n done",
        [WEATHER, TIME],
    ),
    (HermesReader, '<tool_call>{"name": "time", "arguments": {}}', "", [TIME]),
    (HermesReader, "<tool_call>{oops}</tool_call>!", "<tool_call>{oops}</tool_call>!", []),
    (HermesReader, '<tool_call>{"na', '<tool_call>{"na', []),
    (
        HermesReader,
        '<tool_call>{"name": "x"}</tool_call>',
        '<tool_call>{"name": "x"}</tool_call>',
        [],
    ),
    (Llama3Reader, f'{{"name": "weather", "parameters": {PARIS}}}', "", [WEATHER]),
    (
        Llama3Reader,
        f'<|python_tag|>{{"name": "weather", "parameters": {PARIS}}}; '
        '{"name": "time", "parameters": {}}',
        "",
        [WEATHER, TIME],
    ),
    (Llama3Reader, 'I call {"name": "time"}', 'I call {"name": "time"}', []),
    (Llama3Reader, '{"a": 1}', '{"a": 1}', []),
    (
        Llama3Reader,
        '{"name": "time", "parameters": {}} ok',
        '{"name": "time", "parameters": {}} ok',
        [],
    ),
    (Llama3Reader, "", "", []),
    (
        MistralReader,
        f'[TOOL_CALLS] [{{"name": "weather", "arguments": {PARIS}}}, '
        '{"name": "time", "arguments": {}}]',
        "",
        [WEATHER, TIME],
    ),
    (
        MistralReader,
        f"Well.[TOOL_CALLS]weather[ARGS]{PARIS}[TOOL_CALLS]time[CALL_ID]abc123def[ARGS]{{}}",
        "Well.",
        [WEATHER, TIME],
    ),
    (MistralReader, "[TOOL_CALLS] nothing", "[TOOL_CALLS] nothing", []),
    (MistralReader, "[TOOL_CAL", "[TOOL_CAL", []),
    (MistralReader, "", "", []),
    (ListReader, f'[{{"name": "weather", "parameters": {PARIS}}}]', "", [WEATHER]),
    (ListReader, '[{"name": "wea', '[{"name": "wea', []),
    (ListReader, "[]", "[]", []),
]


@pytest.mark.parametrize(("family", "written", "text", "calls"), WRITTEN)
def test_text_and_calls_are_told_apart(
    family: Callable[[], Reader], written: str, text: str, calls: Calls
) -> None:
    assert read(family(), written) == (text, calls)
    assert read(family(), *written) == (text, calls)  # a character at a time


@given(st.data())
def test_it_does_not_matter_how_a_text_is_cut(data: st.DataObject) -> None:
    family, written, text, calls = data.draw(st.sampled_from(WRITTEN))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(written)), max_size=5)))
    edges = [0, *cuts, len(written)]
    parts = [written[a:b] for a, b in pairwise(edges)]
    assert read(family(), *parts) == (text, calls)


@given(
    st.sampled_from(sorted(READERS)), st.text(alphabet='<>tol_ca/{}"[]TOLCASRG: x|', max_size=60)
)
def test_nothing_that_is_no_call_is_lost(family: Family, written: str) -> None:
    assert read(READERS[family](), *written) == (written, [])


def test_text_before_a_call_is_not_held_back() -> None:
    for family in (HermesReader, MistralReader, Llama3Reader):
        assert family().push("Hello there").text == "Hello there"


def test_the_arguments_of_a_named_tool_come_as_they_are_written() -> None:
    reader = OneCallReader("f")
    parts = [part for text in ('{"a"', "", ": 1}") for part in reader.push(text).calls]
    assert [(part.index, part.name, part.arguments) for part in parts] == [
        (0, "f", '{"a"'),
        (0, None, ": 1}"),
    ]
    assert reader.finish() == Said()


def test_a_list_of_calls_is_bounded_where_it_must_be() -> None:
    assert some_call([("f", {})], most=1)["maxItems"] == 1
    named = {"$defs": {"x": {}}, "properties": {"a": {"$ref": "#/$defs/x"}}}
    call = some_call([("f", {}), ("g", named)], most=1)["items"]["anyOf"][1]
    of_a = call["properties"]["parameters"]["properties"]["a"]
    assert of_a == {"$ref": "#/items/anyOf/1/properties/parameters/$defs/x"}
    assert "maxItems" not in some_call([("f", {})], most=None)


@pytest.mark.parametrize(
    ("template", "family"),
    [
        ("{% if tools %}<tool_call>{% endif %}", "hermes"),
        ("[AVAILABLE_TOOLS] [TOOL_CALLS]", "mistral"),
        ('<|start_header_id|>{"name": x, "parameters": y}', "llama3_json"),
        ("<|im_start|>", None),
    ],
)
def test_a_template_tells_its_family(template: str, family: str | None) -> None:
    assert family_of(template) == family
