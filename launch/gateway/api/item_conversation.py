"""Items that a client sends, as the messages that chats and their templates have.

What one turn of the model's has given (thoughts, text, calls) are items of their own, and one
message of a chat.
"""

from collections.abc import Mapping
from typing import Any, Literal, TypeVar

import msgspec

from common.errors import ClientError
from launch.gateway.api.decoding import shown
from launch.gateway.api.item_request import ItemRequest

Message = dict[str, Any]
TEXTS = ("input_text", "output_text", "text", "reasoning_text", "summary_text")
"""Kinds of parts that have a `text`."""


class _Message(msgspec.Struct):
    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[dict[str, Any]]


class _Call(msgspec.Struct):
    call_id: str
    name: str
    arguments: str = ""


class _Output(msgspec.Struct):
    call_id: str
    output: str | list[dict[str, Any]]


class _Thought(msgspec.Struct):
    content: list[dict[str, Any]] | None = None
    summary: list[dict[str, Any]] | None = None


_Item = TypeVar("_Item", _Message, _Call, _Output, _Thought)


def conversation(request: ItemRequest) -> list[Message]:
    """Raises ClientError, which names the item that is wrong."""
    messages: list[Message] = []
    if request.instructions is not None:
        messages.append({"role": "system", "content": request.instructions})
    if isinstance(request.input, str):
        return [*messages, {"role": "user", "content": request.input}]
    if not request.input:
        raise ClientError("input is empty; give at least one item", param="input")
    for n, item in enumerate(request.input):
        _add(messages, item, f"input[{n}]")
    return messages


def _add(messages: list[Message], item: Mapping[str, Any], where: str) -> None:
    """Items have ids and states, too, when a client sends back what it was given."""
    kind = item.get("type", "message")
    match kind:
        case "message":
            told = _read(item, _Message, where)
            content = _texts(told.content, f"{where}.content")
            if told.role == "assistant":
                _turn(messages, begun_by=("reasoning_content",))["content"] = content
            else:
                role = "system" if told.role == "developer" else told.role
                messages.append({"role": role, "content": content})
        case "reasoning":
            thought = _read(item, _Thought, where)
            parts = _texts(thought.content or thought.summary or [], f"{where}.content")
            text = "\n".join(part["text"] for part in parts if isinstance(part, dict))
            messages.append({"role": "assistant", "content": "", "reasoning_content": text})
        case "function_call":
            call = _read(item, _Call, where)
            turn = _turn(messages, begun_by=("reasoning_content", "content", "tool_calls"))
            turn.setdefault("tool_calls", []).append(_called(call, where))
        case "function_call_output":
            output = _read(item, _Output, where)
            content = _texts(output.output, f"{where}.output")
            messages.append({"role": "tool", "tool_call_id": output.call_id, "content": content})
        case _:
            raise ClientError(
                f"{where}.type is {shown(kind)}; it must be one of message, function_call, "
                "function_call_output and reasoning: nothing else is kept or run here",
                param=f"{where}.type",
            )


def _turn(messages: list[Message], *, begun_by: tuple[str, ...]) -> Message:
    """The model's turn that the next item belongs to: the last message, if no more than that is in
    it, else a new one."""
    last = messages[-1] if messages else {}
    others = {name for name, value in last.items() if value} - {"role", *begun_by}
    if last.get("role") == "assistant" and not others:
        return last
    messages.append({"role": "assistant", "content": ""})
    return messages[-1]


def _called(call: _Call, where: str) -> dict[str, Any]:
    param = f"{where}.arguments"
    try:
        arguments = msgspec.json.decode(call.arguments or "{}", type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError) as error:
        raise ClientError(f"{param} is no JSON object: {error}", param=param) from error
    function = {"name": call.name, "arguments": arguments}
    return {"id": call.call_id, "type": "function", "function": function}


def _texts(content: str | list[dict[str, Any]], where: str) -> Any:  # noqa: ANN401 - as it came
    """Its parts as those of a chat; a text as it is."""
    if isinstance(content, str):
        return content
    return [_text(part, f"{where}[{n}]") for n, part in enumerate(content)]


def _text(part: Mapping[str, Any], where: str) -> dict[str, str]:
    kind = part.get("type")
    text = part.get("refusal" if kind == "refusal" else "text")
    if kind in (*TEXTS, "refusal") and isinstance(text, str):
        return {"type": "text", "text": text}
    raise ClientError(
        f"{where} is of type {shown(kind)}; only texts are supported, as input_text and "
        "output_text have them",
        param=f"{where}.type",
    )


def _read(item: Mapping[str, Any], kind: type[_Item], where: str) -> _Item:
    try:
        return msgspec.convert(item, kind)
    except msgspec.ValidationError as error:
        raise ClientError(f"{where}: {error}", param=where) from error
