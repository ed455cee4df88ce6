"""What a launcher and each of its gateways tell each other: who works, who has ended, who serves.

JSON lines over a Unix socket of the launcher's. Each line is the whole state, told whenever it
changes and now and then besides: nothing depends on one that was missed. Must know no request.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from common.ids import InstanceId, Role
from common.messages import Peer
from launch.gateway.control import Control
from launch.supervise import LocalWorker

LOOK_S = 0.1  # between two looks at whether there is something to tell
TELL_S = 1.0  # or to tell again
MAX_LINE_BYTES = 2**22


class Ended(msgspec.Struct, frozen=True):
    """A worker whose process is no more. `crashed`: by itself."""

    instance: InstanceId
    crashed: bool


class Roster(msgspec.Struct, frozen=True, kw_only=True):
    """launcher -> gateway: the workers that are up, and what became of others lately."""

    workers: tuple[Peer, ...]
    ended: tuple[Ended, ...]
    troubles: dict[Role, tuple[str, ...]]  # why workers are not up
    local: tuple[LocalWorker, ...]
    ready: bool  # every gateway has served, with all workers there
    gateways: tuple[LocalWorker, ...] = ()


class Serving(msgspec.Struct, frozen=True, kw_only=True):
    """gateway -> launcher: I take connections, and have so many workers."""

    instance: InstanceId
    up: dict[Role, int]


class Teller:
    """Whether a state is to be told now."""

    def __init__(self) -> None:
        self._told: bytes = b""
        self._told_at = float("-inf")

    def due(self, state: msgspec.Struct) -> bytes:
        """The line; empty: it was told a moment ago."""
        data, now = msgspec.json.encode(state), time.monotonic()
        if data == self._told and now - self._told_at < TELL_S:
            return b""
        self._told, self._told_at = data, now
        return data + b"\n"


class Follower:
    """A gateway's side: works with whoever is on the roster."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._roster: Roster | None = None
        self._came = asyncio.Event()  # a first one
        self._known_ended: frozenset[InstanceId] = frozenset()
        self.serving = False
        control.engine.troubles = self._troubles
        control.engine.history.local_workers = self._local

    async def follow(self, path: Path, on_lost: Callable[[], None]) -> None:
        """Until the launcher is gone, which `on_lost` hears of."""
        reader, writer = await asyncio.open_unix_connection(str(path), limit=MAX_LINE_BYTES)
        telling = asyncio.create_task(self._tell(writer))
        try:
            while line := await reader.readline():
                self._take(msgspec.json.decode(line, type=Roster))
        except ConnectionError:
            pass
        finally:
            telling.cancel()
            writer.close()
            on_lost()

    def all_ready(self) -> bool:
        """A client may come to any gateway: all are as this one is."""
        return self._roster is not None and self._roster.ready

    def siblings(self) -> list[LocalWorker]:
        """The other gateways, those that are not alive included."""
        known = () if self._roster is None else self._roster.gateways
        return [one for one in known if one.instance != self._control.instance]

    async def linked(self, within_s: float) -> None:
        """Until every worker of the first roster is up here, too, or that time is over."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._came.wait()
                assert self._roster is not None
                wanted = Counter(peer.role for peer in self._roster.workers)
                await self._control.engine.up(wanted)

    def _take(self, roster: Roster) -> None:
        self._roster = roster
        engine = self._control.engine
        for ended in roster.ended:
            if ended.instance not in self._known_ended:
                engine.lost(ended.instance, crashed=ended.crashed)
        self._known_ended = frozenset(ended.instance for ended in roster.ended)
        now = time.monotonic()
        for peer in roster.workers:
            if peer.instance not in engine.fleet:
                self._control.links.dial(peer, now)
        engine.wake()
        self._came.set()

    async def _tell(self, writer: asyncio.StreamWriter) -> None:
        teller = Teller()
        while True:
            if self.serving:
                up = self._control.engine.workers()
                writer.write(teller.due(Serving(instance=self._control.instance, up=up)))
            await asyncio.sleep(LOOK_S)

    def _troubles(self, role: Role) -> tuple[str, ...]:
        told = () if self._roster is None else self._roster.troubles.get(role, ())
        return (*told, *(why for why in self._control.links.refusals(role) if why not in told))

    def _local(self) -> tuple[LocalWorker, ...]:
        return () if self._roster is None else self._roster.local
