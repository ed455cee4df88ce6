"""Machines without a GPU need nothing that is for GPUs alone."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize("module", ["prefill.worker", "decode.worker"])
def test_workers_do_not_import_it(module: str) -> None:
    code = f"import sys, {module}; sys.exit(any(n in sys.modules for n in ('triton', 'cupy')))"
    assert subprocess.run([sys.executable, "-c", code], timeout=100, check=False).returncode == 0
