"""The jinja2 sandbox of chat templates, with what Hugging Face's templates expect in it.

A template comes with the model, never from a client, yet is a stranger's program. The sandbox
gives it values and no way to Python, files or the process; it may change none of them, and a
`range` is at most 100,000 long. It does not bound time or memory: nested loops or a string times
a large number can hold a thread or exhaust the process, so a model directory is to be trusted as
far as that. Must know nothing of messages.
"""

import json
from datetime import datetime

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment


class _GenerationBlock(jinja2.ext.Extension):
    """`{% generation %}` marks what the assistant said, for training. Here it is just text."""

    tags = {"generation"}  # noqa: RUF012 -- declared so by jinja2

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)  # local time, as the models' training had it


def _to_json(
    value: object,
    ensure_ascii: bool = False,  # noqa: FBT001, FBT002 -- called so by templates
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,  # noqa: FBT001, FBT002
) -> str:
    """jinja2's own filter escapes HTML, and sorts keys."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def chat_environment() -> jinja2.Environment:
    """An environment in which a template renders as it does in transformers."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_GenerationBlock, jinja2.ext.loopcontrols],
        autoescape=False,  # the output is a prompt, not HTML
    )
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    environment.filters["tojson"] = _to_json
    return environment
