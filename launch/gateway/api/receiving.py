"""From a request's body to what it says. A long one is decoded in another thread than the loop's,
and with no other beside it: the interpreter's lock is held meanwhile.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import TypeVar

from starlette.requests import Request

from launch.gateway.api.bodies import MAX_HELD_BYTES, Bodies
from launch.gateway.api.decoding import decode
from launch.gateway.lane import Lane

_Kind = TypeVar("_Kind")
SHORT_BYTES = 2**15


class Receiver:
    """Of one server. Used by the event loop's thread."""

    def __init__(self) -> None:
        self._bodies = Bodies()
        self._long = Lane("long bodies", max_pending=MAX_HELD_BYTES // SHORT_BYTES)

    @asynccontextmanager
    async def received(
        self, request: Request, decoded: Callable[[bytes], _Kind]
    ) -> AsyncIterator[_Kind]:
        """What the body says, which counts as held until the block is left. Raises what `Bodies`
        and `decoded` do."""
        async with self._bodies.read(request) as content:
            if len(content) <= SHORT_BYTES:
                yield decoded(content)
            else:
                yield await self._long.run(partial(decoded, content))


def decoder(kind: type[_Kind]) -> Callable[[bytes], _Kind]:
    return partial(decode, kind=kind)
