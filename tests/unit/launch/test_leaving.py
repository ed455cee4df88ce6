"""A process ends though a thread of it is busy, and with its own exit code."""

import subprocess
import sys
import time

import pytest

SCRIPT = """
import asyncio, atexit, sys, time
from launch.leaving import left, run
atexit.register(print, "by itself")

async def main():
    work = asyncio.ensure_future(asyncio.to_thread(time.sleep, float(sys.argv[1])))
    await asyncio.sleep(0.05)
    return 7

code = run(main())
print("stopped")
sys.exit(left(code))
"""


@pytest.mark.parametrize(("seconds", "told"), [(60, "stopped\n"), (0, "stopped\nby itself\n")])
def test_nothing_is_waited_for(seconds: float, told: str) -> None:
    began = time.monotonic()
    argv = [sys.executable, "-c", SCRIPT, str(seconds)]
    ended = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)
    assert (ended.returncode, ended.stdout) == (7, told), ended.stderr
    assert time.monotonic() - began < 20
