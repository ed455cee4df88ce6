"""Norms, activation, rotation: what the other ways to compute are tested for, in fewer shapes."""

import random

import pytest
import torch

from common.kernels import ops, reference
from tests.conformance.kernels import test_ops
from tests.conformance.kernels.test_ops import normal

pytestmark = pytest.mark.usefixtures("path")

DTYPES = [torch.float32, torch.float16]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 576), (7, 100), (5, 9, 64), (3, 5), (2, 2080)])
def test_rms_norm(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    test_ops.test_rms_norm(dtype, shape)


@pytest.mark.parametrize("width", [576, 100])
def test_norms_round_to_the_rows_dtype_where_hugging_face_does(width: int) -> None:
    """Before the weight multiplies, and after the residual is added: to the bit."""
    x, residual = normal(7, width).half(), normal(7, width, seed=1).half()
    weight, ones = normal(width, seed=2).half(), torch.ones(width).half()
    normed = ops.rms_norm(x, ones, 1e-5)
    assert torch.equal(ops.rms_norm(x, weight, 1e-5), normed * weight)
    added = ops.add_rms_norm(x, residual, weight, 1e-5)
    assert torch.equal(added, ops.rms_norm(residual, weight, 1e-5))


def test_swiglu() -> None:
    test_ops.test_swiglu(torch.float32)
    x, w = normal(9, 3).half(), normal(2 * 51, 3, seed=1).half()
    rounded = reference.linear(x, w, None).half()
    test_ops.check(ops.swiglu(x, w, None), reference.silu_mul(rounded), torch.float16)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("head_dim", "page_tokens"), [(64, 16), (80, 1), (96, 64), (10, 4)])
def test_rope_and_write(dtype: torch.dtype, head_dim: int, page_tokens: int) -> None:
    test_ops.test_rope_and_write(dtype, head_dim, page_tokens)


@pytest.mark.parametrize(("dtype", "with_norms"), [(DTYPES[0], True), (DTYPES[1], False)])
def test_attention_is_its_parts(dtype: torch.dtype, with_norms: bool) -> None:  # noqa: FBT001
    test_ops.test_attention_is_its_parts(dtype, with_norms)


def test_a_page_s_padding_is_left_alone() -> None:
    test_ops.test_a_page_s_padding_is_left_alone()


@pytest.mark.parametrize("n", [64, 100, 1536])
def test_a_row_s_bits_depend_on_that_row_alone(n: int) -> None:
    x, weight, gate_up = normal(12, n), normal(n, seed=1), normal(2 * n, 40, seed=2)
    chosen = random.Random(n).choices(range(12), k=17)
    together = [
        ops.rms_norm(x[chosen], weight, 1e-5),
        ops.add_rms_norm(x[chosen], x[chosen] * 3, weight, 1e-5),
        ops.swiglu(x[chosen][:, :40], gate_up, None),
    ]
    for at, row in enumerate(chosen):
        alone = x[row : row + 1]
        assert torch.equal(ops.rms_norm(alone, weight, 1e-5)[0], together[0][at])
        assert torch.equal(ops.add_rms_norm(alone, alone * 3, weight, 1e-5)[0], together[1][at])
        assert torch.equal(ops.swiglu(alone[:, :40], gate_up, None)[0], together[2][at])
