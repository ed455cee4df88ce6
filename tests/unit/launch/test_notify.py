"""The service manager is a socket that a test listens on."""

import asyncio
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from launch.notify import Notifier


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        listening.settimeout(5)
        yield listening


def told(manager: socket.socket) -> list[str]:
    return manager.recv(4096).decode().split("\n")


def test_each_state_is_one_datagram(manager: socket.socket) -> None:
    notifier = Notifier({"NOTIFY_SOCKET": manager.getsockname()})
    notifier.ready("serving")
    assert told(manager) == ["READY=1", "STATUS=serving"]
    notifier.reloading("changing")
    state, since, status = told(manager)
    assert (state, status) == ("RELOADING=1", "STATUS=changing")
    assert since.removeprefix("MONOTONIC_USEC=").isdecimal()
    notifier.stopping()
    assert told(manager) == ["STOPPING=1"]
    notifier.ready("decode-0 cannot start:\nSTOPPING=1 \udcff")
    assert told(manager) == ["READY=1", "STATUS=decode-0 cannot start: STOPPING=1 ?"]


def test_a_name_that_is_in_no_file_system() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(f"\0baton-test-{os.getpid()}")
        listening.settimeout(5)
        Notifier({"NOTIFY_SOCKET": f"@baton-test-{os.getpid()}"}).stopping()
        assert told(listening) == ["STOPPING=1"]


def test_it_beats_twice_as_often_as_is_asked_for(manager: socket.socket) -> None:
    environ = {"NOTIFY_SOCKET": manager.getsockname(), "WATCHDOG_USEC": "20000"}
    notifier = Notifier({**environ, "WATCHDOG_PID": str(os.getpid())})
    assert notifier.beat_s == 0.01

    async def beat() -> None:
        beating = asyncio.create_task(notifier.beat())
        for _ in range(3):
            assert await asyncio.to_thread(told, manager) == ["WATCHDOG=1"]
        beating.cancel()

    asyncio.run(beat())


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"WATCHDOG_USEC": "20000"},  # nobody listens
        {"NOTIFY_SOCKET": "/nowhere/notify", "WATCHDOG_USEC": "0"},  # none is wanted
        {"NOTIFY_SOCKET": "/nowhere/notify", "WATCHDOG_USEC": "soon"},
        {"NOTIFY_SOCKET": f"/nowhere/{'x' * 300}"},
        {"NOTIFY_SOCKET": "/nowhere/notify"},
        {"NOTIFY_SOCKET": "/nowhere/notify", "WATCHDOG_USEC": "20000", "WATCHDOG_PID": "1"},
    ],
)
def test_it_is_silent_where_nobody_listens(environ: dict[str, str]) -> None:
    notifier = Notifier(environ)
    notifier.ready("serving")
    asyncio.run(asyncio.wait_for(notifier.beat(), 1))


def test_it_does_not_beat_all_the_time() -> None:
    environ = {"NOTIFY_SOCKET": "/nowhere/notify", "WATCHDOG_USEC": "1"}
    beat_s = Notifier(environ).beat_s
    assert beat_s is not None and beat_s >= 0.001
