"""Products with weights that are kept quantised, for every set of instructions that is here."""

import random
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from gguf.quants import quantize
from torch import Tensor

from common.kernels import native_products, ops, reference
from common.kernels.cpu import native
from common.kernels.formats import WeightFormat, decode, encode_int8, has_unopposed_codes
from common.kernels.matrix import PackedMatrix, pack, plain

pytestmark = pytest.mark.skipif(not native.available(), reason=native.why_not())

ALL = ("avx2", "avx512", "avx512bf16")
ISAS = ALL[: ALL.index(native.lib.best_isa()) + 1] if native.available() else ()
DTYPES = (torch.float32, torch.bfloat16)
FORMATS = (WeightFormat.INT8, WeightFormat.Q8_0, WeightFormat.Q4_1)
GROUP = 32
N_ROWS = (1, 2, 3, 5, 8, 9, 17, 24, 25, 33, 64, 65, 200)


@pytest.fixture(params=ISAS)
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    native.lib.set_isa(request.param)
    yield request.param
    native.lib.set_isa(native.lib.best_isa())


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    ops.set_threads(before)


class Case(NamedTuple):
    stored_OB: Tensor
    w_OI: Tensor  # what is stored
    weight_format: WeightFormat
    generator: torch.Generator

    def packed(self, dtype: torch.dtype, *, gated: bool = False) -> PackedMatrix:
        return pack(self.stored_OB, self.w_OI.shape, dtype, self.weight_format, gated=gated)

    def rows(self, n: int, dtype: torch.dtype) -> Tensor:
        return torch.randn(n, self.w_OI.shape[1], generator=self.generator).to(dtype)


def store(w_OI: Tensor, weight_format: WeightFormat) -> Tensor:
    if weight_format is WeightFormat.INT8:
        return encode_int8(w_OI)
    return torch.from_numpy(quantize(w_OI.numpy(), GGMLQuantizationType[weight_format.name]))


def case(weight_format: WeightFormat, seed: int) -> Case:
    """Sizes beside every boundary: of blocks, words and groups. Rows of very different scales."""
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    n_outputs = 2 * rng.choice([1, 16, rng.randint(2, 30), rng.randint(31, 99)])
    n_inputs = rng.choice([1, rng.randint(2, 70), rng.randint(71, 700), rng.randint(1020, 2100)])
    if weight_format is not WeightFormat.INT8:
        n_inputs = -(-n_inputs // GROUP) * GROUP
    scale_O1 = torch.logspace(-3, 2, n_outputs)[:, None]
    w_OI = torch.randn(n_outputs, n_inputs, generator=generator) * scale_O1 + scale_O1 / 2
    stored_OB = store(w_OI, weight_format)
    return Case(stored_OB, decode(stored_OB, weight_format), weight_format, generator)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("weight_format", FORMATS)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.usefixtures("isa")
def test_linear(weight_format: WeightFormat, dtype: torch.dtype, seed: int) -> None:
    c = case(weight_format, seed)
    matrix = c.packed(dtype)
    bias_O = torch.randn(len(c.w_OI), generator=c.generator).to(dtype)
    ops.set_threads(1 + seed % 3)
    for n_rows in N_ROWS:
        x_TI = c.rows(n_rows, dtype)
        got = ops.logits(x_TI, matrix)
        assert got.dtype == torch.float32
        check(got, x_TI, c.w_OI, None)
        check(ops.linear(x_TI, matrix, bias_O), x_TI, c.w_OI, bias_O)


def check(got: Tensor, x_TI: Tensor, w_OI: Tensor, bias_O: Tensor | None) -> None:
    """Within what rounding of the weights, the sums and the result to x's dtype may lose."""
    wanted = reference.linear(x_TI, w_OI, bias_O)
    largest = reference.linear(x_TI.abs(), w_OI.abs(), None if bias_O is None else bias_O.abs())
    unit = 1.01 * 2.0**-7 if x_TI.dtype == torch.bfloat16 else x_TI.shape[1] * 2.0**-22
    assert ((got.double() - wanted).abs() <= unit * largest + 1e-30).all()


@pytest.mark.parametrize("weight_format", FORMATS)
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.usefixtures("isa")
def test_bfloat16_is_as_good_as_with_weights_rounded_to_it(
    weight_format: WeightFormat, seed: int
) -> None:
    """All together, where errors average out."""
    c = case(weight_format, seed)
    matrix = c.packed(torch.bfloat16)
    for n_rows in N_ROWS[4:]:
        x_TI = c.rows(n_rows, torch.bfloat16)
        wanted = reference.linear(x_TI, c.w_OI, None)
        rounded = reference.linear(x_TI, c.w_OI.bfloat16(), None)
        error = (ops.logits(x_TI, matrix).double() - wanted).norm()
        assert error <= 1.1 * (rounded - wanted).norm() + 1e-6 * wanted.norm()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("weight_format", FORMATS)
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.usefixtures("isa")
def test_swiglu(weight_format: WeightFormat, dtype: torch.dtype, seed: int) -> None:
    c = case(weight_format, seed)
    c = c._replace(stored_OB=store(c.w_OI.clamp(-2, 2), weight_format))
    w_OI = decode(c.stored_OB, weight_format)
    matrix = c.packed(dtype, gated=True)
    for n_rows in (1, 3, 8, 20, 70):
        x_TI = c.rows(n_rows, dtype) * w_OI.shape[1] ** -0.5
        wanted = reference.silu_mul(reference.linear(x_TI, w_OI, None))
        tolerance = 2e-5 if dtype == torch.float32 else 3e-2
        got = ops.swiglu(x_TI, matrix, None)
        torch.testing.assert_close(got.double(), wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("weight_format", FORMATS)
@pytest.mark.parametrize("seed", range(3))
def test_a_float32_row_has_the_same_bits_in_any_company(
    isa: str, weight_format: WeightFormat, seed: int
) -> None:
    """Law 3; also whatever the instructions."""
    rng, c = random.Random(seed), case(weight_format, seed)
    matrix, x_TI = c.packed(torch.float32), c.rows(70, torch.float32)
    ops.set_threads(1)
    native.lib.set_isa("avx2")
    alone = torch.cat([ops.linear(x_TI[t : t + 1], matrix, None) for t in range(len(x_TI))])
    native.lib.set_isa(isa)
    for n_rows in (1, 2, 7, 12, 13, 25, 180, 400):
        ops.set_threads(rng.choice((1, 2, 3)))
        some = torch.tensor(rng.choices(range(len(x_TI)), k=n_rows))
        assert torch.equal(ops.linear(x_TI[some], matrix, None), alone[some])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("weight_format", FORMATS)
@pytest.mark.parametrize("seed", range(4))
def test_rows_come_out_as_they_went_in_but_for_one_rounding(
    weight_format: WeightFormat, dtype: torch.dtype, seed: int
) -> None:
    c = case(weight_format, seed)
    for gated in (False, True):
        matrix = c.packed(dtype, gated=gated)
        assert torch.equal(plain(matrix), c.w_OI.to(dtype))
        ids = torch.tensor([len(c.w_OI) - 1, 0, 1, len(c.w_OI) - 1])
        assert torch.equal(ops.embed(ids, matrix), c.w_OI[ids].to(dtype))
        with pytest.raises(IndexError):
            ops.embed(torch.tensor([len(c.w_OI)]), matrix)


@pytest.mark.parametrize("weight_format", FORMATS)
@pytest.mark.usefixtures("isa")
def test_every_code_and_extreme_scales(weight_format: WeightFormat) -> None:
    """Rows of the identity read each weight alone; scales include halves that are subnormal."""
    halves = np.array([1.0, -2.5, 6e-8, 3e-5, 0.0, 1000.0], np.float16)
    codes = torch.arange(-127, 128, dtype=torch.int8)
    blocks: list[Tensor] = []
    for scale in halves:
        if weight_format is WeightFormat.INT8:
            head = torch.tensor([float(scale)]).view(torch.uint8)
            blocks.append(torch.cat((head, codes.view(torch.uint8))))
            continue
        head = torch.from_numpy(np.array([scale]).view(np.uint8))
        if weight_format is WeightFormat.Q8_0:
            parts = torch.cat((codes, codes[:1])).view(torch.uint8).view(8, GROUP)
        else:
            head = torch.cat((head, torch.from_numpy(np.array([0.5 * scale]).view(np.uint8))))
            parts = (17 * torch.arange(16, dtype=torch.uint8)).view(1, 16)
        blocks.append(torch.cat([torch.cat((head, part)) for part in parts]))
    stored_OB = torch.stack(blocks)
    w_OI = decode(stored_OB, weight_format)
    for dtype in DTYPES:
        matrix = pack(stored_OB, w_OI.shape, dtype, weight_format)
        assert torch.equal(plain(matrix), w_OI.to(dtype))
        eye = torch.eye(w_OI.shape[1]).to(dtype)
        for rows in (eye[:5], eye):
            got = ops.logits(rows, matrix).T
            torch.testing.assert_close(
                got, w_OI[:, : len(rows)], rtol=2**-8 if dtype == torch.bfloat16 else 0, atol=0
            )


def test_int8_codes_are_the_nearest_and_rows_of_zeros_stay_zeros() -> None:
    w = torch.randn(50, 77, generator=torch.Generator().manual_seed(0))
    w[7] = 0
    stored = encode_int8(w)
    scale = w.abs().amax(-1, keepdim=True) / 127
    error = (decode(stored, WeightFormat.INT8) - w).abs()
    assert (error <= scale * 0.5001).all()
    assert (decode(stored, WeightFormat.INT8).abs().amax(-1) <= w.abs().amax(-1) * 1.0001).all()
    assert not decode(stored, WeightFormat.INT8)[7].any()


def test_codes_without_an_opposite_are_found() -> None:
    stored = store(torch.randn(3, 64), WeightFormat.Q8_0)
    stored[:, [0, 34]] = 128  # bytes of scales are not codes
    assert not has_unopposed_codes(stored, WeightFormat.Q8_0)
    stored[1, 40] = 128
    assert has_unopposed_codes(stored, WeightFormat.Q8_0)
    assert not has_unopposed_codes(stored, WeightFormat.Q4_1)


def test_what_is_kept_quantised_is_not_tuned() -> None:
    matrix = pack(store(torch.ones(40, 64), WeightFormat.Q8_0), (40, 64), torch.bfloat16,
                  WeightFormat.Q8_0)  # fmt: skip
    assert native_products.tune(matrix) is None
