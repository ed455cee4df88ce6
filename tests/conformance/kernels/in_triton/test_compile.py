"""Kernels compile for GPUs that are not here, and keep to what the chips have."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", "3.9", "older compilers take more registers than the bounds allow")

from bench.kernels_compile import Compiled, main

FP8_KERNELS = ("decode attention", "prefill attention", "rope and write")
FINE = {
    "kernel": "prefill attention",
    "shape": "any",
    "chip": 90,
    "registers": 200,
    "spilled_bytes": 0,
    "shared_bytes": 200_000,
    "tensor_core": 24,
    "newest_tensor_core": 24,
    "wide_accesses": 8,
}


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({}, ""),
        ({"spilled_bytes": 8}, "spills 8 bytes"),
        ({"chip": 80}, "200000 bytes of shared memory"),
        ({"kernel": "decode merge"}, "200 registers"),
        ({"newest_tensor_core": 0}, "wgmma"),
        ({"wide_accesses": 0}, "16 bytes"),
        ({"kernel": "decode attention", "registers": 99, "shared_bytes": 99_000}, "99000 bytes"),
        ({"kernel": "decode attention, fp8", "registers": 129}, "129 registers"),
        ({"kernel": "decode attention, fp8", "tensor_core": 0}, "no tensor-core"),
        ({"kernel": "prefill attention, fp8", "registers": 255}, ""),
        ({"kernel": "prefill attention, fp8", "newest_tensor_core": 0}, "wgmma"),
    ],
)
def test_what_must_not_be_is_a_fault(change: dict[str, int | str], fault: str) -> None:
    found = Compiled(**{**FINE, **change}).faults()  # pyright: ignore[reportArgumentType] by name
    assert (fault in " ".join(found)) if fault else not found


@pytest.mark.parametrize("model", ["Llama-3-8B", pytest.param("SmolLM2", marks=pytest.mark.full)])
def test_kernels_compile_for_every_chip(tmp_path: Path, model: str) -> None:
    """The command compiles for all models. A process of its own: here it interprets."""
    command = ["env", "-u", "TRITON_INTERPRET", f"TRITON_CACHE_DIR={tmp_path}", sys.executable]
    command += ["-m", "bench.kernels", "--compile-only", "--models", model]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(done.stdout.splitlines()[-1])["rows"]
    of_chip = {
        chip: {row["kernel"] for row in rows if row["chip"] == chip} for chip in (80, 90, 100)
    }
    assert len(of_chip[80]) == 13
    in_fp8 = {f"{kernel}, fp8" for kernel in FP8_KERNELS}
    assert of_chip[90] == of_chip[100] == of_chip[80] | in_fp8
    assert len(rows) == sum(map(len, of_chip.values()))


def test_a_model_that_is_not_there_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--compile-only", "--models", "Llama-9"])
    assert ended.value.code == 2
    assert "Llama-9: none of 'SmolLM2-135M'" in capsys.readouterr().err
