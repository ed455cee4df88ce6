"""Every worker restarted under load, one that joins and leaves, and one of another protocol."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

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
    assert "event=drained" in (tmp_path / "joined.log").read_text()
