"""From a checked body of /v1/responses to a chat, whose way it goes from there.

Pure but for tokenisation, and slow for that: called in a worker thread.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from common.errors import ClientError
from launch.gateway.api.decoding import shown
from launch.gateway.api.form_bodies import JsonSchemaBody, ResponseFormat
from launch.gateway.api.item_conversation import conversation
from launch.gateway.api.item_request import (
    LOGPROBS,
    AllowedTools,
    ChosenFunction,
    FunctionTool,
    ItemRequest,
    TextOptions,
    refuse_unsupported,
)
from launch.gateway.api.prepare import Prepared, prepare_chat
from launch.gateway.api.requests import ChatRequest, Drawing, StreamOptions
from launch.gateway.api.served import Served
from launch.gateway.api.tool_bodies import FunctionBody, FunctionName, NamedTool, ToolBody
from launch.gateway.transfers import Fields

Mode = Literal["none", "auto", "required"]
_RENAMED = (  # what chats call otherwise, as their errors name it
    ("max_completion_tokens", "max_output_tokens"),
    ("response_format.json_schema", "text.format"),
    ("response_format", "text.format"),
    (".function.name", ".name"),
)


def prepare_items(request: ItemRequest, served: Served) -> Prepared:
    """Raises ClientError, which names fields as they are here."""
    refuse_unsupported(request)
    chat = as_chat(request)
    try:
        prepared = prepare_chat(chat, served)
    except ClientError as error:
        raise _renamed(error) from error
    fields = Fields(prompt="input", max_tokens="max_output_tokens")
    return replace(prepared, items=request, fields=fields)


def as_chat(request: ItemRequest) -> ChatRequest:
    """Raises ClientError."""
    shared: Mapping[str, Any] = {name: getattr(request, name) for name in Drawing.__struct_fields__}
    scores = LOGPROBS in (request.include or ())
    tools, choice = _tools(request)
    options = request.stream_options
    return ChatRequest(
        **shared,
        messages=conversation(request),
        max_completion_tokens=request.max_output_tokens,
        logprobs=scores,
        top_logprobs=request.top_logprobs if scores else None,
        response_format=_format(request.text),
        tools=tools,
        tool_choice=choice,
        parallel_tool_calls=request.parallel_tool_calls,
        chat_template_kwargs=request.chat_template_kwargs,
        stream_options=None if options is None else StreamOptions(),
    )


def _format(text: TextOptions | None) -> ResponseFormat | None:
    asked = None if text is None else text.format
    if asked is None:
        return None
    if asked.type != "json_schema":
        return ResponseFormat(type=asked.type)
    if asked.schema is None:
        raise ClientError(
            "text.format of type json_schema needs schema", param="text.format.schema"
        )
    return ResponseFormat(type=asked.type, json_schema=JsonSchemaBody(schema=asked.schema))


def _tools(
    request: ItemRequest,
) -> tuple[list[ToolBody] | None, Mode | NamedTool | None]:
    tools, choice = request.tools, request.tool_choice
    match choice:
        case ChosenFunction(name=name):
            named = NamedTool(function=FunctionName(name=name))
            return _offered(tools), named
        case AllowedTools(mode=mode):
            return _offered(_allowed(tools or [], choice)), mode
        case _:
            return _offered(tools), choice


def _allowed(tools: Sequence[FunctionTool], choice: AllowedTools) -> list[FunctionTool]:
    by_name = {tool.name: tool for tool in tools}
    for n, allowed in enumerate(choice.tools):
        if allowed.name not in by_name:
            raise ClientError(
                f"tool_choice.tools[{n}] is {shown(allowed.name)}, which is none of the tools; "
                f"they are {', '.join(by_name)}"[:500],
                param=f"tool_choice.tools[{n}].name",
            )
    return [by_name[name] for name in dict.fromkeys(allowed.name for allowed in choice.tools)]


def _offered(tools: Sequence[FunctionTool] | None) -> list[ToolBody] | None:
    if tools is None:
        return None
    return [
        ToolBody(
            type="function",
            function=FunctionBody(
                name=tool.name,
                description=tool.description,
                parameters=tool.parameters,
                strict=tool.strict,
            ),
        )
        for tool in tools
    ]


def _renamed(error: ClientError) -> ClientError:
    message, param = str(error), error.param
    for chats, ours in _RENAMED:
        message = message.replace(chats, ours)
        param = None if param is None else param.replace(chats, ours)
    if param is not None and param.startswith("messages"):
        message, param = message.replace("messages is empty", "input is empty"), "input"
    return ClientError(message, param=param, status=error.status)
