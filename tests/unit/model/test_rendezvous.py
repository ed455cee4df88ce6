import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from common.errors import SetupError
from common.model.rendezvous import Rendezvous

Open = Callable[[], Rendezvous]


@pytest.fixture
def joined(tmp_path: Path) -> Iterator[Open]:
    """Makes members of one rendezvous; closes them all."""
    members: list[Rendezvous] = []

    def join() -> Rendezvous:
        members.append(Rendezvous(tmp_path / "run", "k"))
        return members[-1]

    yield join
    for member in members:
        member.close()


def memfd() -> int:
    return os.memfd_create("test")


def never() -> int:
    raise AssertionError("made a second descriptor")


def ignore(process_id: int) -> None:
    del process_id


def inode(fd: int) -> int:
    stat = os.fstat(fd)
    os.close(fd)
    return stat.st_ino


def test_it_is_made_once_and_handed_to_all(joined: Open) -> None:
    first = inode(joined().obtain(memfd, ignore))
    assert [inode(joined().obtain(never, ignore)) for _ in range(3)] == [first] * 3


def test_many_at_once_make_one(joined: Open) -> None:
    made: list[int] = []
    got: list[int] = []
    waited_for: set[int] = set()

    def make() -> int:
        made.append(memfd())
        time.sleep(0.2)  # the others arrive meanwhile
        return made[-1]

    def newcomer(member: Rendezvous) -> None:
        got.append(inode(member.obtain(make, waited_for.add)))

    threads = [threading.Thread(target=newcomer, args=(joined(),)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1
    assert len(set(got)) == 1
    assert os.getpid() in waited_for


def test_when_the_server_leaves_another_holder_serves(tmp_path: Path) -> None:
    members = [Rendezvous(tmp_path / "run", "k") for _ in range(4)]
    first = inode(members[0].obtain(memfd, ignore))
    for leaving, newcomer in itertools.pairwise(members):
        assert inode(newcomer.obtain(never, ignore)) == first
        leaving.close()
    members[-1].close()


def test_a_failed_maker_leaves_the_place_to_the_next(joined: Open) -> None:
    def fail() -> int:
        raise SetupError("no memory")

    failed = joined()
    with pytest.raises(SetupError, match="no memory"):
        failed.obtain(fail, ignore)
    failed.close()
    assert inode(joined().obtain(memfd, ignore)) > 0


def test_closed_by_all_it_leaves_two_empty_locks_and_no_thread(tmp_path: Path) -> None:
    members = [Rendezvous(tmp_path / "run", "k") for _ in range(2)]
    for member in members:
        os.close(member.obtain(memfd, ignore))
    for member in members:
        member.close()
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == ["k.held", "k.lock"]
    assert not [t for t in threading.enumerate() if t.name == "weights-server"]
    fresh = Rendezvous(tmp_path / "run", "k")
    made: list[int] = []
    os.close(fresh.obtain(lambda: made.append(memfd()) or made[-1], ignore))
    assert len(made) == 1  # the former copy went with its last holder
    fresh.close()


MAKER = """
import os, sys, time
from pathlib import Path
from common.model.rendezvous import Rendezvous
def make():
    print("making", flush=True)
    time.sleep(float(sys.argv[2]))
    return os.memfd_create("test")
fd = Rendezvous(Path(sys.argv[1]), "k").obtain(make, lambda process_id: None)
print("has", os.fstat(fd).st_ino, flush=True)
time.sleep(60)
"""


def process(run_dir: Path, make_s: float) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", MAKER, str(run_dir), str(make_s)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def line(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return child.stdout.readline().strip()


def kill(child: subprocess.Popen[str]) -> None:
    child.send_signal(signal.SIGKILL)
    child.communicate()


def test_killed_while_serving_another_holder_serves_the_same(tmp_path: Path, joined: Open) -> None:
    child = process(tmp_path / "run", 0)
    assert line(child) == "making"
    theirs = int(line(child).split()[1])
    assert inode(joined().obtain(never, ignore)) == theirs
    kill(child)
    assert inode(joined().obtain(never, ignore)) == theirs


def test_killed_while_making_the_next_makes_it(tmp_path: Path, joined: Open) -> None:
    child = process(tmp_path / "run", 60)
    assert line(child) == "making"
    threading.Timer(0.2, kill, (child,)).start()
    waited_for: set[int] = set()
    os.close(joined().obtain(memfd, waited_for.add))
    assert waited_for == {child.pid}


def test_a_directory_that_others_can_enter_is_refused(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir(mode=0o755)
    with pytest.raises(SetupError, match=r"must be yours alone .*mode 755"):
        Rendezvous(tmp_path / "open", "k")


def test_a_path_too_long_for_a_socket_is_refused_with_both_numbers(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"1\d\d bytes are too many .*\(107\)"):
        Rendezvous(tmp_path / ("d" * 100), "k")
