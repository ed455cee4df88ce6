import json
from pathlib import Path

import msgspec
import pytest

from bench.simulate import costs_file
from bench.simulate.costs import Costs, DecodeCosts, PrefillCosts, TransferCosts
from tests.unit.bench.simulate.devices import DEVICE

FILE = msgspec.structs.replace(DEVICE, measured={"prefill": "median error 2 %", "seconds": 71.5})


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    costs_file.write(path, FILE)
    assert costs_file.read(path) == FILE
    assert json.loads(path.read_text())["prefill"]["per_token_s"] == 4e-4


def test_costs_are_those_of_the_simulator() -> None:
    assert FILE.costs == Costs(
        prefill=PrefillCosts(fixed_s=0.002, per_token_s=4e-4, per_pair_s=1e-8),
        decode=DecodeCosts(fixed_s=0.007, per_context_token_s=1e-6, per_sequence_s=8e-4),
        transfer=TransferCosts(latency_s=1e-3, bytes_per_s=1e10),
        page_bytes=368_640,
    )


@pytest.mark.parametrize(
    ("section", "field", "value", "told"),
    [
        ("prefill", "per_token_s", 0, "> 0.0 - at `$.prefill.per_token_s`"),
        ("decode", "per_sequence_s", -1, ">= 0.0 - at `$.decode.per_sequence_s`"),
        ("transfer", "bytes_per_s", "fast", "`$.transfer.bytes_per_s`"),
        ("prefill", "per_square_s", 1, "unknown field `per_square_s` - at `$.prefill`"),
    ],
)
def test_a_fault_is_named(
    tmp_path: Path, section: str, field: str, value: object, told: str
) -> None:
    made = msgspec.to_builtins(FILE)
    made[section][field] = value
    path = tmp_path / "costs.json"
    path.write_bytes(msgspec.json.encode(made))
    with pytest.raises(ValueError, match=r"costs\.json") as refused:
        costs_file.read(path)
    assert told in str(refused.value)


def test_what_could_not_be_read_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    broken = msgspec.structs.replace(FILE, token_s=float("nan"))
    with pytest.raises(ValueError, match=r"token_s"):
        costs_file.write(path, broken)
    assert not path.exists()
