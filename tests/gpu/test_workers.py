"""What measures workers on a GPU does so: the same code on CPUs, over a small model."""

import json
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace

from common.model.load import load_model
from tests.gpu.model_file import file_bytes, write_model
from tests.gpu.rows import ROW
from tests.gpu.steps import LLAMA_3_8B

SMALL = replace(
    LLAMA_3_8B,
    hidden_size=64,
    n_layers=2,
    n_heads=4,
    n_kv_heads=2,
    head_dim=16,
    intermediate_size=96,
    vocab_size=300,
    max_position=512,
)


def rows(said: str) -> dict[str, float]:
    found = [json.loads(n.removeprefix(ROW)) for n in said.splitlines() if n.startswith(ROW)]
    return {row["name"]: row["measured"] for row in found}


def test_a_model_is_written_that_can_be_loaded(tmp_path: Path) -> None:
    write_model(tmp_path / "model", SMALL, torch.device("cpu"))
    loaded = load_model(tmp_path / "model", torch.bfloat16, None, 64)
    assert loaded.spec == SMALL
    assert (tmp_path / "model" / "model.safetensors").stat().st_size > file_bytes(SMALL)


@pytest.mark.full
def test_handoffs_are_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from tests.gpu.handoff import LOG, TimedGateway, second_tokens, together
    from tests.system.pairs import workers  # imports transformers

    write_model(tmp_path / "model", SMALL, torch.device("cpu"))
    options = {"dtype": "bfloat16", "max_num_seqs": 4, "request_log": str(tmp_path / LOG)}
    with workers(tmp_path, TimedGateway(tmp_path / "r"), **options) as gateway:
        second_tokens(gateway, SMALL, tmp_path / LOG, n_asked=4, n_tokens=200)
        found = {f"the device's own time of a step, 4 at {n}": 1.0 for n in (2048, 2560)}
        together(gateway, SMALL, found, n=4, n_tokens=30, n_out=60)
    said = capsys.readouterr().out
    measured = rows(said)
    assert len(measured) == 5
    assert all(ms > 0 for name, ms in measured.items() if "beyond" not in name)
    assert "migration_end" in said


@pytest.mark.full
def test_answers_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from tests.gpu.tokens import SMOLLM2, compare

    config = type(SMOLLM2)(**{**SMOLLM2.to_dict(), "num_hidden_layers": 2, "vocab_size": 300})
    assert compare(tmp_path, config, most_tokens=50, max_num_seqs=32)
    assert list(rows(capsys.readouterr().out).values()) == [24.0]
