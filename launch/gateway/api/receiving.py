"""From a request's body to what it says. A long one is decoded in another thread than the loop's,
and with no other beside it: the interpreter's lock is held meanwhile.
"""

import asyncio
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
LONG_BYTES = 2**18


class Receiver:
    """Of one server. Used by the event loop's thread."""

    def __init__(self) -> None:
        self._bodies = Bodies()
        self._long = Lane("long bodies", max_pending=MAX_HELD_BYTES // LONG_BYTES)

    @asynccontextmanager
    async def received(
        self, request: Request, decoded: Callable[[bytes], _Kind]
    ) -> AsyncIterator[tuple[_Kind, bool]]:
        """What the body says, which counts as held until the block is left; and whether it is
        long. Raises what `Bodies` and `decoded` do."""
        async with self._bodies.read(request) as content:
            is_long = len(content) > LONG_BYTES
            if len(content) <= SHORT_BYTES:
                body = decoded(content)
            elif not is_long:
                body = await asyncio.to_thread(decoded, content)
            else:
                body = await self._long.run(partial(decoded, content))
            yield body, is_long


def decoder(kind: type[_Kind]) -> Callable[[bytes], _Kind]:
    return partial(decode, kind=kind)
