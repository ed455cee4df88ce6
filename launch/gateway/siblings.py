"""The gateways of one server ask each other for their parts of `GET /status`.

Each listens at a Unix socket in the run directory: a question and an answer a connection, both
msgpack. One that is gone, or hangs, costs who asks a bounded wait. Must not know what a part says.
"""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from common.ids import InstanceId
from common.rundir import SHORT_INSTANCE, socket_file
from launch.gateway.parts import Elsewhere, Part
from launch.supervise import LocalWorker

ASK_S = 1.0  # to be answered
_FAILURES = (OSError, asyncio.IncompleteReadError, msgspec.DecodeError, TimeoutError)
_QUESTION_BYTES = 9  # a float's, always


class Siblings:
    """One gateway's: it answers the others, and asks them. Used by the event loop's thread."""

    def __init__(
        self,
        run_dir: Path,
        instance: InstanceId,
        own: Callable[[float], Part],
        others: Callable[[], Sequence[LocalWorker]],
    ) -> None:
        """`own`: this one's part, with points after that Unix time; `others`: who there is."""
        self._run_dir = run_dir
        self._path = _socket(run_dir, instance)
        self._own = own
        self._others = others
        self._server: asyncio.Server | None = None

    async def listen(self) -> None:
        self._server = await asyncio.start_unix_server(self._answer, str(self._path))

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._path.unlink(missing_ok=True)

    async def ask(self, after: float) -> Elsewhere:
        """All at once; who does not answer in time is told as missing."""
        others = self._others()
        told = await asyncio.gather(*(self._part_of(one, after) for one in others))
        missing = {
            one.name: why for one, why in zip(others, told, strict=True) if isinstance(why, str)
        }
        return Elsewhere([part for part in told if isinstance(part, Part)], missing)

    async def _part_of(self, sibling: LocalWorker, after: float) -> Part | str:
        """Or why there is none."""
        if sibling.instance is None or not sibling.joined or sibling.pid is None:
            return sibling.trouble.removeprefix(f"{sibling.name} ") or "is being started"
        try:
            async with asyncio.timeout(ASK_S):
                return await _asked(_socket(self._run_dir, sibling.instance), after)
        except _FAILURES:
            return f"has not answered within {ASK_S:g} s"

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(ASK_S):
                question = await reader.readexactly(_QUESTION_BYTES)
                after = msgspec.msgpack.decode(question, type=float)
                writer.write(msgspec.msgpack.encode(self._own(after)))
                await writer.drain()
        except _FAILURES:
            pass  # who has asked waits no longer
        finally:
            writer.close()


async def _asked(path: Path, after: float) -> Part:
    reader, writer = await asyncio.open_unix_connection(str(path))
    try:
        writer.write(msgspec.msgpack.encode(after))
        return msgspec.msgpack.decode(await reader.read(), type=Part)
    finally:
        writer.close()


def _socket(run_dir: Path, instance: InstanceId) -> Path:
    return socket_file(run_dir, f"{instance[:SHORT_INSTANCE]}.sta")
