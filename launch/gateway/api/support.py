"""How fields say that they are accepted for nothing, or refused. Must name none of them."""

from typing import Any, get_args

from msgspec import Meta

SUPPORT = "x-support"
"""In a field's JSON schema: "ignored" or "refused"; else it is supported."""

_REFUSED = "refused: "

IGNORED = Meta(description="accepted; it changes nothing", extra_json_schema={SUPPORT: "ignored"})


def refused(why: str, **allowed: Any) -> Meta:  # noqa: ANN401 - JSON schema
    """Of a field that may say only what is done anyway: what `allowed` allows."""
    return Meta(description=f"{_REFUSED}{why}", extra_json_schema={SUPPORT: "refused", **allowed})


def refusal(hint: Any, value: object) -> str | None:  # noqa: ANN401 - a type, as `typing` has it
    """Why a field of that type is refused where it says `value`; None: it is not."""
    for meta in get_args(hint)[1:]:
        schema = meta.extra_json_schema if isinstance(meta, Meta) else None
        if schema and schema.get(SUPPORT) == "refused" and value not in _allowed(schema):
            return (meta.description or "").removeprefix(_REFUSED)
    return None


def _allowed(schema: dict[str, Any]) -> list[Any]:
    return schema.get("enum", [None, [], ""])
