"""Connections of a process, dropped from outside, and what is seen of one."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from bench.chaos.processes import (
    Victim,
    anonymous_bytes,
    n_descriptors,
    started_by,
    victim,
    workers,
)


@pytest.fixture
def own() -> Victim:
    """This process: it may always look into itself."""
    return Victim(os.getpid())


def test_connections_end_and_what_listens_and_pairs_stay(own: Victim, tmp_path: Path) -> None:
    unix, tcp = socket.socket(socket.AF_UNIX), socket.socket()
    pair = socket.socketpair()
    unix.bind(str(tmp_path / "s"))
    tcp.bind(("127.0.0.1", 0))
    ends: list[socket.socket] = []
    for listener, address in ((unix, str(tmp_path / "s")), (tcp, tcp.getsockname())):
        listener.listen()
        asker = socket.socket(listener.family)
        asker.connect(address)
        ends += [asker, listener.accept()[0]]
    try:
        assert own.drop_connections() >= 4
        assert [end.recv(1) for end in ends] == 4 * [b""]
        pair[0].send(b"x")
        assert pair[1].recv(1) == b"x"
        again = socket.socket(socket.AF_UNIX)
        ends.append(again)
        again.connect(str(tmp_path / "s"))
    finally:
        own.close()
        for one in (unix, tcp, *pair, *ends):
            one.close()


def test_no_descriptor_is_left_open(own: Victim) -> None:
    before = n_descriptors(os.getpid())
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        with socket.create_connection(listener.getsockname()), listener.accept()[0]:
            own.drop_connections()
    own.close()
    assert n_descriptors(os.getpid()) == before - 1  # the victim's own


def test_a_worker_is_known_by_its_command_line() -> None:
    """Of a process that only looks like one."""
    code = "import sys; print(flush=True); sys.stdin.read()"
    like = [sys.executable, "-c", code, "decode.worker", "--config-fd", "3"]
    own = ["--instance", "c0ffee", "--parent", str(os.getpid())]
    pipe = subprocess.PIPE
    with subprocess.Popen([*like, *own], stdin=pipe, stdout=pipe) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()  # its command line is there no sooner
            (found,) = (one for one in workers(os.getpid()) if one.pid == process.pid)
            assert (found.role, found.instance) == ("decode", "c0ffee")
            (told,) = started_by(os.getpid())
            assert told.startswith(f"process {process.pid}: ")
            assert anonymous_bytes(process.pid) > 0
            with victim(process.pid) as struck:
                assert struck is not None
                struck.send(signal.SIGKILL)
                process.wait()
                struck.send(signal.SIGCONT)  # whoever has its number now gets nothing
                assert struck.drop_connections() == 0
        finally:
            process.kill()
    assert (anonymous_bytes(process.pid), n_descriptors(process.pid)) == (0, 0)
    assert started_by(os.getpid()) == []


def test_who_has_ended_is_no_victim() -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    with victim(process.pid) as struck:
        assert struck is None
