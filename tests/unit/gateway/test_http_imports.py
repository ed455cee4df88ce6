"""The gateway's process is small: it never loads what only workers compute with."""

import subprocess
import sys

import pytest

HEAVY = ("torch", "transformers", "prefill", "decode", "transfer")


@pytest.mark.parametrize("module", ["launch.gateway.http", "launch.local"])
def test_what_serving_imports(module: str) -> None:
    code = f"import sys, {module}; print([name for name in {HEAVY} if name in sys.modules])"
    told = subprocess.run(
        [sys.executable, "-P", "-c", code], cwd="/", capture_output=True, text=True, check=True
    )
    assert told.stdout == "[]\n"
