"""What the operator asks for and the model has no use of: told at start, and served all the same.

Looks at the chat template and the tokens alone: must not judge what a model was trained for.
"""

from collections.abc import Iterator

from common.config import ServeConfig
from common.text.load import TextModel
from launch.gateway.reasoning.think import CLOSE, OPEN

NO_TOOLS = (
    "this model's chat template shows no tools to the model; only tool_choice required, or one "
    "tool's name, is of use"
)
NO_THOUGHTS = (
    f"neither this model's chat template nor its tokens have {OPEN} or {CLOSE}, by which "
    "--reasoning-parser tells thoughts from the answer; of deepseek_r1 all may be told as thought"
)


def misfits(text: TextModel, config: ServeConfig) -> Iterator[tuple[str, str]]:
    """(event, detail) of each."""
    template = text.template
    parses_calls = config.tool_call_parser != "auto"
    if parses_calls and template is not None and not template.takes_tools:
        yield "tools_not_shown", NO_TOOLS
    if config.reasoning_parser != "none" and not _knows_thoughts(text):
        yield "thoughts_not_known", NO_THOUGHTS


def _knows_thoughts(text: TextModel) -> bool:
    source = "" if text.template is None else text.template.source
    tokens = text.tokenizer.vocabulary.token_bytes
    return any(mark in source or mark.encode() in tokens for mark in (OPEN, CLOSE))
