"""Workers that are told to leave so that they can be started again, one after the other."""

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from common.ids import InstanceId, Role
from launch import supervise
from tests.unit.launch.test_supervise import CANNOT, LIVES, Watched, lives, run

FINISHES = """
import signal, sys, time
told = 0
def stop(*_):
    global told
    told += 1
    if told > 1:
        sys.exit(143)
signal.signal(signal.SIGTERM, stop)
instance = sys.argv[sys.argv.index("--instance") + 1]
sys.stderr.write(f"time=now 0 lives as {instance}\\n")
while True:
    time.sleep(0.01)
"""
ONCE = """
import pathlib, sys
first = pathlib.Path(__file__).with_name("second")
if first.exists():
    %s
first.touch()
"""


def two_up(_role: Role) -> int:
    return 2


def one_up(_role: Role) -> int:
    return 1


@pytest.fixture(autouse=True)
def never(monkeypatch: pytest.MonkeyPatch) -> None:
    """Is one started again that was not told to leave."""
    monkeypatch.setattr(supervise, "BACKOFF_S", 60.0)


def test_it_is_started_again_at_once_and_waited_for(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes], caplog: pytest.LogCaptureFixture
) -> None:
    async def test(watched: Watched) -> None:
        _, instance = await lives(capfdbinary)
        watched.supervisor.joined(instance)
        restarting = asyncio.create_task(watched.supervisor.restart_each(two_up))
        assert await watched.exited() == instance
        _, other = await lives(capfdbinary)
        assert other != instance
        assert not restarting.done()
        watched.supervisor.joined(InstanceId("somebody else"))
        watched.supervisor.joined(other)
        assert await restarting == ""
        assert watched.supervisor.troubles(Role.DECODE) == ()

    run(tmp_path, LIVES, test)
    assert "event=worker_exited" not in caplog.text  # that is an error


def test_one_that_does_not_come_up_again_is_told(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    async def test(watched: Watched) -> None:
        _, instance = await lives(capfdbinary)
        watched.supervisor.joined(instance)
        trouble = await watched.supervisor.restart_each(two_up)
        assert trouble == "decode-0 ended with exit code 3, 1 time before it had joined"
        assert watched.supervisor.troubles(Role.DECODE) == (trouble,)

    run(tmp_path, ONCE % "sys.exit(3)" + LIVES, test)


def test_a_server_that_has_served_does_not_end_for_a_worker_that_cannot_start(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    async def test(watched: Watched) -> None:
        _, instance = await lives(capfdbinary)
        watched.supervisor.joined(instance)
        trouble = await watched.supervisor.restart_each(two_up)
        assert trouble.endswith('exit code 2, 1 time before it had joined: lower "--x"')
        assert watched.hopeless == []

    cannot = "\n    ".join(CANNOT.strip().splitlines())
    run(tmp_path, ONCE % cannot + LIVES, test)


async def is_restarted(
    watched: Watched, said: pytest.CaptureFixture[bytes], n_up: Callable[[Role], int]
) -> None:
    _, instance = await lives(said)
    watched.supervisor.joined(instance)
    restarting = asyncio.create_task(watched.supervisor.restart_each(n_up))
    assert await watched.exited() == instance
    _, other = await lives(said)
    watched.supervisor.joined(other)
    assert await restarting == ""
    watched.supervisor.kill()  # it would take its time


def test_who_decodes_alone_finishes_nothing(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    async def test(watched: Watched) -> None:
        await is_restarted(watched, capfdbinary, one_up)

    run(tmp_path, FINISHES, test)


def test_one_that_does_not_leave_is_killed(
    tmp_path: Path,
    capfdbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(supervise, "LEAVE_S", -29.9)  # beside the 30 s of --shutdown-timeout

    async def test(watched: Watched) -> None:
        await is_restarted(watched, capfdbinary, two_up)

    run(tmp_path, FINISHES, test)
    assert "event=worker_does_not_leave worker=decode-0" in caplog.text


def test_told_while_it_waits_to_be_started_it_is_awaited(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervise, "BACKOFF_S", 0.2)

    async def test(watched: Watched) -> None:
        pid, instance = await lives(capfdbinary)
        watched.supervisor.joined(instance)
        os.kill(pid, signal.SIGKILL)
        await watched.exited()
        restarting = asyncio.create_task(watched.supervisor.restart_each(two_up))
        _, other = await lives(capfdbinary)
        watched.supervisor.joined(other)
        assert await restarting == ""
        assert watched.exits.empty()

    run(tmp_path, LIVES, test)
