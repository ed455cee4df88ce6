"""The command for a GPU says cleanly where there is none."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.gpu.run import NO_GPU, Row, has_failed


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so() -> None:
    command = ["env", f"PYTHON={sys.executable}", str(Path(__file__).with_name("run.sh"))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    said, encoded = done.stdout.splitlines()
    assert said == NO_GPU
    assert json.loads(encoded) == {"gpu": None}


def test_a_bar_is_met_or_missed() -> None:
    met = Row(name="copy", ms=2.0, floor_ms=1.7, bar=0.85)
    assert met.line.endswith("85%  bar  85%")
    missed = Row(name="copy", ms=2.0, floor_ms=1.6, bar=0.85)
    assert missed.line.endswith("80%  bar  85%  !! missed")


@pytest.mark.parametrize(
    ("result", "failed"),
    [
        ({"rows": [{"bar": 0.8, "share": 0.8}, {"bar": None, "share": 0.1}]}, False),
        ({"rows": [{"bar": 0.8, "share": 0.7}]}, True),
        ({"exit_status": 0}, False),
        ({"exit_status": 1}, True),
        ({"error": "not done after 9 s"}, True),
    ],
)
def test_a_part_that_fails_fails_the_run(result: dict[str, object], *, failed: bool) -> None:
    assert has_failed(result) is failed
