"""The tests that need a GPU."""

import subprocess
import sys
from collections.abc import Mapping

from tests.gpu.rows import say


def measure(_found: Mapping[str, float]) -> bool:
    """Warnings are not errors: it is another machine's libraries that warn."""
    command = [sys.executable, "-m", "pytest", "-q", "--maxfail=8", "-W", "default", "-m", "gpu"]
    done = subprocess.run([*command, "tests/gpu"], check=False)
    say(f"pytest's exit status: {done.returncode}")
    return done.returncode == 0
