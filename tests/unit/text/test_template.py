"""Chat templates, held against transformers' rendering of them."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from common.errors import ClientError, SetupError
from common.text.load import TextModel
from common.text.template import ChatTemplate
from tests.unit.text.hf_directory import byte_level_backend

Messages = list[dict[str, Any]]

CHATML = (
    "{% for m in messages %}{{'<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{'<|im_start|>assistant\n'}}{% endif %}"
)
TRIMMED = CHATML.replace("m['content']", "m.content | trim")
KITCHEN_SINK = """\
{{ bos_token }}
{%- if tools %}
    {%- for tool in tools %}
{{ tool | tojson }}
{{ tool | tojson(indent=2) }}
    {%- endfor %}
{%- endif %}
{%- set ns = namespace(n=0) %}
{%- for message in messages %}
    {%- if message.role == 'skip' %}{% continue %}{% endif %}
    {%- if message.role == 'stop' %}{% break %}{% endif %}
    {%- set ns.n = ns.n + 1 %}
    {% generation %}
{{ ns.n }} {{ message['role'] | upper }}: {{ message.content | trim }} {{ message.name is defined }}
    {% endgeneration %}
{%- endfor %}
{{ eos_token }} {{ thinking | default('no thoughts') }} {{ missing }}
"""
PARTS = (
    "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for part in m.content %}[{{ part.text }}]{% endfor %}{% endif %}{% endfor %}"
)
PARTS_ONLY = (
    "{% for m in messages %}{% for p in m['content'] %}[{{ p.text }}]{% endfor %}{% endfor %}"
)
PARTS_IN_MACRO = (
    "{% macro show(content) %}{% if content is string %}{{ content }}{% else %}"
    "{% for part in content %}[{{ part.text }}]{% endfor %}{% endif %}{% endmacro %}"
    "{% for m in messages %}{{ show(m.content) }}{% endfor %}"
)
NAMES = {"bos_token": "<s>", "eos_token": "</s>"}
TOOLS = [{"type": "function", "function": {"name": "f<&>", "parameters": {"b": 1, "a": "\u00e9"}}}]

CONVERSATIONS: list[Messages] = [
    [{"role": "user", "content": "What is the capital of France?"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": " Hi \n"}],
    [
        {"role": "user", "content": "1"},
        {"role": "assistant", "content": "one <|im_end|>"},
        {"role": "user", "content": "<b>\u65e5\u672c</b> & '\"{{ 7 * 7 }}"},
    ],
    [
        {"role": "skip", "content": "a"},
        {"role": "user", "content": "b", "name": "Ann"},
        {"role": "stop", "content": "c"},
        {"role": "user", "content": "d", "name": None},
    ],
]


def template(source: str = CHATML, names: Mapping[str, str] = NAMES) -> ChatTemplate:
    return ChatTemplate({"default": source}, names)


def user(content: object) -> Messages:
    return [{"role": "user", "content": content}]


def transformers_rendering(
    source: str, messages: Messages, names: Mapping[str, str], options: Mapping[str, Any]
) -> str:
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=byte_level_backend(), **names)
    return str(
        tokenizer.apply_chat_template(messages, chat_template=source, tokenize=False, **options)
    )


@pytest.mark.parametrize("messages", CONVERSATIONS)
@pytest.mark.parametrize("prompted", [False, True])
def test_the_default_models_prompts_are_those_of_transformers(
    smollm2: TextModel, default_model_template: str, messages: Messages, *, prompted: bool
) -> None:
    assert smollm2.template is not None
    names = smollm2.tokenizer.vocabulary.special_tokens
    expected = transformers_rendering(
        default_model_template, messages, names, {"add_generation_prompt": prompted}
    )
    assert smollm2.template.render(messages, add_generation_prompt=prompted) == expected


@pytest.mark.parametrize("messages", CONVERSATIONS)
@pytest.mark.parametrize("source", [CHATML, KITCHEN_SINK])
@pytest.mark.parametrize("tools", [None, TOOLS])
def test_a_template_has_what_transformers_gives_it(
    source: str, messages: Messages, tools: list[dict[str, Any]] | None
) -> None:
    ours = template(source).render(messages, tools=tools, options={"thinking": ["deep"]})
    assert ours == transformers_rendering(
        source,
        messages,
        NAMES,
        {"tools": tools, "thinking": ["deep"], "add_generation_prompt": True},
    )


@pytest.mark.parametrize("content", ["It is", " It is ", "a\n", [{"type": "text", "text": "x "}]])
@pytest.mark.parametrize(
    "source", [CHATML, PARTS, CHATML.replace("m['content']", "m.content|trim")]
)
def test_a_final_message_is_continued_as_transformers_continues_it(
    source: str, content: object
) -> None:
    messages = [*user("Where? It is"), {"role": "assistant", "content": content}]
    if isinstance(content, list) and source != PARTS:
        messages[-1]["content"] = content[0]["text"]
    ours = template(source).render(
        messages, add_generation_prompt=False, continue_final_message=True
    )
    assert ours == transformers_rendering(source, messages, NAMES, {"continue_final_message": True})


@pytest.mark.parametrize("content", ["", " \n", [], None])
def test_nothing_cannot_be_continued(content: object) -> None:
    messages: Messages = [{"role": "assistant", "content": content, "tool_calls": [1]}]
    with pytest.raises(ClientError) as raised:
        template("x").render(messages, continue_final_message=True)
    assert raised.value.param == "continue_final_message"


def test_a_template_that_changes_the_final_message_cannot_continue_it() -> None:
    with pytest.raises(ClientError, match="changes the last message's text"):
        template("{{ messages[0].content | upper }}").render(
            user("shout"), continue_final_message=True
        )


def test_a_template_may_ask_for_the_date() -> None:
    source = "{{ strftime_now('%Y') }}"
    assert int(template(source).render(user(""))) in (datetime.now().year, datetime.now().year - 1)


def test_a_template_for_tools_is_taken_when_there_are_tools() -> None:
    chat = ChatTemplate({"default": "plain", "tool_use": "tools: {{ tools | length }}"}, {})
    assert chat.render(user("")) == "plain"
    assert chat.render(user(""), tools=TOOLS) == "tools: 1"


@pytest.mark.parametrize(
    ("source", "content", "expected"),
    [
        (CHATML, ["a", {"type": "text", "text": "b"}], "<|im_start|>user\na\nb<|im_end|>\n"),
        (PARTS, [{"type": "text", "text": "a"}, "b"], "[a][b]"),
        (PARTS, "a", "a"),
        (PARTS_ONLY, "ab", "[ab]"),
        (PARTS_ONLY, [{"type": "text", "text": "ab"}], "[ab]"),
        (PARTS_IN_MACRO, [{"type": "text", "text": "a"}], "[a]"),
        (
            "{% set c = messages[0].content %}{% for p in c %}[{{ p.text }}]{% endfor %}",
            ["a"],
            "[a]",
        ),
        ("{% for p in messages[0].content|list %}[{{ p.text }}]{% endfor %}", ["a"], "[a]"),
        ("{% for w in messages[0].content.split(' ') %}[{{ w }}]{% endfor %}", "a b", "[a][b]"),
    ],
)
def test_content_comes_in_the_form_that_the_template_reads(
    source: str, content: object, expected: str
) -> None:
    assert template(source).render(user(content), add_generation_prompt=False) == expected


@pytest.mark.parametrize(
    ("source", "content", "message"),
    [
        ("{{ raise_exception('Roles must alternate') }}", "", "Roles must alternate"),
        (CHATML, 5, "template refuses"),
        (
            CHATML,
            [{"type": "image_url", "image_url": {}}],
            r"messages\[0\].*'image_url'; only text",
        ),
        (CHATML, [{"type": "text"}], "only text parts"),
        (CHATML, [7], "'int'; only text"),
        ("{{ messages[0].content.__class__.__mro__ }}", "", "unsafe"),
        ("{{ messages.append(1) }}", "", "unsafe"),
        ("{% for n in range(1000000) %}{% endfor %}", "", "Range too big"),
        ("{{ nothing.at.all }}", "", "undefined"),
        ("{{ 1 // 0 }}", "", "by zero"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "", "recursion"),
    ],
)
def test_what_a_template_refuses_is_the_clients_error(
    source: str, content: object, message: str
) -> None:
    with pytest.raises(ClientError, match=message) as caught:
        template(source).render(user(content))
    assert str(caught.value.param).startswith("messages")


def test_an_empty_conversation_is_the_clients_error() -> None:
    with pytest.raises(ClientError, match="empty"):
        template().render([])


def test_a_client_cannot_set_what_is_ours() -> None:
    with pytest.raises(ClientError, match="messages"):
        template().render(user("a"), options={"messages": []})
    with pytest.raises(ClientError, match="chat_template"):
        template().render(user("a"), options={"chat_template": "b"})


def test_the_clients_messages_are_left_as_they_were() -> None:
    messages = user([{"type": "text", "text": "a"}])
    template().render(messages)
    assert messages == user([{"type": "text", "text": "a"}])


def test_a_template_that_is_not_one_is_refused_at_start() -> None:
    with pytest.raises(SetupError, match="not valid jinja2"):
        template("{% if %}")
    with pytest.raises(SetupError, match="too many statically nested blocks"):  # Python's limit
        template("{% for a in b %}" * 25 + "{% endfor %}" * 25)
    with pytest.raises(SetupError, match="none is named default"):
        ChatTemplate({"rag": "x"}, {})


def test_threads_may_share_a_template() -> None:
    chat = template(KITCHEN_SINK)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda n: chat.render(CONVERSATIONS[n % 4]), range(200)))
    assert found == [chat.render(CONVERSATIONS[n % 4]) for n in range(200)]
