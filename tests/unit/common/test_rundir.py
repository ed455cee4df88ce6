"""What a dead process leaves in the run directory is removed by who knows that it is dead."""

from pathlib import Path

from common.ids import InstanceId
from common.rundir import SHORT_INSTANCE, remove_sockets, socket_file

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
