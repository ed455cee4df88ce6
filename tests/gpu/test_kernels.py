"""Kernels as they run on a GPU: what the interpreter cannot show. `tests/gpu/run.sh` runs these."""

import random
from dataclasses import fields

import numpy as np
import pytest
import torch
from torch import Tensor

from common.kernels import ops, reference
from common.kernels.paged import KVLayer, Scratch
from common.kernels.triton.sampling_rows import SamplingRows
from common.kv.cache import KVCache
from common.sampling import sample, uniform_bits
from tests.conformance.kernels.pools import (
    Heads,
    Sequence,
    give_pages,
    poisoned_pool,
    random_sequence,
    rows,
    write,
)
from tests.conformance.kernels.test_attention import check as check_attention
from tests.conformance.kernels.test_draws import draw, logits, rules
from tests.conformance.kernels.test_ops import check, normal

pytestmark = pytest.mark.gpu

GPU = torch.device("cuda")
DTYPES = [torch.float32, torch.bfloat16]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 576), (7, 4096), (5, 32, 128)])
def test_norms(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    x, weight = normal(*shape).to(dtype), normal(shape[-1], seed=1).to(dtype)
    got = ops.rms_norm(x.to(GPU), weight.to(GPU), 1e-5)
    check(got.cpu(), reference.rms_norm(x, weight, 1e-5), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_activation(dtype: torch.dtype) -> None:
    from common.kernels.triton.activation import silu_mul

    gate_up = normal(9, 2 * 1536).to(dtype)
    check(silu_mul(gate_up.to(GPU), None).cpu(), reference.silu_mul(gate_up), dtype)


def attend(pool: KVCache, chunks: list[tuple[Sequence, int]]) -> list[Tensor]:
    """Written on the CPU, attended to on the GPU."""
    q_TND = rows("q_SND", chunks, pool)
    inputs = write(pool, chunks)
    elements = pool.pages_PB.to(GPU).view(pool.dtype).view(-1)
    layer = KVLayer.of(elements, pool.geometry, 0, Scratch())
    attended_TND = ops.attend(q_TND.to(GPU), layer, inputs.rows).cpu()
    return list(attended_TND.split([n for _, n in chunks]))


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("bfloat16", 0.04)])
@pytest.mark.parametrize(("n_rep", "head_dim"), [(1, 128), (3, 64), (4, 128), (8, 128), (4, 80)])
def test_attention(n_rep: int, head_dim: int, dtype: str, tolerance: float) -> None:
    heads = Heads(n_kv_heads=2, n_rep=n_rep, head_dim=head_dim)
    rng, generator = random.Random(n_rep), torch.Generator().manual_seed(head_dim)
    sequences = [random_sequence(heads, n, generator) for n in (1, 300, 2, 1025)]
    pool = poisoned_pool(heads, 100, 16, dtype=dtype)
    give_pages(sequences, pool, rng)
    for n_tokens in (1, 700, 1, 400):
        left = [s for s in sequences if s.written < len(s)]
        chunks = [(s, min(n_tokens, len(s) - s.written)) for s in left]
        for (sequence, n), got in zip(chunks, attend(pool, chunks), strict=True):
            check_attention(got, sequence, n, tolerance)


def test_in_float32_decode_and_prefill_give_a_row_the_same_bits() -> None:
    heads = Heads(n_kv_heads=2, n_rep=4, head_dim=128)
    sequence = random_sequence(heads, 600, torch.Generator().manual_seed(0))
    pool = poisoned_pool(heads, 50, 16)
    give_pages([sequence], pool, random.Random(0))
    whole = attend(pool, [(sequence, 600)])[0]
    sequence.written = 599
    assert torch.equal(attend(pool, [(sequence, 1)])[0][0], whole[599])


@pytest.mark.parametrize("n_vocab", [7, 1025, 49152])
def test_tokens_are_those_that_the_cpu_draws(n_vocab: int) -> None:
    rng = random.Random(n_vocab)
    z = torch.stack([logits(rng, n_vocab) for _ in range(60)])
    draws = [draw(rules(rng)) for _ in z]
    assert sample(z.to(GPU), draws) == sample(z, draws)


def test_uniforms_are_those_of_the_cpu() -> None:
    from common.kernels.triton import sampling_uniform

    rng = random.Random(0)
    keys = [(rng.randrange(2**63), rng.randrange(9), rng.randrange(2**20)) for _ in range(100)]
    out = torch.empty(len(keys), dtype=torch.int64, device=GPU)
    sampling_uniform.launch(torch.tensor(keys, device=GPU), out).run()
    assert out.tolist() == [uniform_bits(*key) for key in keys]


def test_sampling_waits_for_nothing() -> None:
    from common.kernels.triton import sampling

    z = torch.randn(8, 4096, device=GPU)
    rules_of = SamplingRows.of([draw(rules(random.Random(r))) for r in range(8)], {}, 4096, GPU)
    assert all(getattr(rules_of, field.name).is_cuda for field in fields(rules_of))
    sampling.sample(z, rules_of)  # compiled
    torch.cuda.set_sync_debug_mode("error")
    try:
        tokens = sampling.sample(z, rules_of)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert (tokens >= 0).all()


def test_pages_are_copied_whole() -> None:
    from common.kernels.triton.pages import copy_runs

    n = 368_640
    pool = torch.randint(256, (50 * n,), dtype=torch.uint8, device=GPU)
    pages = random.Random(0).sample(range(50), 20)
    together = torch.zeros(20 * n, dtype=torch.uint8, device=GPU)
    runs = [(page * n, i * n, n) for i, page in enumerate(pages)]
    copy_runs(pool, together, torch.tensor(runs, device=GPU), n)
    assert torch.equal(together.view(20, n), pool.view(50, n)[pages])


def test_a_region_s_pages_are_a_tensor() -> None:
    pytest.importorskip("cupy")
    from transfer.cuda_device import CudaDevice, cupy_runtime
    from transfer.cuda_memory import DevicePages

    memory = DevicePages(CudaDevice(cupy_runtime(), 0), 3, 4096)
    tensor = torch.as_tensor(memory, device=GPU)
    tensor[1] = 7
    torch.cuda.synchronize()
    assert (memory.pages[1] == np.full(4096, 7, np.uint8)).all()
    assert not memory.pages[2].any()
