"""The ways in which operations can be computed here, and threads put back as they were."""

from collections.abc import Iterator

import pytest
import torch

from common.kernels import ops
from common.kernels.cpu import native

ISAS = ("avx2", "avx512", "avx512bf16")


def paths() -> list[str]:
    """torch, then C++ by each set of instructions that this processor has."""
    if not native.available():
        return ["torch"]
    return ["torch", *ISAS[: ISAS.index(native.lib.best_isa()) + 1]]


@pytest.fixture(params=paths())
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    if request.param == "torch":  # as where nothing was compiled
        monkeypatch.setattr(native, "_missing", "not wanted")
        yield request.param
    else:
        native.lib.set_isa(request.param)
        yield request.param
        native.lib.set_isa(native.lib.best_isa())


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    ops.set_threads(before)
