"""`python -m bench.simulate.reality --sweep`: a stored set beside its simulation."""

import json
from pathlib import Path

import pytest

from bench.simulate import costs_file
from bench.simulate.reality import main
from bench.store import Store
from tests.unit.bench.simulate.test_prediction import FILE, point

pytest.importorskip("matplotlib")


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """Two rates, two rounds, one server."""
    store = Store(tmp_path / "sweep", {"dataset_name": "random", "random_prefix_len": 0})
    for rate in (10.0, 12.0):
        for number in range(2):
            store.add(point(FILE, rate, number))
    costs_file.write(tmp_path / "costs.json", FILE)
    return tmp_path / "sweep"


def flags(sweep: Path, *more: str) -> list[str]:
    return ["--sweep", str(sweep), "--costs", f"split={sweep.parent / 'costs.json'}", *more]


def test_a_stored_set_is_compared(sweep: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(flags(sweep, "--goodput", "ttft:120", "tpot:20"))
    *shown, last = capsys.readouterr().out.splitlines()
    told = json.loads(last)
    assert code == 0
    assert told["holds"] is True
    assert [(row["setup"], row["rate"]) for row in told["rows"]] == [("split", 10), ("split", 12)]
    assert all(abs(row["off"]) < 1e-9 for row in told["rows"])
    assert "holds" in shown[-1]
    assert (sweep / "reality.png").stat().st_size > 10_000


def test_what_does_not_hold_is_told(sweep: Path, capsys: pytest.CaptureFixture[str]) -> None:
    slower = {"fixed_s": 0.05, "per_token_s": 4e-4, "per_pair_s": 0}
    path = sweep.parent / "costs.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"prefill": slower}))
    code = main(flags(sweep, "--goodput", "ttft:120", "tpot:20"))
    *shown, last = capsys.readouterr().out.splitlines()
    assert code == 1
    assert json.loads(last)["holds"] is False
    assert "FAILS" in shown[-1]


def test_an_slo_must_be_named(sweep: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(flags(sweep)) == 1
    assert "--goodput" in capsys.readouterr().err


def test_prompts_that_share_prefixes_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Store(tmp_path / "sweep", {"dataset_name": "random", "random_prefix_len": 64})
    costs_file.write(tmp_path / "costs.json", FILE)
    assert main(flags(tmp_path / "sweep", "--goodput", "ttft:1")) == 1
    assert "share prefixes" in capsys.readouterr().err
