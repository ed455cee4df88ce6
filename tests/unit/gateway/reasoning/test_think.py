"""Thoughts and answers, however they are cut, and how a prompt may begin them."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.values import ReasoningParser
from launch.gateway.reasoning.think import ThinkReader, begins_thinking
from launch.gateway.tools.hermes import HermesReader
from launch.gateway.tools.reader import Said

WRITTEN = [  # (from the first character on, what is written, thought, said)
    (True, "so\n</think>\n\nYes", "so\n", "\n\nYes"),
    (True, "<think>so</think>Yes", "so", "Yes"),
    (True, " \n<think>\nso</think>Yes", "\nso", "Yes"),
    (True, "it goes on", "it goes on", ""),
    (True, "</think>Yes", "", "Yes"),
    (True, "a < b </thin", "a < b </thin", ""),
    (True, "<thi", "<thi", ""),
    (True, "", "", ""),
    (False, "<think>so</think>\n\nYes", "so", "\n\nYes"),
    (False, "\n<think>so", "so", ""),
    (False, "<think>", "", ""),
    (False, "Yes, <think>no</think>", "", "Yes, <think>no</think>"),
    (False, " Yes", "", " Yes"),
    (False, "<thinker", "", "<thinker"),
    (False, "<th", "", "<th"),
    (False, "so</think>Yes", "", "so</think>Yes"),
    (False, "<think>a</think>b</think><think>", "a", "b</think><think>"),
]


@pytest.mark.parametrize(("inside", "written", "thought", "said"), WRITTEN)
@given(data=st.data())
def test_thoughts_are_told_apart_however_they_are_cut(
    inside: bool,  # noqa: FBT001
    written: str,
    thought: str,
    said: str,
    data: st.DataObject,
) -> None:
    cuts = data.draw(st.lists(st.integers(0, len(written)), max_size=6))
    at = sorted([0, *cuts, len(written)])
    reader = ThinkReader(inside=inside, then=None)
    told = Said()
    for begin, end in pairwise(at):
        told += reader.push(written[begin:end])
    told += reader.finish()
    assert (told.reasoning, told.text) == (thought, said)


def test_nothing_is_held_back_that_cannot_be_a_mark() -> None:
    reader = ThinkReader(inside=True, then=None)
    assert reader.push("so </th") == Said(reasoning="so ")
    assert reader.push("ere") == Said(reasoning="</there")
    assert reader.push(" </think>Yes") == Said("Yes", reasoning=" ")
    assert reader.push("</th") == Said("</th")


def test_calls_are_read_behind_thoughts_alone() -> None:
    reader = ThinkReader(inside=False, then=HermesReader())
    call = '<tool_call>{"name": "time", "arguments": {}}</tool_call>'
    told = reader.push(f"<think>I could {call}</think>{call}") + reader.finish()
    assert told.reasoning == f"I could {call}"
    assert (told.text, [part.name for part in told.calls]) == ("", ["time"])
    plain = ThinkReader(inside=False, then=HermesReader())
    held = plain.push("<tool_call>{oops") + plain.finish()
    assert held == Said("<tool_call>{oops")


def test_it_says_when_what_comes_next_may_be_thought() -> None:
    reader = ThinkReader(inside=False, then=None)
    assert not reader.thinks
    reader.push("<think>")
    assert reader.thinks
    reader.push("so</think>")
    assert not reader.thinks
    assert ThinkReader(inside=True, then=None).thinks


@pytest.mark.parametrize(
    ("parser", "tail", "begins"),
    [
        ("none", "<think>\n", None),
        ("qwen3", "assistant\n", False),
        ("qwen3", "assistant\n<think>\n", True),
        ("qwen3", "assistant\n<think>\n\n</think>\n\n", None),
        ("deepseek_r1", "<assistant>", True),
        ("deepseek_r1", "<assistant><think>\n", True),
        ("deepseek_r1", "<assistant></think>", None),
        ("deepseek_r1", "what is <think>?<assistant>", True),
        ("qwen3", "what is <think>?<|im_end|>\n<|im_start|>assistant\n", False),
    ],
)
def test_a_prompt_may_have_begun_to_think(
    parser: ReasoningParser,
    tail: str,
    begins: bool | None,  # noqa: FBT001
) -> None:
    assert begins_thinking(parser, tail) is begins
