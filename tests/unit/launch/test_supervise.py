"""Processes that end, and what becomes of them. They are real, and do what a test's script says."""

import asyncio
import errno
import io
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from common.config import DecodeConfig, PrefillConfig, ServeConfig, resolve
from common.ids import InstanceId, Role
from launch import supervise
from launch.supervise import Supervisor

CONFIG = ServeConfig(
    model="m",
    served_model_name="m",
    prefill=PrefillConfig(workers=0),
    decode=DecodeConfig(workers=1),
)
CANNOT = """
import sys
sys.stderr.write('level=error process=d event=cannot_start detail="lower \\\\"--x\\\\""\\n')
sys.exit(2)
"""
FAILS = "import sys; sys.stderr.write('there is no memory\\n'); sys.exit(1)"
HANGS = "import time; time.sleep(60)"
PROGRESSES = """
import sys, time
instance = sys.argv[sys.argv.index("--instance") + 1]
for n in range(8):
    sys.stderr.write(f"time=now {n} progresses as {instance}\\n")
    sys.stderr.flush()
    time.sleep(0.25)
time.sleep(60)
"""
LIVES = """
import os, sys, time
instance = sys.argv[sys.argv.index("--instance") + 1]
sys.stderr.write(f"time=now {os.getpid()} lives as {instance}\\n")
time.sleep(60)
"""


@dataclass
class Watched:
    supervisor: Supervisor
    exits: "asyncio.Queue[InstanceId]"
    hopeless: list[tuple[str, str]]

    async def exited(self) -> InstanceId:
        return await asyncio.wait_for(self.exits.get(), 20)


def run(tmp_path: Path, script: str, test: Callable[[Watched], Awaitable[None]]) -> None:
    """With one worker that is that script."""
    package = tmp_path / "decode"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "worker.py").write_text(script)

    async def whole() -> None:
        workers = resolve(CONFIG, Role.DECODE, join="ipc://nowhere", cpus=[0])
        exits: asyncio.Queue[InstanceId] = asyncio.Queue()
        hopeless: list[tuple[str, str]] = []
        supervisor = Supervisor(
            workers,
            {"PYTHONPATH": str(tmp_path)},
            on_exit=lambda instance, _: exits.put_nowait(instance),
            on_hopeless=lambda worker, why: hopeless.append((worker, why)),
        )
        supervisor.start()
        try:
            await test(Watched(supervisor, exits, hopeless))
        finally:
            await supervisor.stop()

    asyncio.run(whole())


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervise, "BACKOFF_S", 0.01)


def test_the_third_start_that_fails_is_told_with_what_it_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(watched: Watched) -> None:
        for _ in range(3):
            await watched.exited()
        (trouble,) = watched.supervisor.troubles(Role.DECODE)
        assert trouble == "decode-0 ended with exit code 1, 3 times before it had joined"
        assert watched.supervisor.troubles(Role.PREFILL) == ()

    run(tmp_path, FAILS, test)
    told = [r.getMessage() for r in caplog.records if "worker_fails_at_start" in r.getMessage()]
    assert len(told) == 1
    assert "worker=decode-0 starts=3 exit_code=1" in told[0]
    assert "there is no memory" in told[0]
    said = 'event=said worker=decode-0 text="there is no memory"'
    assert [r.getMessage() for r in caplog.records].count(said) >= 3


async def lives(capfdbinary: pytest.CaptureFixture[bytes]) -> tuple[int, InstanceId]:
    """Process id and instance of the next one that lives."""
    async with asyncio.timeout(20):
        while not (said := capfdbinary.readouterr().err.splitlines()):  # noqa: ASYNC110 - no event tells
            await asyncio.sleep(0.01)
    _, pid, _, _, instance = said[-1].decode().split()
    return int(pid), InstanceId(instance)


def test_one_that_had_joined_has_not_failed_to_start(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    async def test(watched: Watched) -> None:
        pid, instance = await lives(capfdbinary)
        watched.supervisor.joined(instance)
        os.kill(pid, signal.SIGKILL)
        assert await watched.exited() == instance
        assert watched.supervisor.troubles(Role.DECODE) == ("decode-0 ended with signal 9",)
        _, other = await lives(capfdbinary)
        assert other != instance
        watched.supervisor.joined(other)
        assert watched.supervisor.troubles(Role.DECODE) == ()

    run(tmp_path, LIVES, test)


def test_a_hung_one_is_killed_and_started_again(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    async def test(watched: Watched) -> None:
        _, instance = await lives(capfdbinary)
        watched.supervisor.joined(instance)
        watched.supervisor.hung(InstanceId("somebody else"))
        watched.supervisor.hung(instance)
        assert await watched.exited() == instance
        _, other = await lives(capfdbinary)
        watched.supervisor.hung(instance)  # told late, of who is gone
        watched.supervisor.joined(other)
        assert watched.exits.empty()

    run(tmp_path, LIVES, test)


def test_one_that_is_stopped_has_a_while_to_come_back(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(watched: Watched) -> None:
        pid, instance = await lives(capfdbinary)
        os.kill(pid, signal.SIGSTOP)
        watched.supervisor.joined(instance)
        watched.supervisor.silent(instance)
        watched.supervisor.joined(instance)
        monkeypatch.setattr(supervise, "SILENT_S", 0.05)
        await asyncio.sleep(0.1)
        assert watched.exits.empty()
        watched.supervisor.silent(instance)
        assert await watched.exited() == instance

    run(tmp_path, LIVES, test)


def test_one_that_hangs_before_it_has_joined_is_killed_and_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(supervise, "START_SILENT_S", 0.3)

    async def test(watched: Watched) -> None:
        first = await watched.exited()
        assert await watched.exited() != first
        (trouble,) = watched.supervisor.troubles(Role.DECODE)
        assert trouble == "decode-0 ended with signal 9, 2 times before it had joined"

    run(tmp_path, HANGS, test)
    assert "event=worker_hangs_at_start worker=decode-0" in caplog.text


def test_one_that_shows_progress_or_has_joined_may_take_its_time(
    tmp_path: Path,
    capfdbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(supervise, "START_SILENT_S", 1.0)

    async def test(watched: Watched) -> None:
        _, instance = await lives(capfdbinary)
        await asyncio.sleep(1.5)
        assert watched.exits.empty()
        watched.supervisor.joined(instance)
        await asyncio.sleep(1.2)  # and says nothing any more
        assert watched.exits.empty()

    run(tmp_path, PROGRESSES, test)


def test_why_one_cannot_start_is_told(tmp_path: Path) -> None:
    async def test(watched: Watched) -> None:
        await watched.exited()
        await asyncio.sleep(0)
        assert watched.hopeless == [("decode-0", 'lower "--x"')]

    run(tmp_path, CANNOT, test)


def test_one_that_cannot_be_started_now_is_started_later(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capfdbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    left = [OSError(errno.EMFILE, "Too many open files")] * 2
    make = os.memfd_create

    def none_left(name: str) -> int:
        if left:
            raise left.pop()
        return make(name)

    monkeypatch.setattr(os, "memfd_create", none_left)

    async def test(watched: Watched) -> None:
        _, instance = await lives(capfdbinary)
        assert [await watched.exited() != instance for _ in range(2)] == [True, True]

    run(tmp_path, LIVES, test)
    told = [r.getMessage() for r in caplog.records if "worker_not_started" in r.getMessage()]
    assert len(told) == 2
    assert "Too many open files" in told[0]


def test_one_is_kept_alive_where_nothing_can_be_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(watched: Watched) -> None:
        for _ in range(3):
            await watched.exited()
        (trouble,) = watched.supervisor.troubles(Role.DECODE)
        assert trouble.endswith("3 times before it had joined")

    with io.TextIOWrapper(io.FileIO("/dev/full", "w")) as full, monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", full)
        run(tmp_path, FAILS, test)
