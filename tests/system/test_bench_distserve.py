"""The whole comparison, on runs that are too short to say anything."""

import json
from pathlib import Path

import pytest

from bench.simulate.distserve import main


def test_it_tells_the_same_in_words_in_json_and_in_pictures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["--quick", "--out", str(tmp_path)])
    lines = capsys.readouterr().out.splitlines()
    told = json.loads(lines[-1])
    assert told["benchmark"] == "distserve"
    assert code == (0 if told["passed"] else 1)
    for workload in ("chat", "summarisation"):
        rows = [line for line in lines if line.startswith(workload)]
        for row, compared in zip(rows, told[workload], strict=True):
            assert compared["colocated"][0] in row
            assert compared["disaggregated"][0] in row
    assert {path.name for path in tmp_path.iterdir()} == {
        "colocated-wins.png",
        "distserve-chat.png",
        "distserve-summarisation.png",
    }
