"""A gateway that follows a launcher's roster, over real sockets."""

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from common.config import ServeConfig
from common.ids import InstanceId, Role
from common.messages import ModelIdentity, Peer
from common.metrics import GatewayMetrics
from launch.gateway.control import Control
from launch.gateway.roster import Ended, Follower, Roster, Serving, Teller
from tests.unit.gateway.scripted import until, waiting_worker

NOBODY = ModelIdentity(name="", fingerprint="", kv_dtype="", page_layout="", kernel_path="")


def roster(*workers: Peer, ended: tuple[Ended, ...] = ()) -> Roster:
    return Roster(
        workers=workers,
        ended=ended,
        troubles={Role.DECODE: ("it fell",)},
        local=(),
        ready=bool(workers),
    )


def line(state: msgspec.Struct) -> bytes:
    return msgspec.json.encode(state) + b"\n"


@asynccontextmanager
async def launcher(path: Path) -> AsyncIterator["asyncio.Queue[asyncio.StreamWriter]"]:
    """Whoever connects there."""
    writers: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()
    heard: list[bytes] = []

    async def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await writers.put(writer)
        while told := await reader.readline():
            heard.append(told)
        writer.close()

    server = await asyncio.start_unix_server(hear, str(path))
    try:
        yield writers
    finally:
        server.close()


async def follow(run_dir: Path) -> None:
    control = Control(
        ServeConfig(run_dir=str(run_dir)),
        NOBODY,
        InstanceId("9" * 32),
        GatewayMetrics(""),
        port=0,
    )
    lost = asyncio.Event()
    async with launcher(run_dir / "l") as writers, waiting_worker(run_dir) as worker:
        control.engine.start()
        follower = Follower(control)
        following = asyncio.create_task(follower.follow(run_dir / "l", lost.set))
        writer = await writers.get()
        writer.write(line(roster(worker)))
        assert not follower.all_ready()
        await follower.linked(5)
        assert follower.all_ready()
        assert control.engine.workers()[Role.DECODE] == 1
        assert list(control.engine.troubles(Role.DECODE)) == ["it fell"]
        writer.write(line(roster(ended=(Ended(worker.instance, crashed=True),))))
        await until(lambda: not control.engine.workers()[Role.DECODE])
        writer.close()
        await asyncio.wait_for(lost.wait(), 5)
        with contextlib.suppress(asyncio.CancelledError):
            await following
    control.close()


def test_a_gateway_works_with_whoever_is_on_the_roster_until_told_of_the_end() -> None:
    with tempfile.TemporaryDirectory(prefix="br-") as run_dir:
        asyncio.run(follow(Path(run_dir)))


def test_a_state_is_told_when_it_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("launch.gateway.roster.time.monotonic", lambda: now)
    teller = Teller()
    none, one = (
        Serving(instance=InstanceId("9" * 32), up={Role.DECODE: n, Role.PREFILL: 0}) for n in (0, 1)
    )
    assert teller.due(none) == line(none)
    assert teller.due(none) == b""
    assert teller.due(one) == line(one)
    now = 1.0
    assert teller.due(one) == line(one)
