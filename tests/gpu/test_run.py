"""The command for a GPU says cleanly where there is none, and loses nothing where a part fails."""

import json
import re
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from tests.gpu import run
from tests.gpu.breakdown import OURS, Ran, kind_of, lines
from tests.gpu.rows import ROW, WANTED, Row, each
from tests.gpu.run import NO_GPU, PARTS, Report, run_part, run_parts


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so() -> None:
    command = ["env", f"PYTHON={sys.executable}", str(Path(__file__).with_name("run.sh"))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    said, encoded = done.stdout.splitlines()
    assert said == NO_GPU
    assert json.loads(encoded) == {"gpu": None}


@pytest.mark.parametrize(
    ("key", "measured", "floor", "ratio", "met"),
    [
        ("decode attention", 2.0, 1.7, 0.85, True),
        ("decode attention", 2.0, 1.6, 0.8, False),
        ("step 1", 1.15, 1.0, 1.15, True),
        ("step 1", 1.2, 1.0, 1.2, False),
        ("step 64", 1.2, None, None, None),
        ("second token", 1.9, None, 1.9, True),
        ("second token", 2.1, None, 2.1, False),
        ("tokens", 24.0, None, 24.0, True),
        ("tokens", 23.0, None, 23.0, False),
    ],
)
def test_a_bar_is_met_or_missed(
    key: str, measured: float, floor: float | None, ratio: float | None, *, met: bool | None
) -> None:
    row = Row.of(key, measured, floor=floor)
    assert row.ratio == (None if ratio is None else pytest.approx(ratio))
    assert row.met is met
    assert {True: ": met", False: ": MISSED", None: ": no floor"}[met] in row.line


def test_every_row_that_is_wanted_has_a_part() -> None:
    assert sorted(WANTED) == sorted(key for part in PARTS.values() for key in part.wanted)
    assert sum(part.limit_s for part in PARTS.values() if part.wanted) < run.TOTAL_S


def met_rows() -> list[Row]:
    return [Row.of(key, wanted.bar, floor=wanted.bar**2) for key, wanted in WANTED.items()]


def told(name: str) -> list[str]:
    return [ROW + json.dumps(asdict(row)) for row in met_rows() if row.key in PARTS[name].wanted]


def run_as_told(name: str, _limit_s: float, report: Report) -> str:
    for line in told(name):
        report.hear(line)
    return ""


def test_what_is_measured_is_in_the_file_as_it_comes(tmp_path: Path) -> None:
    seen: list[int] = []

    def run_and_look(name: str, limit_s: float, report: Report) -> str:
        error = run_as_told(name, limit_s, report)
        seen.append(len(json.loads(report.path.read_text())["rows"]))
        return error

    report = Report("a GPU", tmp_path / "found.json")
    names = [name for name in PARTS if PARTS[name].wanted]
    run_parts(names, report, run_and_look)
    assert seen == sorted(seen)
    assert json.loads(report.encoded())["not_measured"] == []


def test_a_part_that_fails_costs_no_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail_once(name: str, limit_s: float, report: Report) -> str:
        return "exit status 1" if name == "steps" else run_as_told(name, limit_s, report)

    report = Report("a GPU", tmp_path / "found.json")
    assert not run_parts(["kernels", "steps", "pulls"], report, fail_once)
    assert {row.key for row in report.rows} == {"decode attention", "prefill attention", "pull"}
    said = capsys.readouterr().out
    assert "!! steps: exit status 1" in said
    assert f"{WANTED['step 1'].title:<58} not measured" in said


@pytest.mark.parametrize(("floor", "begun"), [(1.0, ["kernels", "tiles"]), (1.9, ["kernels"])])
def test_tiles_are_timed_where_attention_was_slow(
    tmp_path: Path, floor: float, begun: list[str]
) -> None:
    parts: list[str] = []

    def note(name: str, _limit_s: float, report: Report) -> str:
        parts.append(name)
        report.rows.append(Row.of("decode attention", 2.0, floor=floor))
        return ""

    run_parts(["kernels", "tiles"], Report("a GPU", tmp_path / "found.json"), note)
    assert parts == begun


def test_there_is_a_time_for_all_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "TOTAL_S", 20.0)
    limits: list[float] = []

    def take(_name: str, limit_s: float, _report: Report) -> str:
        limits.append(limit_s)
        clock[0] += 15
        return ""

    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    report = Report("a GPU", tmp_path / "found.json")
    run_parts(["kernels", "steps"], report, take)
    assert limits == [20.0]
    assert report.errors == {"steps": "no time was left"}


def test_a_part_s_process_is_heard_and_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though it has started others that would go on."""
    code = (
        "import subprocess, sys, time\n"
        'print(\'ROW {"name": "a", "measured": 1.0}\', flush=True)\n'
        "subprocess.Popen(['sleep', '100'])\n"
        "print('hanging', flush=True)\n"
        "time.sleep(100)\n"
    )
    real = subprocess.Popen
    monkeypatch.setattr(
        subprocess, "Popen", lambda _command, **how: real([sys.executable, "-c", code], **how)
    )
    report = Report("a GPU", tmp_path / "found.json")
    began = time.monotonic()
    assert run_part("kernels", 1.0, report) == "not done after 1 s"
    assert time.monotonic() - began < 30
    assert [row.name for row in report.rows] == ["a"]


def test_one_measurement_that_fails_costs_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    done: list[int] = []

    def fail() -> None:
        raise RuntimeError("an illegal memory access")

    assert not each([fail, lambda: done.append(1)])
    assert done == [1]
    assert "an illegal memory access" in capsys.readouterr().out


def test_every_kernel_of_ours_is_known_by_its_name() -> None:
    kernels = Path(run.__file__).parents[2] / "common" / "kernels" / "triton"
    launched = re.compile(r"kernel=(_\w+)")
    names = {name for path in kernels.glob("*.py") for name in launched.findall(path.read_text())}
    assert len(names) > 8
    assert {kind_of(f"{name}_0d1d2d") for name in names} == set(OURS)


def test_where_time_went_is_told() -> None:
    ran = [
        Ran("nvjet_tst_128x8", 0.0, 600.0),
        Ran("_attend_split", 601.0, 801.0),
        Ran("void at::native::elementwise_kernel", 800.0, 820.0),
        Ran("nvjet_tst_128x8", 850.0, 1450.0),
    ]
    said = lines(ran, 1, {"products of matrices": (4e9, "TB/s")})
    assert said[0] == "  1.450 ms each: 1.419 in 4 kernels, 0.031 between them"
    assert " ".join(said[1].split()) == (
        "products of matrices 1.200 ms 82.8% 2.0 times 600.00 us 3.33 TB/s"
    )
    assert [line.split()[0] for line in said[2:4]] == ["_attend_split", "void"]
    assert said[4].endswith("600.00 us  nvjet_tst_128x8")
    assert "nothing ran for 30.0 us: void at::native::elementwise_kernel -> nvjet" in said[5]
