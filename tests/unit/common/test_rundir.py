"""What a dead process leaves in the run directory is removed by who knows that it is dead."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from common.ids import InstanceId
from common.rundir import SHORT_INSTANCE, remove_sockets, socket_file, temporary

DEAD, LIVING = InstanceId("d" * 32), InstanceId("e" * 32)


def test_the_sockets_of_one_process_are_removed_and_no_others(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    for instance in (DEAD, LIVING):
        for kind in ("ctl", "pages"):
            socket_file(run_dir, f"{instance[:SHORT_INSTANCE]}.{kind}").touch()
    (run_dir / "weights-1.lock").touch()
    remove_sockets(run_dir, DEAD)
    left = {path.name for path in run_dir.iterdir()}
    short = LIVING[:SHORT_INSTANCE]
    assert left == {f"{short}.ctl", f"{short}.pages", "weights-1.lock"}
    remove_sockets(run_dir, DEAD)


HOLDER = """
import sys, tempfile
tempfile.tempdir = sys.argv[1]
from common.rundir import temporary
with temporary() as path:
    print(path, flush=True)
    sys.stdin.read()
"""


def older(path: Path) -> None:
    """As it is some minutes later."""
    os.utime(path, (time.time() - 300, time.time() - 300))


def test_what_a_killed_process_left_goes_and_a_living_ones_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        theirs = Path(holder.stdout.readline().strip())
        (theirs / "a.ctl").touch()
        older(theirs)
        foreign = tmp_path / "baton-notes.txt"  # no directory: not ours to judge
        foreign.touch()
        older(foreign)
        with temporary() as ours:
            assert theirs.is_dir()
        assert not ours.exists()
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        older(theirs)
    new = Path(tempfile.mkdtemp(prefix="baton-"))  # of one that has yet to lock it
    with temporary() as ours:
        assert sorted(tmp_path.iterdir()) == sorted([foreign, new, ours])
