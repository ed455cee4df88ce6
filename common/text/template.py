"""A model's chat template: messages in, the prompt's text out.

Whatever is wrong with a conversation is the client's error, in the template's own words where it
has some. Must not tokenize: the text is encoded without adding special tokens, which the template
has written.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jinja2
from jinja2 import nodes

from common.errors import ClientError, SetupError
from common.text.template_environment import chat_environment

Message = Mapping[str, Any]

_OURS = frozenset(("messages", "tools", "documents", "add_generation_prompt", "chat_template"))
_COMPILE_ERRORS = (
    jinja2.TemplateError,
    MemoryError,  # nested deeper than Python's own parser goes, as are the next two
    RecursionError,
    SyntaxError,
    ArithmeticError,  # of constants, which are computed at once
    TypeError,
    ValueError,
)
_RENDER_ERRORS = (
    jinja2.TemplateError,  # the template's own refusal, an undefined value, the sandbox's veto
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)


class ChatTemplate:
    """Immutable. `render` may be called from any thread."""

    def __init__(
        self,
        sources: Mapping[str, str],
        special_tokens: Mapping[str, str],
        *,
        param: str | None = None,
    ) -> None:
        """sources  name -> jinja2; "default" is used, or "tool_use" (if there) when tools are given
        special_tokens  what templates know as bos_token, eos_token, ...
        param  the request's field that it came in; None: the model has it"""
        if "default" not in sources:
            raise SetupError(f"of the chat templates {sorted(sources)} none is named default")
        self.source = sources["default"]
        self.source_for_tools = sources.get("tool_use", sources["default"])
        environment = chat_environment()
        try:
            self._variants = {
                name: _Variant(environment, source) for name, source in sources.items()
            }
        except _COMPILE_ERRORS as error:
            raise SetupError(f"the chat template is not valid jinja2: {error}") from error
        self.takes_tools = self._variants.get("tool_use", self._variants["default"]).names_tools
        self._special_tokens = dict(special_tokens)
        self._whose = "the model's" if param is None else "the request's"
        self._param = param

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt. Raises `ClientError` if the template refuses the conversation.

        continue_final_message  the text ends where the last message's content does
        options  further names that a template may ask for (a client's `chat_template_kwargs`)
        """
        options = options or {}
        if taken := _OURS & options.keys():
            raise ClientError(
                f"{sorted(taken)} cannot be set among a template's options",
                param="chat_template_kwargs",
            )
        if not messages:
            raise ClientError("messages is empty; give at least one", param="messages")
        variant = self._variants["default"]
        if tools is not None:
            variant = self._variants.get("tool_use", variant)
        plain = [_plain_message(message, n, variant) for n, message in enumerate(messages)]
        try:
            text = variant.template.render(
                {**self._special_tokens, **options},  # `self` is a name like others
                messages=plain,
                tools=tools,
                documents=documents,
                add_generation_prompt=add_generation_prompt,
            )
        except _RENDER_ERRORS as error:
            raise ClientError(
                f"{self._whose} chat template refuses this conversation: {error}",
                param=self._param or "messages",
            ) from error
        return _cut_after(text, plain[-1]) if continue_final_message else text


class _Variant:
    """One compiled template, and the form in which it wants a message's content."""

    def __init__(self, environment: jinja2.Environment, source: str) -> None:
        tree = environment.parse(source)
        self.takes_parts = _loops_over_content(tree)
        self.takes_text = not self.takes_parts or any(
            test.name == "string" for test in tree.find_all(nodes.Test)
        )
        self.names_tools = any(name.name == "tools" for name in tree.find_all(nodes.Name))
        self.template = environment.from_string(source)


def _plain_message(message: Message, position: int, variant: _Variant) -> dict[str, Any]:
    """The message without keys that are null, its content in the form that the template wants."""
    plain = {key: value for key, value in message.items() if value is not None}
    content = plain.get("content")
    if isinstance(content, str) and not variant.takes_text:
        plain["content"] = [_text_part(content)]
    elif isinstance(content, list | tuple):
        texts = [_text_of(part, position) for part in content]
        plain["content"] = (
            [_text_part(text) for text in texts] if variant.takes_parts else "\n".join(texts)
        )
    return plain


def _cut_after(text: str, message: Mapping[str, Any]) -> str:
    """The rendered conversation up to the end of its last message's content. Where the template has
    stripped that, it ends with the last character that was kept."""
    content: object = message.get("content")
    if isinstance(content, list):  # of text parts: see `_plain_message`
        content = content[-1]["text"] if content else ""
    if not isinstance(content, str) or not content.strip():
        raise ClientError(
            "the last message has no text to be continued; leave continue_final_message out",
            param="continue_final_message",
        )
    at = text.rfind(content.strip())
    if at < 0:
        raise ClientError(
            "the model's chat template changes the last message's text, which therefore cannot be "
            "continued; leave continue_final_message out",
            param="continue_final_message",
        )
    whole = content.lstrip()
    return text[: at + len(whole if text.startswith(whole, at) else content.strip())]


def _text_part(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def _text_of(part: object, position: int) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
    if isinstance(part, Mapping) and kind == "text" and isinstance(part.get("text"), str):
        return part["text"]
    raise ClientError(
        f"messages[{position}].content has a part of type {repr(kind)[:60]}; only text parts are "
        "supported",
        param=f"messages[{position}].content",
    )


def _loops_over_content(template: nodes.Template) -> bool:
    """Whether the template goes through a message's content part by part, so that it wants a list.

    Seen from its loops alone, as vLLM does it: over `message.content`, a filter of it, or a name
    that stands for it.
    """
    names = {"content"} | {
        assign.target.name
        for assign in template.find_all(nodes.Assign)
        if isinstance(assign.target, nodes.Name) and _is_content(assign.node, frozenset())
    }
    return any(_is_content(loop.iter, frozenset(names)) for loop in template.find_all(nodes.For))


def _is_content(node: nodes.Node | None, names: frozenset[str]) -> bool:
    match node:
        case nodes.Filter():
            return _is_content(node.node, names)
        case nodes.Getattr():
            return node.attr == "content"
        case nodes.Getitem():
            return isinstance(node.arg, nodes.Const) and node.arg.value == "content"
        case nodes.Name():
            return node.name in names
        case _:
            return False
