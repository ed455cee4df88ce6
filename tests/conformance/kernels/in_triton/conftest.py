"""Triton's kernels on the CPU: the `path` of these tests is its interpreter.

It is right in float32 and float16 and wrong in bfloat16 (Triton 3.6 to 3.9), so that is not here.
"""

from collections.abc import Iterator

import numpy as np
import pytest

from common.kernels.cpu import native
from common.kernels.triton import choice


@pytest.fixture
def path(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    pytest.importorskip("triton", "3.7", "needs Triton; before 3.7 it fails beside numpy 2.4")
    monkeypatch.setattr(native, "_missing", "not wanted")
    choice.interpret(wanted=True)
    with np.errstate(over="ignore"):  # as on a GPU: e to the 500 is infinite, and meant to be
        yield "triton"
    choice.interpret(wanted=False)
