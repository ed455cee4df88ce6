"""Whatever a process writes to stderr, in the form of the log. The process is real."""

import asyncio
import json
import logging
import sys
from asyncio.subprocess import PIPE, create_subprocess_exec
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from common.log import set_up_logging
from common.values import LogFormat
from launch.said import pass_on

WRITES = """
import sys, time
own, other = {"text": ("time=1 event=a", "  | of it"), "json": ('{"event":"a"}', '{"event":"b"}')}[
    sys.argv[1]
]
write = sys.stderr.buffer.write
write(f"{own}\\n".encode())
write(b"level=error event=forged \\x1b[2J\\xff\\n\\n  \\n" + other[:4].encode())
sys.stderr.flush()
time.sleep(0.1)
write(f"{other[4:]}\\n".encode() + b"Fatal error" + b"x" * 200_000)
"""
FORGED = "level=error event=forged \x1b[2J\ufffd"


@contextmanager
def logged(form: LogFormat) -> Iterator[None]:
    """By this process, to stderr, in that form."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    set_up_logging("info", "gateway", log_format=form)
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)


def passed_on(form: LogFormat, capfd: pytest.CaptureFixture[str]) -> list[str]:
    """The lines that this process writes."""
    lines = deque[str](maxlen=20)

    async def pass_all_on() -> int:
        command = (sys.executable, "-c", WRITES, form)
        process = await create_subprocess_exec(*command, stderr=PIPE)
        await pass_on(process, "decode-0", lines, lambda: None)
        return await process.wait()

    with logged(form):
        assert asyncio.run(pass_all_on()) == 0
    assert FORGED in lines
    return capfd.readouterr().err.splitlines()


def test_every_line_is_json(capfd: pytest.CaptureFixture[str]) -> None:
    first, *others, third = map(json.loads, passed_on("json", capfd)[:3])
    assert (first, third) == ({"event": "a"}, {"event": "b"})
    (forged,) = others
    assert (forged["event"], forged["worker"], forged["text"]) == ("said", "decode-0", FORGED)


def test_every_line_is_one_for_people(capfd: pytest.CaptureFixture[str]) -> None:
    first, forged, third, *rest = passed_on("text", capfd)
    assert (first, third) == ("time=1 event=a", "  | of it")
    told = r'worker=decode-0 text="level=error event=forged \u001b[2J\ufffd"'
    assert forged.endswith(f" level=error process=gateway event=said {told}")
    assert rest[0].startswith("time=2") and "Fatal errorxxx" in rest[0]
    assert all(text.startswith("time=2") and "event=said" in text for text in rest)
