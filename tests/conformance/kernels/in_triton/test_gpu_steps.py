"""What measures whole passes on a GPU does so: the same code on a small model, interpreted."""

import json

import pytest
from msgspec.structs import replace

from common.engine.device import Device
from tests.gpu.rows import ROW
from tests.gpu.steps import LLAMA_3_8B, Bench, products, prompt, step

pytestmark = [pytest.mark.full, pytest.mark.usefixtures("path")]

TINY = replace(
    LLAMA_3_8B,
    hidden_size=32,
    n_layers=1,
    n_heads=2,
    n_kv_heads=1,
    head_dim=16,
    intermediate_size=32,
    vocab_size=40,
    max_position=64,
    native_dtype="float32",
)


def test_steps_and_prompts_are_measured(capsys: pytest.CaptureFixture[str]) -> None:
    bench = Bench(TINY, Device("interpreter"), n_tokens=128, max_num_seqs=2)
    bench.graphs.capture(lambda *_: None)
    step(bench, 1, 20, 1e6, n_steps=6)
    step(bench, 2, 20, 1e6, n_steps=6)
    prompt(bench, 30, 1e6)
    products(bench, 2, 1e6, 1e6)
    said = capsys.readouterr().out.splitlines()
    rows = [json.loads(line.removeprefix(ROW)) for line in said if line.startswith(ROW)]
    assert [row["key"] for row in rows if row["key"]] == ["step 1", "busy", "prompt"]
    assert len(rows) == 14
    assert all(row["measured"] > 0 and (row["floor"] or 1) > 0 for row in rows)
