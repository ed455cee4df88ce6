"""Bases of what is on the wire, and bounds of its numbers. Must hold no behaviour."""

from typing import Annotated

import msgspec
from msgspec import Meta

Natural = Annotated[int, Meta(ge=0, lt=2**31)]
"""A token, a page or an index: what cannot be one is no message."""

Positive = Annotated[int, Meta(ge=1, lt=2**31)]


class Message(
    msgspec.Struct, tag=True, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False
):
    """Base of everything on the wire (msgpack, tagged by class name)."""


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True, gc=False):
    """Base of what messages are made of; an array on the wire."""
