"""Tools that a client offers: what the template shows of them, what the answer is held to, and how
its text is read.
"""

import re
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from common.errors import ClientError
from common.text.grammar import of_json_schema
from launch.gateway.api.decoding import shown
from launch.gateway.api.requests import ChatRequest
from launch.gateway.api.served import Served
from launch.gateway.api.tool_bodies import AllowedToolChoice, AllowedToolSet, NamedTool, ToolBody
from launch.gateway.tools.constrained import Function, ListReader, OneCallReader, some_call
from launch.gateway.tools.families import READERS, SPECIAL_MARKS, Family, family_of
from launch.gateway.tools.reader import Reader

MISTRAL_ID_CHARS = 9
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_ANY_ARGUMENTS: dict[str, Any] = {"type": "object"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Calling:
    """How one request's tools are offered and called."""

    offered: list[dict[str, Any]]  # to the template
    new_reader: Callable[[], Reader]  # one a choice
    grammar: str = ""  # what the answer is held to, where the client insists on a call
    marks_are_special: bool = False  # the family's marks are special tokens
    ends_as_call: bool = True  # an answer with calls has finish_reason "tool_calls"
    short_ids: bool = False  # Mistral's templates take call ids of nine characters alone

    def new_id(self) -> str:
        """Of a call."""
        drawn = uuid.uuid4().hex
        return drawn[:MISTRAL_ID_CHARS] if self.short_ids else f"call_{drawn}"


def calling_of(request: ChatRequest, served: Served) -> Calling | None:
    """None: the answer is text alone. Raises ClientError."""
    choice = request.tool_choice
    if not request.tools:
        if choice not in (None, "none", "auto"):
            raise ClientError(
                f"tool_choice is {shown(choice)}, but there are no tools; offer some",
                param="tool_choice",
            )
        return None
    tools = request.tools
    functions = _functions(tools)
    if isinstance(choice, AllowedToolChoice):
        tools = _allowed(tools, choice.allowed_tools)
        functions, choice = _functions(tools), choice.allowed_tools.mode
    if choice == "none":
        return None
    offered = told(tools)
    if isinstance(choice, NamedTool):
        name = choice.function.name
        schema = dict(functions).get(name)
        if schema is None:
            raise ClientError(
                f"tool_choice names {shown(name)}, which is none of the tools; "
                f"they are {', '.join(dict(functions))}"[:500],
                param="tool_choice.function.name",
            )
        return Calling(
            offered=offered,
            new_reader=lambda: OneCallReader(name),
            grammar=of_json_schema(schema, param="tools"),
            ends_as_call=False,
        )
    if choice == "required":
        most = 1 if request.parallel_tool_calls is False else None
        grammar = of_json_schema(some_call(functions, most=most), param="tools")
        return Calling(offered=offered, new_reader=ListReader, grammar=grammar)
    family = _family(served)
    return Calling(
        offered=offered,
        new_reader=READERS[family],
        marks_are_special=family in SPECIAL_MARKS,
        short_ids=family == "mistral",
    )


def _family(served: Served) -> Family:
    if served.tool_call_parser != "auto":
        return served.tool_call_parser
    template = served.text.template
    family = None if template is None else family_of(template.source_for_tools)
    if family is None:
        raise ClientError(
            "this model's chat template tells of no way of calling tools that is known here; "
            f"start the server with --tool-call-parser ({', '.join(READERS)}), or send tool_choice "
            "required, one tool's name, or none",
            param="tools",
        )
    return family


def _functions(tools: Sequence[ToolBody]) -> list[Function]:
    functions: dict[str, dict[str, Any]] = {}
    for at, tool in enumerate(tools):
        name, param = tool.function.name, f"tools[{at}].function.name"
        if not _NAME.fullmatch(name):
            raise ClientError(
                f"{param} is {shown(name)}; it must be 1 to 64 of letters, digits, _ and -",
                param=param,
            )
        if name in functions:
            raise ClientError(f"{param} is {shown(name)}, as another tool's is", param=param)
        functions[name] = tool.function.parameters or _ANY_ARGUMENTS
    return list(functions.items())


def _allowed(tools: Sequence[ToolBody], chosen: AllowedToolSet) -> list[ToolBody]:
    by_name = {tool.function.name: tool for tool in tools}
    names = [one.function.name for one in chosen.tools]
    for n, name in enumerate(names):
        if name not in by_name:
            raise ClientError(
                f"tool_choice.allowed_tools.tools[{n}] is {shown(name)}, which is none of the "
                f"tools; they are {', '.join(by_name)}"[:500],
                param=f"tool_choice.allowed_tools.tools[{n}].function.name",
            )
    return [by_name[name] for name in dict.fromkeys(names)]


def told(tools: Sequence[ToolBody]) -> list[dict[str, Any]]:
    """As the client wrote them, for the template. Raises ClientError."""
    _functions(tools)
    return [_plain(tool) for tool in tools]


def _plain(tool: ToolBody) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(tool)
    plain["function"] = {k: v for k, v in plain["function"].items() if v is not None}
    return plain
