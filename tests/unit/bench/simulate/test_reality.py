"""`python -m bench.simulate.reality --sweep`: a stored set beside its simulation."""

import json
from pathlib import Path

import msgspec
import pytest

from bench.measures import Goodput
from bench.profile_fit import Alone, Probes, Steps
from bench.simulate import costs_file, prediction
from bench.simulate.reality import Plan, Profiled, Reality, main, parse
from bench.store import Point, Store
from tests.unit.bench.simulate.test_prediction import FILE, outcomes_of, point

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
    Store(tmp_path / "sweep", {"dataset_name": "random", "random_prefix_len": 64}).begin()
    costs_file.write(tmp_path / "costs.json", FILE)
    assert main(flags(tmp_path / "sweep", "--goodput", "ttft:1")) == 1
    assert "share prefixes" in capsys.readouterr().err


# --- what it measured itself ---------------------------------------------------------------------

WORKER = {"block_size": "16", "num_gpu_blocks": "500", "block_bytes": "368640", "role": "decode"}
PLAN = Plan(rates=(3.0, 12.0), slo=Goodput(ttft_ms=120, tpot_ms=20))


def probes() -> Probes:
    """Exact, of `FILE`'s costs, as far as a client sees them."""
    prefill, decode = FILE.costs.prefill, FILE.costs.decode
    lengths = (16, 64, 128, 256, 512, 1024, 2048)
    delay_s = FILE.request_s + FILE.token_s + 2 * 0.0002
    return Probes(
        echo_s=2 * FILE.token_s,
        alone=tuple(
            Alone(
                n_tokens=n,
                ttft_s=delay_s
                + (-(-n // 512) - 1) * prefill.fixed_s
                + prefill.seconds(n, n * (n + 1) / 2),
                second_s=decode.seconds(n, 1),
                step_s=decode.seconds(n, 1),
            )
            for n in lengths
        ),
        together=(),
        steps=tuple(
            Steps(n_sequences=b, n_context=b * n, step_s=decode.seconds(b * n, b))
            for b in (1, 4, 8)
            for n in (64, 700)
        ),
        beside=(),
    )


def test_what_was_measured_is_not_measured_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "reality"
    argv = ["--model", "nowhere", "--result-dir", str(home), "--rounds", "1"]
    argv += ["--num-prompts", "60", "--setup", "split=--no-such-flag --chunk-tokens 256"]
    reality = Reality(*parse(argv))
    made = Profiled(model="m", max_model_len=4096, workers=(WORKER,), probes=probes())
    (home / "profile-split-0.json").write_bytes(msgspec.json.encode(made))
    (home / "plan-split.json").write_bytes(msgspec.json.encode(PLAN))
    for setting in reality.settings("split", 0, PLAN.rates):
        assert setting.rate is not None
        asks = prediction.poisson(setting.rate, 60, 128, 8)
        run = prediction.simulate(asks, reality.costs("split"))
        reality.store.add(Point(setting=setting, began=setting.rate, outcomes=outcomes_of(run)))
    assert main(argv) == 1  # nothing is started; one of two rates tells too little
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [row["rate"] for row in told["rows"]] == [3, 12]
    assert all(row["holds"] and abs(row["off"]) < 1e-9 for row in told["rows"])
    found = costs_file.read(home / "costs-split.json")
    assert found.prefill.per_token_s == pytest.approx(FILE.prefill.per_token_s, rel=1e-3)
    assert found.decode.fixed_s == pytest.approx(FILE.decode.fixed_s, rel=1e-3)
    chunks = ("prefill_chunk_tokens", "decode_chunk_tokens")
    assert [found.measured[name] for name in chunks] == [256, 256]
    assert main([*argv, "--seed", "1"]) == 2
    assert "choose another --result-dir" in capsys.readouterr().err
