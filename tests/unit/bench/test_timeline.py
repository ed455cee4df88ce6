"""`python -m bench.timeline`: the picture, and what is said where it shows little."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from matplotlib.image import imread

from bench.plots import STAGES
from bench.request_log import Line, Stage
from bench.timeline import main
from tests.unit.bench.test_request_log import RECEIVED, T0, WHOLE

REFUSED = [RECEIVED, Line(T0 + 0.001, "aborted", "t1", 0)]


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    return tmp_path / "timeline.png"


def written(tmp_path: Path, lines: Sequence[Line]) -> str:
    log = tmp_path / "requests.jsonl"
    rows = [
        {"t": line.t, "event": line.event, "transfer": line.transfer, "attempt": line.attempt}
        for line in lines
    ]
    log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(log)


def n_pixels(path: Path, stage: Stage) -> int:
    """Of that stage's colour; its patch in the legend has a few hundred."""
    colour = [int(STAGES[stage][0][at : at + 2], 16) / 255 for at in (1, 3, 5)]
    return int((abs(imread(path)[:, :, :3] - colour).max(axis=2) < 0.01).sum())


def test_it_draws_its_bars_as_a_program(tmp_path: Path, picture: Path) -> None:
    # In a process of its own, where it is `__main__`, and not what others import.
    command = [sys.executable, "-P", "-m", "bench.timeline", written(tmp_path, WHOLE)]
    subprocess.run([*command, "--output", str(picture)], check=True, capture_output=True)
    assert all(n_pixels(picture, stage) > 2000 for stage in Stage)


def test_it_says_where_the_picture_is(
    tmp_path: Path, picture: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([written(tmp_path, WHOLE), "--output", str(picture)]) == 0
    assert capsys.readouterr() == (f"{picture}\n", "")
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_requests_that_were_never_computed_are_told(
    tmp_path: Path, picture: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    later = [Line(line.t + 1, line.event, "t2", line.attempt) for line in WHOLE]
    log = written(tmp_path, [*REFUSED, *later])
    assert main([log, "--output", str(picture)]) == 0
    assert "1 of the 2 requests drawn ended before a pass" in capsys.readouterr().err
    assert main([log, "--output", str(picture), "--last", "1"]) == 0
    assert capsys.readouterr().err == ""
    assert main([written(tmp_path, REFUSED), "--output", str(picture)]) == 0
    assert "all 1 requests drawn ended before a pass" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["none.jsonl"], "REQUEST_LOG none.jsonl: there is no such file"),
        (
            ["{log}", "--output", "/dev/null/t.png"],
            "--output /dev/null/t.png: cannot be written: /dev/null is no folder",
        ),
        (["{log}", "--output", "timeline.doc"], "--output timeline.doc: must end in .png"),
        (["{empty}"], "no request is in it yet"),
    ],
)
def test_what_cannot_be_drawn_is_one_line(
    argv: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = tmp_path / "empty.jsonl"
    empty.touch()
    places = {"log": written(tmp_path, WHOLE), "empty": str(empty)}
    assert main([one.format(**places) for one in argv]) == 2
    err = capsys.readouterr().err
    assert told in err
    assert err.count("\n") == 1


def test_without_matplotlib_it_says_what_to_install(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main([written(tmp_path, WHOLE), "--output", str(tmp_path / "timeline.png")]) == 2
    assert "pip install 'baton-serving[bench]'" in capsys.readouterr().err
