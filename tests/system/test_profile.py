"""`baton profile` against a server whose costs are known exactly."""

import json
from pathlib import Path

import pytest

from bench.profile import main
from bench.simulate import costs_file
from bench.stub import started

ENGINE = {
    "pass_s": 0.004,
    "token_s": 1e-4,
    "pair_s": 4e-8,
    "step_s": 0.006,
    "context_token_s": 4e-7,
    "sequence_s": 1e-3,
    "delay_s": 0.002,
}


def test_it_finds_the_costs_of_a_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "costs.json"
    with started() as url:
        body = json.dumps({"stub": {"engine": ENGINE}})
        flags = ("--page-bytes", "368640", "--n-pages", "1000", "--dtype", "none")
        code = main(["--base-url", url, "--output", str(output), "--extra-body", body, *flags])
    *shown, last = capsys.readouterr().out.splitlines()
    assert code == 0
    assert any(row.startswith("decode, a sequence") for row in shown)
    assert json.loads(last)["benchmark"] == "profile"
    found = costs_file.read(output)
    # One prompt of 512 tokens, whole, and a step of 4 at 500 tokens of context each.
    prefill_s = 0.004 + 1e-4 * 512 + 4e-8 * 512 * 513 / 2
    assert found.costs.prefill.seconds(512, 512 * 513 / 2) == pytest.approx(prefill_s, rel=0.1)
    assert found.prefill.per_token_s == pytest.approx(1e-4, rel=0.1)
    assert found.costs.decode.seconds(2000, 4) == pytest.approx(0.0108, rel=0.15)
    assert found.decode.per_sequence_s == pytest.approx(1e-3, rel=0.3)
    assert found.measured["pools"] == "colocated"


def test_a_server_that_does_not_tell_its_pages_is_told_which_flag(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with started() as url:
        body = json.dumps({"stub": {"engine": {"step_s": 0.001}}})
        code = main(["--base-url", url, "--extra-body", body])
    assert code == 1
    assert "give --page-bytes" in capsys.readouterr().err


def test_nobody_there_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--base-url", "http://127.0.0.1:9"]) == 1
    assert "127.0.0.1:9" in capsys.readouterr().err
