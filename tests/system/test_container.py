"""As in a container: nobody's user, no capability, a read-only root, 64 MB of /dev/shm.

A mount namespace stands in for the container's own; everything else is the real thing.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.error import URLError
from urllib.request import Request, urlopen

import pytest

from tests.servers import free_port

CODE = Path(__file__).parents[2]
START_S = 300.0
CONTAINER = """
set -eu
base=$1 model=$2 code=$3; shift 3
mount --make-rprivate /
mount -t tmpfs -o mode=755 tmpfs /mnt
cd /mnt && mkdir base models code
mount --bind "$code" code
mount --bind "$base" base
mount --bind "$(dirname "$model")" models
case $base in /root/*)  # a user's home, which nobody else may look into
    mount -t tmpfs -o mode=755 tmpfs /root
    mkdir -p "$base" && mount --bind base "$base" ;;
esac
mount -t tmpfs -o size=64m,mode=1777 tmpfs /dev/shm
mount -t tmpfs -o mode=1777 tmpfs /var/tmp
mount -o remount,bind,ro / && ! touch /etc/written 2>/dev/null
exec setpriv --reuid 10001 --regid 10001 --clear-groups --no-new-privs --bounding-set -all \
    env -i PATH=/usr/bin:/bin HOME=/var/tmp TMPDIR=/var/tmp PYTHONPATH=/mnt/code \
    OMP_NUM_THREADS=1 "$@"
"""
"""Arguments: Python's base prefix, the model's file, the sources, and the command."""

NAMESPACE = ["unshare", "--mount", "sh", "-c", CONTAINER]

pytestmark = [
    pytest.mark.full,
    pytest.mark.timeout(600),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount"),
]


@contextmanager
def container(model: Path, command: list[str], log: Path) -> Iterator["subprocess.Popen[bytes]"]:
    with log.open("wb") as said:
        process = subprocess.Popen(
            [*NAMESPACE, "sh", sys.base_prefix, model, CODE, *command],
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def answers(url: str, body: bytes | None = None) -> bytes:
    """Empty: not yet."""
    request = Request(url, data=body, headers={"Content-Type": "application/json"})
    with suppress(URLError, OSError), urlopen(request, timeout=60) as answer:
        return bytes(answer.read())
    return b""


def test_it_serves_there(default_model: Path, tmp_path: Path) -> None:
    port, log = free_port(), tmp_path / "log"
    model = f"/mnt/models/{default_model.name}"
    command = [
        *(sys.executable, "-P", "-m", "launch.cli", "serve", model, "--port", str(port)),
        *("--prefill", "1", "--decode", "1", "--max-model-len", "1024", "--threads", "1"),
        *("--kv-cache-memory-bytes", "128MiB"),  # a pool alone is more than /dev/shm has
    ]
    url = f"http://127.0.0.1:{port}"
    with container(default_model, command, log) as process:
        deadline = time.monotonic() + START_S
        while not answers(f"{url}/ready"):
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.2)
        body = b'{"prompt": "Once upon a time", "max_tokens": 8, "temperature": 0}'
        assert b'"completion_tokens":8' in answers(f"{url}/v1/completions", body), log.read_text()
        status = Path(f"/proc/{process.pid}/status").read_text()
        assert "Uid:\t10001\t10001" in status
        assert "CapBnd:\t0000000000000000" in status
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, log.read_text()
    assert "event=stopped" in log.read_text()
