"""A reader of standard output that goes before its time."""

import os

import pytest

from bench.stdout import show


def test_what_nobody_reads_any_more_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    with os.fdopen(writer, "w") as output:
        monkeypatch.setattr("sys.stdout", output)
        show("read")
        assert os.read(reader, 100) == b"read\n"
        os.close(reader)
        show("unread")
        output.write("unread, too\n")  # is flushed as the file is closed


def test_a_line_is_told_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    show("a\nb")
    assert capsys.readouterr().out == "a\nb\n"
