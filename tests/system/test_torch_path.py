"""The fallback works: the same tests, in a process that finds no compiled kernel."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
TESTS = (
    "tests/conformance/kernels/test_ops.py",
    "tests/conformance/kernels/test_bits.py",
    "tests/property/test_invariance.py",
    "tests/system/test_families.py",
    "tests/unit/model",
)
RUN = """
import sys
sys.modules["common.kernels.cpu._native"] = None
import pytest, torch
from common.kernels.path import kernels
assert kernels(torch.float32).startswith("torch (not compiled"), kernels(torch.float32)
sys.exit(pytest.main(["-q", "-x", *sys.argv[1:]]))
"""


def test_the_torch_path_passes_the_same_tests() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", RUN, *TESTS], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr[-2000:]
    assert "failed" not in ran.stdout
