"""Law 3, operation by operation: in float32 a row's bits depend on that row alone."""

import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from common.kernels import ops
from common.kernels.cpu import native
from common.kernels.path import kernel_path
from common.kv.cache import KVCache
from tests.conformance.kernels.conftest import paths
from tests.conformance.kernels.pools import (
    Heads,
    Sequence,
    attend,
    give_pages,
    poisoned_pool,
    random_sequence,
)

SHAPES = [(576, 960), (1536, 576), (64, 100), (80, 257), (1024, 24), (576, 2049)]
THREADS = [1, 2, 3, 5]
N_ROWS = 80


pytestmark = pytest.mark.usefixtures("threads")


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def check_rows(op: Callable[[Tensor], Tensor], x_TI: Tensor) -> None:
    """Each row alone on one thread, against random selections of rows on several."""
    ops.set_threads(1)
    alone = torch.cat([op(x_TI[t : t + 1]) for t in range(len(x_TI))])
    rng = random.Random(0)
    for threads in THREADS:
        ops.set_threads(threads)
        for n_rows in (1, 2, 3, 15, 16, 17, rng.randint(18, 70), 300):
            rows = torch.tensor(rng.choices(range(len(x_TI)), k=n_rows))
            assert torch.equal(op(x_TI[rows]), alone[rows]), f"{n_rows} rows, {threads} threads"


@pytest.mark.parametrize(("n_inputs", "n_outputs"), SHAPES)
@pytest.mark.parametrize("has_bias", [False, True])
def test_linear(n_inputs: int, n_outputs: int, has_bias: bool) -> None:  # noqa: FBT001
    w, bias = normal(n_outputs, n_inputs), normal(n_outputs) if has_bias else None
    check_rows(lambda x: ops.linear(x, w, bias), normal(N_ROWS, n_inputs))


@pytest.mark.parametrize("n", [64, 80, 100, 576, 4096])
@pytest.mark.usefixtures("path")
def test_norms_and_activation(n: int) -> None:
    weight = normal(n)
    check_rows(lambda x: ops.rms_norm(x, weight, 1e-5), normal(N_ROWS, n))
    check_rows(lambda x: ops.add_rms_norm(x, x * 3, weight, 1e-5), normal(N_ROWS, n))
    check_rows(lambda x: ops.rms_norm(x.view(len(x), -1, n), weight, 1e-5), normal(N_ROWS, 3 * n))
    gate_up = normal(2 * n, 40)
    check_rows(lambda x: ops.swiglu(x, gate_up, None), normal(N_ROWS, 40))


@pytest.mark.parametrize("page_tokens", [1, 16, 64])
@pytest.mark.parametrize(("n_rep", "head_dim"), [(1, 64), (3, 64), (4, 80), (8, 128), (5, 8)])
@pytest.mark.usefixtures("path")
def test_attention(n_rep: int, head_dim: int, page_tokens: int) -> None:
    """One pass over each sequence, against random chunks of all together, in other pages."""
    heads = Heads(n_kv_heads=2, n_rep=n_rep, head_dim=head_dim)
    rng, generator = random.Random(n_rep), torch.Generator().manual_seed(0)
    sequences = [random_sequence(heads, n, generator) for n in (1, 5, 128, 131, 300, 530)]
    pool = poisoned_pool(heads, sum(map(len, sequences)) // page_tokens + 6, page_tokens)
    ops.set_threads(1)
    whole = each_alone(pool, sequences)
    for sequence in sequences:
        sequence.written = 0
    give_pages(sequences, pool, rng)
    pool.pages_PB.fill_(255)
    parts: list[list[Tensor]] = [[] for _ in sequences]
    while left := [i for i, s in enumerate(sequences) if s.written < len(s)]:
        ops.set_threads(rng.choice(THREADS))
        some = rng.sample(left, rng.randint(1, len(left)))
        for i, part in zip(some, attend(pool, chunks(sequences, some, rng)), strict=True):
            parts[i].append(part)
    for i, part in enumerate(parts):
        assert torch.equal(torch.cat(part), whole[i])


def each_alone(pool: KVCache, sequences: list[Sequence]) -> list[Tensor]:
    give_pages(sequences, pool, random.Random(0))
    return [attend(pool, [(s, len(s))])[0] for s in sequences]


@pytest.mark.skipif(not native.available(), reason=native.why_not())
def test_all_instructions_give_the_same_bits() -> None:
    heads = Heads(n_kv_heads=2, n_rep=3, head_dim=80)
    weight, x = normal(80), normal(30, 80) * 3
    results: list[list[Tensor]] = []
    for isa in paths()[1:]:
        native.lib.set_isa(isa)
        generator = torch.Generator().manual_seed(0)
        sequences = [random_sequence(heads, n, generator) for n in (1, 140, 300)]
        pool = poisoned_pool(heads, 40, 16)
        attended = each_alone(pool, sequences)
        results.append([*attended, pool.pages_PB.clone(), ops.rms_norm(x, weight, 1e-5)])
    native.lib.set_isa(native.lib.best_isa())
    for other in results[1:]:
        for got, wanted in zip(other, results[0], strict=True):
            assert torch.equal(got, wanted)


def chunks(
    sequences: list[Sequence], some: list[int], rng: random.Random
) -> list[tuple[Sequence, int]]:
    sizes = [rng.choice([1, 1, 2, 3, 50, 270]) for _ in some]
    picked = [sequences[i] for i in some]
    return [(s, min(n, len(s) - s.written)) for s, n in zip(picked, sizes, strict=True)]


def test_the_path_s_name_is_the_same_on_any_number_of_threads() -> None:
    names = set[str]()
    for threads in THREADS:
        ops.set_threads(threads)
        names.add(kernel_path())
    assert len(names) == 1
    assert torch.__version__ in names.pop()
