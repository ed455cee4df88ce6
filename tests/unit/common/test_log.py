"""Lines are one line each, whatever a client sent; the request log is shared by processes."""

import io
import json
import logging
import os
import re
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path

import pytest

from bench.request_log import read_log
from common.errors import SetupError
from common.ids import InstanceId, Role, TransferId
from common.log import RequestLog, field_of, line, set_up_logging

T = TransferId("t1")


@pytest.fixture(params=["text"])
def stream(request: pytest.FixtureRequest) -> Iterator[io.StringIO]:
    """What is logged, in the form that the test names."""
    root = logging.getLogger()
    before = root.handlers[:], root.level
    stream = io.StringIO()
    set_up_logging("info", "decode-0/3f2a", stream, log_format=request.param)
    yield stream
    root.handlers[:], level = before[0], before[1]
    root.setLevel(level)


def test_ids_come_first_and_nothing_is_said_of_none() -> None:
    text = line("queued", tokens=12, seconds=0.25, peer=None, transfer=T, attempt=0)
    assert text == "transfer=t1 attempt=0 event=queued tokens=12 seconds=0.25"


def test_values_are_quoted_where_they_could_be_misread() -> None:
    text = line("x", a="two words", b='say "hi"', c="a=b\nevent=forged", d="", e="\x1b[31m", f="ä")
    assert text == (
        r'event=x a="two words" b="say \"hi\"" c="a=b\nevent=forged" d="" '
        r'e="\u001b[31m" f="\u00e4"'
    )
    assert len(line("x", a="y" * 10_000)) < 2100


def test_a_line_names_its_process_and_level(stream: io.StringIO) -> None:
    logging.getLogger("any").info(line("started", pages=3))
    logging.getLogger("any").debug(line("unseen"))
    assert re.fullmatch(
        r"time=\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z level=info process=decode-0/3f2a "
        r"event=started pages=3\n",
        stream.getvalue(),
    )


def test_a_traceback_cannot_forge_a_line(stream: io.StringIO) -> None:
    try:
        raise ValueError("no\ntime=now level=info event=forged\u2028event=forged \x1b[2J")
    except ValueError:
        logging.getLogger("any").exception(line("pass_failed"))
    first, *rest = stream.getvalue().splitlines()
    assert first.endswith("event=pass_failed")
    assert rest and all(text.startswith("  | ") and text.isprintable() for text in rest)


@pytest.mark.parametrize("stream", ["json"], indirect=True)
def test_a_line_of_json_has_the_fields_as_they_are(stream: io.StringIO) -> None:
    log = logging.getLogger("any")
    log.info(line("queued", tokens=3, seconds=0.25, peer=None, b='say "hi"\n\x1b[2J', transfer=T))
    log.warning("another's %s: %d", "words", 7)
    log.info(line("x", long="y" * 10_000, never=float("inf")))
    try:
        raise ValueError("no\n{}")
    except ValueError:
        log.exception(line("pass_failed"))
    text = stream.getvalue()
    assert text.isascii() and "\x1b" not in text
    queued, others, odd, failed = map(json.loads, text.splitlines())
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", queued.pop("time"))
    assert queued == {
        "level": "info",
        "process": "decode-0/3f2a",
        "transfer": "t1",
        "event": "queued",
        "tokens": 3,
        "seconds": 0.25,
        "b": 'say "hi"\n\x1b[2J',
    }
    assert (others["level"], others["message"]) == ("warning", "another's words: 7")
    assert (len(odd["long"]) < 2100, odd["never"]) == (True, "inf")
    assert failed["event"] == "pass_failed"
    assert failed["traceback"].endswith("ValueError: no\n{}")


@pytest.mark.parametrize("stream", ["json"], indirect=True)
def test_values_of_json_are_json(stream: io.StringIO) -> None:
    params = {"n": 2, "stop": ["x", "y" * 10_000], "never": float("inf"), "seed": None}
    logging.getLogger("any").info(line("request", stream=False, params=params))
    told = json.loads(stream.getvalue())
    assert told["stream"] is False
    assert (told["params"]["n"], told["params"]["seed"]) == (2, None)
    assert told["params"]["never"] == "inf"
    assert len(told["params"]["stop"][1]) < 2100
    assert field_of(stream.getvalue(), "request", "stream") == "false"


def test_values_of_json_in_a_line_for_people() -> None:
    assert line("x", stream=True, params={"n": 1}) == r'event=x stream=true params="{\"n\":1}"'


@pytest.mark.parametrize("stream", ["text", "json"], indirect=True)
def test_a_field_is_read_back_from_either_form(stream: io.StringIO) -> None:
    detail = 'lower "--x": event=forged detail=no'
    logging.getLogger("any").error(line("cannot_start", why="short", detail=detail))
    text = stream.getvalue().rstrip("\n")
    assert field_of(text, "cannot_start", "detail") == detail
    assert field_of(text, "cannot_start", "why") == "short"
    assert field_of(text, "cannot_start", "other") is None
    assert field_of(text, "started", "detail") is None
    assert field_of("Traceback: {}", "cannot_start", "detail") is None
    assert field_of("{", "cannot_start", "detail") is None


def test_what_happens_to_requests_is_told_at_the_gateway_and_where_it_is_asked_for(
    stream: io.StringIO,
) -> None:
    gateway = RequestLog(None, InstanceId("g"), Role.GATEWAY)
    for log in (gateway, RequestLog(None, InstanceId("d"), Role.DECODE)):
        log.write("routed", T, 1, {})
        log.write("failed", T, 1, {"detail": "lost\nevent=forged"})
    [text] = stream.getvalue().splitlines()
    assert text.endswith(r'transfer=t1 attempt=1 event=failed detail="lost\nevent=forged"')
    set_up_logging("debug", "gateway", stream)
    gateway.write("routed", T, 2, {"decode": "d"})
    assert stream.getvalue().endswith(" transfer=t1 attempt=2 event=routed decode=d\n")


def test_a_log_that_cannot_be_written_is_the_operators_to_mend(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=f"^--request-log {tmp_path}: Is a directory$"):
        RequestLog(str(tmp_path), InstanceId("i"), Role.DECODE)


def test_an_entry_has_both_clocks_and_who_wrote_it(tmp_path: Path) -> None:
    log = RequestLog(str(tmp_path / "log"), InstanceId("i"), Role.DECODE)
    log.write("queued", T, 2, {"tokens": 7, "detail": "a\nb"})
    log.close()
    log.close()
    [text] = (tmp_path / "log").read_text().splitlines()
    entry = json.loads(text)
    assert entry.pop("t") > 1e9
    assert entry.pop("mono") > 0
    assert entry == {
        "event": "queued",
        "transfer": "t1",
        "attempt": 2,
        "role": "decode",
        "instance": "i",
        "tokens": 7,
        "detail": "a\nb",
    }


def write_many(path: str, name: str) -> None:
    log = RequestLog(path, InstanceId(name), Role.PREFILL)
    for n in range(500):
        log.write("queued", T, n, {"filler": "x" * 200})
    log.close()


def test_processes_share_the_file_line_by_line(tmp_path: Path) -> None:
    path = str(tmp_path / "log")
    writers = [get_context("spawn").Process(target=write_many, args=(path, n)) for n in "ab"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    entries = [json.loads(text) for text in Path(path).read_text().splitlines()]
    for name in "ab":
        assert [e["attempt"] for e in entries if e["instance"] == name] == list(range(500))


def test_no_path_no_file_and_a_full_disk_costs_lines_only() -> None:
    silent = RequestLog(None, InstanceId("i"), Role.DECODE)
    silent.write("queued", T, 0, {})
    full = RequestLog("/dev/full", InstanceId("i"), Role.DECODE)
    full.write("queued", T, 0, {})
    full.write("queued", T, 0, {})
    full.close()
    assert full.lost_lines == 2


def test_after_a_full_disk_a_line_begins_a_line(tmp_path: Path) -> None:
    path = tmp_path / "log"
    one, another = (RequestLog(str(path), InstanceId(i), Role.DECODE) for i in "ab")
    one.write("queued", T, 0, {})
    _, most = limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 40, most))
    try:
        one.write("queued", T, 1, {})
        another.write("queued", T, 1, {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert (one.lost_lines, another.lost_lines) == (1, 1)
    another.write("queued", T, 2, {})  # which does not know that the other's was cut
    one.write("queued", T, 3, {})
    with path.open("ab") as file:
        file.write(b'{"t":1')  # by a process that has ended
    late = RequestLog(str(path), InstanceId("c"), Role.DECODE)
    late.write("queued", T, 4, {})
    for log in (one, another, late):
        log.close()
    assert len(path.read_text().splitlines()) == 6
    assert [line.attempt for line in read_log(path)] == [0, 2, 3, 4]


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with pytest.raises(SetupError, match="a pipe that nobody reads"):
        RequestLog(str(path), InstanceId("d"), Role.DECODE)
    with open_pipe(path):
        log = RequestLog(str(path), InstanceId("d"), Role.DECODE)
        for _ in range(2000):  # nobody takes them
            log.write("queued", T, 0, {"text": "x" * 100})
        assert log.lost_lines > 0
        log.close()


@contextmanager
def open_pipe(path: Path) -> Iterator[None]:
    """A reader, who does not read."""
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        yield
    finally:
        os.close(reader)


def test_what_python_says_by_itself_is_in_the_form_of_the_log() -> None:
    code = """
import sys, threading, warnings
from common.log import line, log_what_python_says, set_up_logging
set_up_logging("info", "decode-0", log_format=sys.argv[1])
log_what_python_says()
warnings.warn("old\\nnews")
def fail(): raise ValueError("in a thread\\nevent=forged")
thread = threading.Thread(target=fail); thread.start(); thread.join()
class Dies:
    def __del__(self): raise ValueError("unraisable")
Dies()
raise ValueError("at last")
"""
    for form in ("json", "text"):
        ended = subprocess.run(
            [sys.executable, "-c", code, form], capture_output=True, text=True, timeout=60
        )
        assert ended.returncode == 1
        said = ended.stderr.splitlines()
        if form == "json":
            warned, *failed = map(json.loads, said)
            assert "old" in warned["message"]
            assert [one["event"] for one in failed] == ["uncaught"] * 3
            ends = ("in a thread\nevent=forged", "unraisable", "at last")
            assert all(map(str.endswith, (one["traceback"] for one in failed), ends))
        else:
            assert all(text.startswith(("time=", "  | ")) for text in said)
