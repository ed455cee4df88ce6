"""Tagged parts of a text that are held to schemas, wherever they begin: structural tags, as vLLM
and SGLang take them. Over `llguidance`. Must not read a request.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from llguidance import StructTag

from common.errors import ClientError
from common.text.grammar import Schema, of_json_schema

_MAX_SHOWN_CHARS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Tagged:
    """What stands between `begin` and `end` is JSON of the schema."""

    begin: str
    schema: Schema
    end: str
    param: str  # the schema's place in the request


def of_structural_tags(tags: Sequence[Tagged], triggers: Sequence[str], *, param: str) -> str:
    """Of any text in which each trigger begins one of the tags, of which there is one at least.
    Raises ClientError."""
    for one in triggers:
        if not any(tag.begin.startswith(one) for tag in tags):
            raise ClientError(f"{param}: no tag begins with {_shown(one)}", param=param)
    made = [
        StructTag(
            trigger=_trigger(tag, triggers, param),
            begin=tag.begin,
            grammar=_inline(tag),
            end=tag.end,
        )
        for tag in tags
    ]
    return StructTag.to_grammar(made, assume_special=False)


def _trigger(tag: Tagged, triggers: Sequence[str], param: str) -> str:
    """The shortest that begins it: it is read before a longer one is."""
    own = [one for one in triggers if one and tag.begin.startswith(one)]
    if not own:
        raise ClientError(f"{param}: no trigger begins {_shown(tag.begin)}", param=param)
    return min(own, key=len)


def _inline(tag: Tagged) -> str:
    """The schema, with how it is written, as a part of a grammar in Lark's form."""
    whole = json.loads(of_json_schema(tag.schema, param=tag.param))
    return json.dumps(whole["grammars"][0]["json_schema"])


def _shown(text: str) -> str:
    return json.dumps(text[:_MAX_SHOWN_CHARS], ensure_ascii=False)
