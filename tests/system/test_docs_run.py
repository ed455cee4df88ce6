"""The documents' commands, run as a reader runs them: in the terminals that the page speaks of.

A block behind `<!-- run: first terminal -->` is run there. One whose command serves goes on while
the blocks after it are run elsewhere.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.documents import HOME, PAGES, Block, blocks
from tests.servers import free_port

START_S, RUN_S = 400.0, 500.0
RUN = {page: [b for b in blocks(page) if b.terminal] for page in PAGES}

pytestmark = [pytest.mark.full, pytest.mark.timeout(1500)]


def text_of(block: Block, port: int) -> str:
    """With a port of its own, and what is installed here in the place of an installation."""
    text = block.text.replace("8000", str(port))
    text = re.sub(r'make serve ARGS="([^"]*)"', rf"baton serve \1 --port {port}", text)
    text = re.sub(r"^make serve\b.*$", f"baton serve --port {port}", text, flags=re.MULTILINE)
    return text.replace(". .venv/bin/activate\n", "")


@contextmanager
def shell(text: str, log: Path) -> Iterator["subprocess.Popen[bytes]"]:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # noqa: TID251 - ours to hand on
    environ = {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"}  # noqa: TID251
    with log.open("ab") as said:
        process = subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", text],
            cwd=HOME,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
            env=environ,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGINT)
            process.wait(60)


@pytest.mark.usefixtures("default_model")  # fetched before a clock runs
@pytest.mark.parametrize("page", [page for page in PAGES if RUN[page]], ids=lambda p: p.name)
def test_it_runs(page: Path, tmp_path: Path) -> None:
    port, log = free_port(), tmp_path / "log"
    first, *others = RUN[page]
    assert "serve" in first.text and others
    with shell(text_of(first, port), log) as serving:
        deadline = time.monotonic() + START_S
        while "event=ready" not in log.read_text():
            assert serving.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.2)
        for block in others:
            with shell(text_of(block, port), log) as process:
                assert process.wait(RUN_S) == 0, log.read_text()[-4000:]
