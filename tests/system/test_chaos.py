"""A minute of chaos: workers are killed, stopped and cut off, and nothing is lost."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.chaos.plan import Kind
from bench.chaos.processes import Victim

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
SECONDS = 45
SEED = 3


def test_nothing_is_lost(default_model: Path, tmp_path: Path) -> None:
    kinds = [kind for kind in Kind if kind is not Kind.CUT or Victim(os.getpid()).can_be_cut]
    flags = ["--seconds", str(SECONDS), "--seed", str(SEED), "--prompts", "12", "--clients", "4"]
    run = subprocess.run(
        [sys.executable, "-P", "-m", "bench.chaos", str(default_model), *flags,
         "--logs", str(tmp_path), "--kinds", *kinds],
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-4000:]
    result = json.loads(run.stdout.splitlines()[-1])
    assert result["broken"] == 0
    assert all(result["faults"][kind] for kind in kinds)
    assert result["spared"] == 0
    assert result["completed"] >= 8  # two for each client, without compiled kernels, too
    assert result["abandoned"] > 0
    assert (tmp_path / "server.log").read_text().count("event=worker_exited") > 0
