"""Where a worker computes, and what it is told where it cannot."""

from collections.abc import Iterator

import pytest
import torch

from common.engine.device import Device, open_device
from common.errors import SetupError
from common.kernels.cpu import native
from common.kernels.matrix import packs
from common.kernels.path import kernels
from common.kernels.triton import choice
from common.spellings import cuda_number


@pytest.fixture
def restored(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What is chosen for good."""
    monkeypatch.setattr(native, "_missing", native.why_not())
    yield
    choice.interpret(wanted=False)


@pytest.mark.parametrize(
    ("name", "number"), [("cuda", 0), ("cuda:0", 0), ("cuda:12", 12), ("cpu", None), ("auto", None)]
)
def test_the_number_of_a_cuda_device(name: str, number: int | None) -> None:
    assert cuda_number(name) == number


@pytest.mark.parametrize("name", ["auto", "cpu"])
def test_the_cpu(name: str) -> None:
    device = open_device(name, "bfloat16")
    assert (device, device.torch) == (Device("cpu"), torch.device("cpu"))


def test_tensors_of_a_cuda_device_lie_there() -> None:
    assert Device("cuda:1", 1).torch == torch.device("cuda:1")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_device_that_is_not_there_is_refused() -> None:
    with pytest.raises(SetupError, match=r"^--devices cuda:0: torch .* sees 0 CUDA devices$"):
        open_device("cuda:0", "bfloat16")


def test_fp8_is_refused_where_the_device_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[int] = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch.cuda, "get_device_capability", [(8, 0), (8, 9), (10, 0)].__getitem__)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setattr(native, "_missing", native.why_not())
    with pytest.raises(SetupError, match=r"fp8: cuda:0 is of compute capability 8.0, and .* 8.9"):
        open_device("cuda:0", "bfloat16", fp8=True)
    assert chosen == []
    open_device("cuda:0", "bfloat16")
    for number in (1, 2):
        assert open_device(f"cuda:{number}", "bfloat16", fp8=True).number == number
    assert chosen == [0, 1, 2]


@pytest.mark.usefixtures("restored")
def test_the_interpreter_takes_the_place_of_the_cpu_s_kernels() -> None:
    pytest.importorskip("triton", "3.7")
    assert open_device("interpreter", "float32").torch == torch.device("cpu")
    assert choice.computes(torch.zeros(1))
    assert not packs(torch.float32)
    assert kernels(torch.float32).endswith("(interpreted)")


def test_the_interpreter_is_refused_where_it_is_wrong_or_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(SetupError, match="--dtype float32 or float16"):
        open_device("interpreter", "bfloat16")
    knobs = pytest.importorskip("triton.knobs")
    monkeypatch.setattr(knobs.runtime, "interpret", False)
    with pytest.raises(SetupError, match="TRITON_INTERPRET=1"):
        open_device("interpreter", "float32")
