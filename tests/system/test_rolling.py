"""Every worker restarted under load, one that joins and leaves, and one of another protocol."""

import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.servers import RunningServer, launched
from tests.system.streams import SMALL, streaming, text_of

HOME = Path(__file__).parents[2]

pytestmark = [pytest.mark.full, pytest.mark.timeout(1200)]


def test_no_request_fails(default_model: Path, tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-P", "-m", "bench.rolling", str(default_model), "--rate", "0.5",
         "--calm", "5", "--output-len", "24", "--logs", str(tmp_path), "--flag=--threads=1"],
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-4000:]
    result = json.loads(run.stdout.splitlines()[-1])
    assert (result["failed"], result["broken"]) == (0, 0)
    assert result["requests"] >= 10
    done = [what for _, what in result["marks"]]
    for worker in ("prefill-0", "prefill-1", "decode-0", "decode-1"):
        assert done.index(f"{worker} restarting") < done.index(f"{worker} restarted")
    assert done[-1] == "it has left"
    log = (tmp_path / "server.log").read_text()
    assert "event=worker_exited" not in log  # each left in good order
    assert "event=draining" in (tmp_path / "joined.log").read_text()


def test_a_worker_of_another_protocol_is_refused_and_the_others_serve_on(
    default_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An upgrade under a running server: what is installed changes, and then SIGHUP."""
    for package in ("common", "prefill", "decode", "transfer", "launch", "bench"):
        shutil.copytree(HOME / package, tmp_path / "installed" / package)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "installed"))
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    manager.bind(str(tmp_path / "notify"))
    monkeypatch.setenv("NOTIFY_SOCKET", manager.getsockname())
    messages = tmp_path / "installed" / "common" / "messages.py"
    old = messages.read_text()
    new, n_changed = re.subn(r"^PROTOCOL = (\d+)$", r"PROTOCOL = 1\1", old, flags=re.MULTILINE)
    assert n_changed == 1
    pools = ("--prefill", "2", "--decode", "1", "--threads", "1")
    with launched(default_model, *SMALL, *pools) as server:
        until(lambda: " event=ready " in server.log(), server)
        with streaming(server, 200) as stream:
            next(stream)
            messages.write_text(new)
            server.process.send_signal(signal.SIGHUP)
            until(lambda: "event=rolling_restart_stopped" in server.log(), server)
            stopped = next(x for x in server.log().splitlines() if "rolling_restart_stopped" in x)
            assert "protocol differs" in stopped
            assert server.is_ready()  # by the workers that are left
            text_of([*stream])
        with streaming(server, 8) as stream:
            text_of([*stream])
        messages.write_text(old)
        until(lambda: '"up":2' in ready(server).partition('"decode"')[0], server)
        assert server.stop(within_s=60) == 0
    manager.settimeout(0)
    states = [manager.recv(4096).partition(b"=1\n")[0] for _ in range(3)]
    assert (*states, manager.recv(4096)) == (b"READY", b"RELOADING", b"READY", b"STOPPING=1")
    manager.close()


def ready(server: RunningServer) -> str:
    with urlopen(f"{server.url}/ready", timeout=10) as answer:
        return answer.read().decode()


def until(holds: Callable[[], bool], server: RunningServer, within_s: float = 300.0) -> None:
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline, server.tail()
        time.sleep(0.1)
