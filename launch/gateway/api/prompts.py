"""From what a client wrote to token ids: texts, ids, conversations. Raises ClientError.

Slow where there is much to tokenize. Must know nothing of how tokens are drawn.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from common.errors import ClientError, ContextOverflow, SetupError
from common.text.load import TextModel
from common.text.template import ChatTemplate
from common.text.tokenizer import check_prompt_ids
from launch.gateway.api.decoding import shown
from launch.gateway.api.requests import MAX_CHOICES, ChatRequest, CompletionRequest, Sampling
from launch.gateway.api.served import Served

MIN_TEXT_CHARS = 2**20  # of them, however short the context is
TEXT_CHARS_PER_TOKEN = 8  # twice what a token of prose has: what is too long can still be counted


class _MadeFunction(msgspec.Struct):
    name: str
    arguments: str | dict[str, Any]


class _Made(msgspec.Struct):
    """`messages[].tool_calls[]`"""

    function: _MadeFunction
    id: str | None = None


Encoded = tuple[tuple[int, ...], str | None]
"""A prompt's ids, and its text as the client wrote it; None: it sent ids, or some were left out."""


def completion_prompts(request: CompletionRequest, served: Served, room: int) -> list[Encoded]:
    """`room`: tokens that a prompt may have, where the client leaves its length to us."""
    prompts = _prompts(request.prompt)
    check_choices(len(prompts), request)
    if request.truncate_prompt_tokens is not None:
        n_chars = sum(len(prompt) for prompt in prompts if isinstance(prompt, str))
        check_text_length(n_chars, served.max_model_len, param="prompt")
    return [_truncated(_encoded(one, request, served), request, room) for one in prompts]


def check_choices(n_prompts: int, request: CompletionRequest) -> None:
    """Before any of them costs time. Raises ClientError: there are too many."""
    n = request.best_of or request.n or 1
    if n_prompts * n > MAX_CHOICES:
        name = "n" if request.best_of is None else "best_of"
        raise ClientError(
            f"{n_prompts} prompts with {name} {n} make {n_prompts * n} choices; at most "
            f"{MAX_CHOICES} in one request",
            param="prompt",
        )


def chat_prompt(
    request: ChatRequest, served: Served, room: int, tools: Sequence[Mapping[str, Any]] | None
) -> Encoded:
    """The conversation in the model's own form, which tells it of `tools`."""
    text = chat_text(request, served.text, tools)
    adds = request.add_special_tokens
    ids = _encode(text, request, served, param="messages", add_special_tokens=adds)
    return _truncated((ids, None), request, room)


def chat_text(
    request: ChatRequest, text: TextModel, tools: Sequence[Mapping[str, Any]] | None
) -> str:
    """The same as text, by the template of `text`."""
    if text.template is None:
        raise ClientError(
            "this model has no chat template; give one with --chat-template, or use "
            "/v1/completions",
            param="messages",
        )
    _check_messages(request.messages)
    goes_on = request.continue_final_message
    if goes_on and request.add_generation_prompt:
        raise ClientError(
            "continue_final_message and add_generation_prompt are both true; ask for one",
            param="continue_final_message",
        )
    return text.template.render(
        [_as_templates_want(message, n) for n, message in enumerate(request.messages)],
        tools=tools,
        documents=request.documents,
        add_generation_prompt=not goes_on and request.add_generation_prompt is not False,
        continue_final_message=goes_on,
        options=request.chat_template_kwargs,
    )


def check_text_length(n_chars: int, max_model_len: int | None, *, param: str) -> None:
    """Of a text that is encoded though it may be longer than the context: encoding takes 150 times
    its size. Raises ClientError."""
    most = max(MIN_TEXT_CHARS, TEXT_CHARS_PER_TOKEN * (max_model_len or 0))
    if n_chars > most:
        raise ClientError(
            f"{param} has {n_chars} characters; at most {most} are made tokens at once", param=param
        )


def with_template(text: TextModel, source: str | None, *, trusted: bool) -> TextModel:
    """`text`, of which chats are rendered as a client says; None: as the model has it."""
    if source is None:
        return text
    if not trusted:
        raise ClientError(
            "chat_template is a program, and this server runs none of a client's; leave it out, or "
            "start the server with --trust-request-chat-template",
            param="chat_template",
        )
    try:
        tokens = text.tokenizer.vocabulary.special_tokens
        template = ChatTemplate({"default": source}, tokens, param="chat_template")
    except SetupError as error:
        raise ClientError(f"chat_template: {error}", param="chat_template") from error
    return replace(text, template=template)


def _as_templates_want(message: Mapping[str, Any], n: int) -> Mapping[str, Any]:
    """Of calls that were made, clients send back the arguments as text; templates want an object.
    Beside them they send no content; many a template adds it to its text, unseen. Thoughts have two
    names, and a template knows one of them."""
    if message.get("content") is None:
        message = {**message, "content": ""}
    thought = message.get("reasoning") or message.get("reasoning_content")
    if thought is not None:
        message = {**message, "reasoning": thought, "reasoning_content": thought}
    calls = message.get("tool_calls")
    if calls is None:
        return message
    param = f"messages[{n}].tool_calls"
    try:
        told = msgspec.convert(calls, list[_Made])
    except msgspec.ValidationError as error:
        raise ClientError(f"{param}: {error}", param=param) from error
    made: list[dict[str, Any]] = []
    for at, call in enumerate(told):
        arguments = call.function.arguments
        if isinstance(arguments, str):
            try:
                arguments = msgspec.json.decode(arguments or "{}", type=dict[str, Any])
            except (msgspec.DecodeError, RecursionError) as error:
                named = f"{param}[{at}].function.arguments"
                raise ClientError(f"{named} is no JSON object: {error}", param=named) from error
        function = {"name": call.function.name, "arguments": arguments}
        made.append({"id": call.id, "type": "function", "function": function})
    return {**message, "tool_calls": made}


def _check_messages(messages: Sequence[Mapping[str, Any]]) -> None:
    """What every template takes for granted."""
    for n, message in enumerate(messages):
        role, content = message.get("role"), message.get("content")
        if not isinstance(role, str) or not role:
            raise ClientError(
                f"messages[{n}].role is {shown(role)}; it must be a name such as user",
                param=f"messages[{n}].role",
            )
        silent = content is None and _calls(message)
        if not silent and not isinstance(content, str | list):
            raise ClientError(
                f"messages[{n}].content is {shown(content)}; it must be a text or a list of parts",
                param=f"messages[{n}].content",
            )


def _calls(message: Mapping[str, Any]) -> bool:
    """Whether it says something without any content."""
    calls, call = message.get("tool_calls"), message.get("function_call")
    return (isinstance(calls, list) and bool(calls)) or (isinstance(call, dict) and bool(call))


def _prompts(prompt: str | list[str | int | list[int]]) -> list[str | list[int]]:
    """One kind of four: a text, texts, ids, lists of ids. The type cannot say it."""
    if isinstance(prompt, str):
        return [prompt]
    kinds = {type(item) for item in prompt}
    if not prompt:
        raise ClientError("prompt is an empty list; give at least one", param="prompt")
    if len(kinds) > 1:
        raise ClientError(
            "prompt mixes kinds; give a text, a list of texts, a list of token ids or a list of "
            "such lists",
            param="prompt",
        )
    if kinds == {int}:
        return [[item for item in prompt if isinstance(item, int)]]
    return [item for item in prompt if not isinstance(item, int)]


def _encoded(prompt: str | list[int], request: CompletionRequest, served: Served) -> Encoded:
    if isinstance(prompt, str):
        adds = request.add_special_tokens
        ids = _encode(prompt, request, served, param="prompt", add_special_tokens=adds)
        return ids, prompt
    if not prompt:
        raise ClientError("a prompt has no tokens; give at least one", param="prompt")
    check_prompt_ids(prompt, vocab_size=served.text.vocab_size, param="prompt")
    return tuple(prompt), None


def _truncated(encoded: Encoded, request: Sampling, room: int) -> Encoded:
    """Its last tokens, or its first, where it has more than the client wants of it."""
    ids, _ = encoded
    most = request.truncate_prompt_tokens
    if most is None:
        return encoded
    if most == 0:
        raise ClientError(
            "truncate_prompt_tokens is 0, which leaves nothing; give 1 or more, or -1: as many as "
            "fit",
            param="truncate_prompt_tokens",
        )
    kept = max(1, room) if most == -1 else most
    if len(ids) <= kept:
        return encoded
    return (ids[:kept] if request.truncation_side == "right" else ids[-kept:]), None


def _encode(
    text: str, request: Sampling, served: Served, *, param: str, add_special_tokens: bool
) -> tuple[int, ...]:
    tokenizer = served.text.tokenizer
    fewest = tokenizer.fewest_tokens(text)
    hopeless = fewest > served.max_model_len and request.truncate_prompt_tokens is None
    if hopeless:  # not worth the time to count it exactly
        raise ContextOverflow(fewest, 1, served.max_model_len, param=param)
    if request.truncate_prompt_tokens is not None:
        check_text_length(len(text), served.max_model_len, param=param)
    try:
        ids = tuple(tokenizer.encode(text, add_special_tokens=add_special_tokens))
    except ClientError as error:
        raise ClientError(str(error), param=param) from error
    if not ids:
        raise ClientError("a prompt has no tokens; give at least one", param=param)
    return ids
