import json

import pytest

from bench.client_limit import main


def test_it_measures_its_own_client(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--rates", "500,2000", "--rounds", "1"]) == 0
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert set(last["p99_ms"]) == {"500", "2000"}
    assert all(p99_ms > 0 for p99_ms in last["p99_ms"].values())
    assert all(1 < us < 1000 for us in last["cpu_us"].values())
    kept = [int(rate) for rate, p99_ms in last["p99_ms"].items() if p99_ms < 1]
    assert last["events_per_s"] == max(kept, default=0)
