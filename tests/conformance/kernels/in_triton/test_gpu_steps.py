"""What measures whole passes on a GPU does so: the same code on a small model, interpreted."""

import json
from collections.abc import Callable

import pytest
import torch
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
    assert [row["key"] for row in rows if row["key"]] == ["step 1", "prompt"]
    assert len(rows) == 15
    assert all(row["measured"] > 0 and (row["floor"] or 1) > 0 for row in rows)


def test_kernels_are_measured(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that is launched, once each and small."""
    from bench import kernels_tune
    from tests.gpu import kernels

    for module in (kernels, kernels_tune):
        monkeypatch.setattr(module, "DTYPE", torch.float32)
    monkeypatch.setattr(kernels, "GPU", torch.device("cpu"))
    monkeypatch.setattr(kernels, "median_ms", seconds)
    shape = kernels.Shape(
        name="small", hidden=32, intermediate=48, n_heads=2, n_kv_heads=1, head_dim=16, n_vocab=50
    )
    kernels.measure_shape(shape, kernels.Floors(1e6, 1e6), n=2, n_keys=32, page_bytes=4096)
    said = capsys.readouterr().out.splitlines()
    assert all(line.startswith(ROW) for line in said), said
    rows = [json.loads(line.removeprefix(ROW)) for line in said]
    keys = [row["key"] for row in rows if row["key"]]
    assert keys == ["decode attention", "prefill attention"]
    assert len(rows) == 16


def seconds(run: Callable[[], object]) -> float:
    run()
    return 1.0
