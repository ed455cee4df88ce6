"""Machines without a GPU need no Triton."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize("module", ["prefill.worker", "decode.worker"])
def test_workers_do_not_import_it(module: str) -> None:
    code = f"import sys, {module}; sys.exit('triton' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=100, check=False).returncode == 0
