"""Products by the C++ kernels, for every set of instructions that this processor has."""

import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from common.kernels import native_products, ops, reference
from common.kernels.cpu import native
from common.kernels.matrix import Matrix, PackedMatrix, plain, prepare

pytestmark = pytest.mark.skipif(not native.available(), reason=native.why_not())

ALL = ("avx2", "avx512", "avx512bf16")
ISAS = ALL[: ALL.index(native.lib.best_isa()) + 1] if native.available() else ()
DTYPES = (torch.float32, torch.bfloat16)
THREADS = (1, 2, 3, 5)
UNIT = 2.0**-24  # of float32's last place: half of it, relative to 1


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
    x_TI: Tensor
    w_OI: Tensor
    bias_O: Tensor | None

    @property
    def matrix(self) -> PackedMatrix:
        return packed(self.w_OI)


def packed(w_OI: Tensor, *, gated: bool = False) -> PackedMatrix:
    matrix = prepare(w_OI, gated=gated)
    assert isinstance(matrix, PackedMatrix)
    return matrix


def case(rng: random.Random, dtype: torch.dtype) -> Case:
    """Sizes beside every boundary: of blocks, pairs, tiles, chunks of rows and of inputs."""
    n_rows = rng.choice([1, 2, rng.randint(3, 13), rng.randint(14, 50), rng.randint(190, 300)])
    n_inputs = rng.choice([1, rng.randint(2, 70), rng.randint(71, 700), rng.randint(1020, 2100)])
    n_outputs = 2 * rng.choice([1, 16, rng.randint(2, 30), rng.randint(31, 99)])
    generator = torch.Generator().manual_seed(rng.randrange(1 << 30))

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(dtype)

    bias_O = normal(n_outputs) if rng.random() < 0.5 else None
    return Case(normal(n_rows, n_inputs), normal(n_outputs, n_inputs), bias_O)


def rounding(c: Case) -> Tensor:
    """Bound on what float32 additions in any order can lose."""
    n_terms = c.x_TI.shape[1] + 2
    bias_O = None if c.bias_O is None else c.bias_O.abs()
    return n_terms * UNIT * reference.linear(c.x_TI.abs(), c.w_OI.abs(), bias_O)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("seed", range(25))
@pytest.mark.usefixtures("isa")
def test_linear(dtype: torch.dtype, seed: int) -> None:
    rng = random.Random(seed)
    c = case(rng, dtype)
    ops.set_threads(rng.choice(THREADS))
    wanted = reference.linear(c.x_TI, c.w_OI, c.bias_O)
    got = ops.linear(c.x_TI, c.matrix, c.bias_O)
    assert got.dtype == dtype
    allowed = rounding(c) + (wanted.abs() * 2**-8 if dtype == torch.bfloat16 else 0)
    assert ((got.double() - wanted).abs() <= allowed).all()
    logits = ops.logits(c.x_TI, c.matrix)
    assert logits.dtype == torch.float32
    unbiased = reference.linear(c.x_TI, c.w_OI, None)
    assert ((logits.double() - unbiased).abs() <= rounding(c)).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.usefixtures("isa")
def test_swiglu(dtype: torch.dtype, seed: int) -> None:
    rng = random.Random(seed)
    c = case(rng, dtype)
    c.x_TI.mul_(c.x_TI.shape[1] ** -0.5)
    ops.set_threads(rng.choice(THREADS))
    got = ops.swiglu(c.x_TI, packed(c.w_OI, gated=True), c.bias_O)
    assert got.dtype == dtype
    wanted = reference.silu_mul(reference.linear(c.x_TI, c.w_OI, c.bias_O))
    tolerance = 2e-5 if dtype == torch.float32 else 1e-2
    torch.testing.assert_close(got.double(), wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.usefixtures("isa")
def test_swiglu_of_gates_whose_exponentials_overflow() -> None:
    gate_up = packed(torch.tensor([[1.0], [1.0]]), gated=True)
    got = ops.swiglu(torch.tensor([[200.0], [-200.0], [90.0], [0.0]]), gate_up, None)
    torch.testing.assert_close(got, torch.tensor([[40000.0], [0.0], [8100.0], [0.0]]))


@pytest.mark.usefixtures("isa")
def test_bfloat16_results_are_the_float32_ones_rounded_once() -> None:
    x = torch.randn(40, 64, generator=torch.Generator().manual_seed(0)).bfloat16()
    x[3, 5], x[7, 9] = torch.inf, torch.nan
    matrix = packed(torch.randn(70, 64, generator=torch.Generator().manual_seed(1)).bfloat16())
    exact = ops.logits(x, matrix)
    assert torch.equal(ops.linear(x, matrix, None).nan_to_num(-1), exact.bfloat16().nan_to_num(-1))
    assert exact.isfinite().all(1).sum() == 38


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_with_an_odd_pair_reads_nothing_of_the_next(dtype: torch.dtype) -> None:
    x = torch.ones(4, 33, dtype=dtype)
    x[1::2] = torch.nan
    got = ops.linear(x, packed(torch.ones(5, 33, dtype=dtype)), None)
    assert (got[::2] == 33).all()
    assert got[1::2].isnan().all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("seed", range(6))
def test_a_row_has_the_same_bits_in_any_company(isa: str, dtype: torch.dtype, seed: int) -> None:
    """Law 3; in float32 also whatever the instructions."""
    rng = random.Random(seed)
    c = case(rng, dtype)
    matrix, gated = c.matrix, packed(c.w_OI, gated=True)
    ops.set_threads(1)
    if dtype == torch.float32:
        native.lib.set_isa("avx2")
    rows = [c.x_TI[t : t + 1] for t in range(len(c.x_TI))]
    alone = torch.cat([ops.linear(row, matrix, c.bias_O) for row in rows])
    alone_gated = torch.cat([ops.swiglu(row, gated, c.bias_O) for row in rows])
    native.lib.set_isa(isa)
    for threads in THREADS:
        ops.set_threads(threads)
        for n_rows in (1, 2, 7, 12, 13, 25, rng.randint(26, 180), 400):
            some = torch.tensor(rng.choices(range(len(c.x_TI)), k=n_rows))
            assert torch.equal(ops.linear(c.x_TI[some], matrix, c.bias_O), alone[some])
            assert torch.equal(ops.swiglu(c.x_TI[some], gated, c.bias_O), alone_gated[some])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(64, 96), (101, 33), (2, 1), (66, 7)])
@pytest.mark.parametrize("gated", [False, True])
def test_rows_come_out_as_they_went_in(
    dtype: torch.dtype,
    shape: tuple[int, int],
    gated: bool,  # noqa: FBT001
) -> None:
    w = torch.randn(2 * shape[0] if gated else shape[0], shape[1]).to(dtype)
    matrix = packed(w, gated=gated)
    assert torch.equal(plain(matrix), w)
    ids = torch.tensor([len(w) - 1, 0, 1, len(w) - 1])
    assert torch.equal(ops.embed(ids, matrix), w[ids])
    for bad in (-1, len(w)):
        with pytest.raises(IndexError):
            ops.embed(torch.tensor([0, bad]), matrix)


def test_no_rows_give_no_rows_and_misfits_are_refused() -> None:
    matrix = packed(torch.ones(40, 8))
    assert ops.linear(torch.empty(0, 8), matrix, None).shape == (0, 40)
    for x in (torch.ones(2, 9), torch.ones(2, 8).bfloat16()):
        with pytest.raises(ValueError, match=r"rows .* for PackedMatrix"):
            ops.linear(x, matrix, None)


@pytest.mark.parametrize("make", [prepare, lambda w: w], ids=["packed", "plain"])
def test_a_result_goes_where_it_is_wanted(make: Callable[[Tensor], Matrix]) -> None:
    x, w, out = torch.randn(3, 8), torch.randn(40, 8), torch.empty(3, 40)
    assert ops.linear(x, make(w), None, out) is out
    assert torch.equal(out, ops.linear(x, make(w), None))
    for misfit in (torch.empty(3, 39), torch.empty(40, 3).T, torch.empty(3, 40).bfloat16()):
        with pytest.raises(ValueError, match="for 3 rows"):
            ops.linear(x, packed(w), None, misfit)


@pytest.mark.parametrize("dtype", DTYPES)
def test_tuning_tries_part_of_a_large_matrix_and_changes_no_result(dtype: torch.dtype) -> None:
    w = torch.randn(200_000, 128, generator=torch.Generator().manual_seed(0)).to(dtype)
    matrix = packed(w)
    x = torch.randn(9, 128, generator=torch.Generator().manual_seed(1)).to(dtype)
    ops.set_threads(2)
    before = ops.logits(x, matrix)
    border = native_products.tune(matrix)
    assert border is not None
    assert 4 <= border <= 11
    assert native.lib.n_threads() == 2
    assert torch.equal(ops.logits(x, matrix), before)
    assert native_products.tune(packed(torch.ones(40, 8, dtype=dtype))) is None


def test_callers_on_several_threads_each_get_their_own_result() -> None:
    """While one has the workers, others compute alone; workers sleep and wake in between."""
    w = torch.randn(300, 70, generator=torch.Generator().manual_seed(0))
    matrix = packed(w)
    xs = [torch.full((n, 70), float(n)) for n in (1, 2, 5, 13)]
    wanted = [ops.linear(x, matrix, None) for x in xs]
    ops.set_threads(3)

    def call(i: int) -> bool:
        if i % 50 == 0:
            time.sleep(0.001)
        return torch.equal(ops.linear(xs[i % 4], matrix, None), wanted[i % 4])

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(call, range(2000)))
