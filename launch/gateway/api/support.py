"""How fields say that they are accepted for nothing, or refused. Must name none of them."""

from typing import Any

from msgspec import Meta

SUPPORT = "x-support"
"""In a field's JSON schema: "ignored" or "refused"; else it is supported."""

IGNORED = Meta(description="accepted; it changes nothing", extra_json_schema={SUPPORT: "ignored"})


def refused(why: str, **allowed: Any) -> Meta:  # noqa: ANN401 - JSON schema
    """Of a field that may say only what is done anyway: what `allowed` allows."""
    return Meta(description=f"refused: {why}", extra_json_schema={SUPPORT: "refused", **allowed})
