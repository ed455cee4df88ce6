"""What a dead process leaves in the run directory is removed by who knows that it is dead."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from common.ids import InstanceId
from common.rundir import SHORT_INSTANCE, make_clean, remove_sockets, socket_file, temporary

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


def test_what_killed_processes_left_in_a_given_directory_goes_and_nothing_else() -> None:
    with tempfile.TemporaryDirectory(prefix="br-") as home, ExitStack() as sockets:
        run_dir = Path(home, "run")
        run_dir.mkdir(mode=0o700)

        def bound(name: str, *, lives: bool, age_s: float = 300.0) -> Path:
            one = sockets.enter_context(socket.socket(socket.AF_UNIX))
            one.bind(str(run_dir / name))  # it need not listen yet
            then = time.time() - age_s
            os.utime(run_dir / name, (then, then))
            if not lives:
                one.close()
            return run_dir / name

        def shared(name: str, *files: str) -> Path:
            (run_dir / name / "metrics").mkdir(parents=True)
            for file in ("places", "metrics/counter_0.db", *files):
                (run_dir / name / file).touch()
            older(run_dir / name)
            return run_dir / name

        dead, living = DEAD[:SHORT_INSTANCE], LIVING[:SHORT_INSTANCE]
        for kind in ("ctl", "cuda", "gws", "pages", "sta"):
            bound(f"{dead}.{kind}", lives=False)
        shared(f"{dead}.shared")
        file, folder = run_dir / f"{'a' * SHORT_INSTANCE}.ctl", run_dir / "notes.shared"
        file.write_text("a user's own")
        older(file)
        folder.mkdir()
        kept = {
            bound(f"{living}.ctl", lives=True),
            shared(f"{living}.shared"),
            bound(f"{'b' * SHORT_INSTANCE}.ctl", lives=False, age_s=1.0),  # it may be about to live
            bound("postgres.ctl", lives=False),
            shared(f"{'c' * SHORT_INSTANCE}.shared", "a user's own"),
            *(file, folder),
        }
        make_clean(run_dir)
        assert {*run_dir.iterdir()} == kept
        assert (run_dir / f"{'c' * SHORT_INSTANCE}.shared" / "a user's own").exists()
        assert (run_dir / f"{living}.shared" / "metrics" / "counter_0.db").exists()
        make_clean(run_dir)


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
        for name in (f"{DEAD[:SHORT_INSTANCE]}.ctl", "weights-1.lock", "weights-1.held"):
            (theirs / name).touch()
        (theirs / f"{DEAD[:SHORT_INSTANCE]}.shared" / "metrics").mkdir(parents=True)
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


def test_what_is_only_called_like_a_run_directory_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    socket_name = f"{DEAD[:SHORT_INSTANCE]}.ctl"
    for name, mode, holds in (
        ("baton-results", 0o700, ("run.csv",)),
        ("baton-training", 0o700, ()),
        ("baton-notes_42", 0o700, ("notes.txt", socket_name)),  # 8 characters, as theirs
        ("baton-models00", 0o755, ()),
        ("baton-models01", 0o755, (socket_name,)),
    ):
        folder = tmp_path / name
        folder.mkdir(mode=mode)
        folder.chmod(mode)
        for file in holds:
            (folder / file).touch()
        older(folder)
    before = sorted(tmp_path.rglob("*"))
    with temporary():
        pass
    assert sorted(tmp_path.rglob("*")) == before
