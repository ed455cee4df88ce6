"""Memory-bound kernels move the bytes that they must, and at most 5 % more."""

import random

import pytest
import torch
from torch import Tensor

from common.kernels import ops
from common.kernels.triton import choice
from tests.conformance.kernels.in_triton.traffic import Traffic, counting
from tests.conformance.kernels.pools import (
    Heads,
    give_pages,
    poisoned_pool,
    random_sequence,
    rows,
    write,
)
from tests.conformance.kernels.test_ops import normal

pytestmark = pytest.mark.usefixtures("path")


def check(traffic: Traffic, floor_bytes: int) -> None:
    assert floor_bytes <= traffic.n_bytes <= 1.05 * floor_bytes


@pytest.mark.parametrize("width", [576, 2048])
def test_norms(width: int) -> None:
    x, residual, weight = normal(9, width).half(), normal(9, width).half(), normal(width).half()
    with counting(weight) as traffic:
        ops.rms_norm(x, weight, 1e-5)
    check(traffic, 2 * x.nbytes + weight.nbytes)
    with counting(weight) as traffic:
        ops.add_rms_norm(x, residual, weight, 1e-5)
    check(traffic, 4 * x.nbytes + weight.nbytes)


def test_activation() -> None:
    from common.kernels.triton.activation import silu_mul

    gate_up = normal(3, 2 * 1536).half()
    with counting() as traffic:
        out = silu_mul(gate_up, None)
    check(traffic, gate_up.nbytes + out.nbytes)


@pytest.mark.parametrize(("n_rep", "head_dim"), [(3, 64), (4, 80)])
def test_rotation(n_rep: int, head_dim: int) -> None:
    heads = Heads(n_kv_heads=2, n_rep=n_rep, head_dim=head_dim)
    pool = poisoned_pool(heads, 4, 16, dtype="float16")
    q, k, v = (normal(6, n, head_dim).half() for n in (heads.n_heads, 2, 2))
    positions = torch.arange(6)
    table = normal(6, head_dim)
    with counting() as traffic:
        ops.rope_and_write(q, k, v, table, positions, positions, pool.layer(0))
    check(traffic, 2 * (q.nbytes + k.nbytes + v.nbytes) + table.nbytes + 2 * positions.nbytes)


@pytest.mark.parametrize(("n_rep", "head_dim"), [(1, 128), (3, 96), (4, 128), (8, 128)])
def test_decode_attention(n_rep: int, head_dim: int) -> None:
    """Each byte of KV once, whatever the number of query heads that share it."""
    heads = Heads(n_kv_heads=2, n_rep=n_rep, head_dim=head_dim)
    generator = torch.Generator().manual_seed(0)
    sequences = [random_sequence(heads, n, generator) for n in (1024, 700)]
    pool = poisoned_pool(heads, 110, 16, dtype="float16")
    give_pages(sequences, pool, random.Random(0))
    chunks = [(s, 1) for s in sequences]
    choice.interpret(wanted=False)
    write(pool, [(s, len(s) - 1) for s in sequences])
    q_TND: Tensor = rows("q_SND", chunks, pool)
    inputs = write(pool, chunks)
    choice.interpret(wanted=True)
    with counting() as traffic:
        out = ops.attend(q_TND, pool.layer(0), inputs.rows)
    n_pages = sum(len(s.pages) for s in sequences)
    kv_bytes = sum(map(len, sequences)) * pool.spec.token_bytes
    check(traffic, kv_bytes + q_TND.nbytes + out.nbytes + 4 * n_pages)


def test_page_copies() -> None:
    from common.kernels.triton.pages import copy_runs

    n = 36864
    source, destination = torch.randint(256, (6 * n,)).byte(), torch.zeros(4 * n).byte()
    runs_R3 = torch.tensor([(5, 1, 1), (0, 2, 2)]) * n
    with counting() as traffic:
        copy_runs(source, destination, runs_R3, 2 * n)
    check(traffic, 2 * 3 * n + runs_R3.nbytes)
