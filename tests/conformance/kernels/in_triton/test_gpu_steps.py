"""What measures whole passes on a GPU does so: the same code on a small model, interpreted."""

import pytest
from msgspec.structs import replace

from common.engine.device import Device
from tests.gpu.steps import LLAMA_3_8B, Bench, prompt_row, step_rows

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


def test_steps_and_prompts_are_measured() -> None:
    bench = Bench(TINY, Device("interpreter"), n_tokens=128, max_num_seqs=2)
    bench.graphs.capture(lambda *_: None)
    rows = [*step_rows(bench, 2, 20, 1.2, 1e6, n_steps=6), prompt_row(bench, 30, 1e6)]
    assert [row.name for row in rows] == [
        "decode step, 2 at 20",
        "the device's part of it, 2 at 20",
        "prompt, one pass of 30",
    ]
    assert all(row.ms > 0 and row.floor_ms > 0 for row in rows)
