"""Decode steps by graphs as they run on a GPU: what recordings of them cannot show."""

import pytest
import torch
from msgspec.structs import replace

from common.engine.device import open_device
from common.engine.plan import Drawn, filled
from tests.gpu.steps import LLAMA_3_8B, Bench

pytestmark = pytest.mark.gpu

SMALL = replace(
    LLAMA_3_8B,
    hidden_size=512,
    n_layers=3,
    n_heads=8,
    n_kv_heads=2,
    head_dim=64,
    intermediate_size=1024,
    vocab_size=1000,
    max_position=1024,
    native_dtype="float32",
)


@pytest.fixture(scope="module")
def bench() -> Bench:
    made = Bench(SMALL, open_device("cuda:0", "float32"), n_tokens=8 * 700, max_num_seqs=8)
    made.graphs.capture(lambda *_: None)
    return made


@pytest.mark.parametrize("n_sequences", [1, 3, 8])
def test_tokens_are_those_of_passes_computed_one_by_one(bench: Bench, n_sequences: int) -> None:
    plans = bench.steps(n_sequences, 600, 20)
    bench.runner.cache.pages_PB.zero_()
    torch.cuda.synchronize()
    waiting = [bench.graphs.begin(plans[0])]
    said: list[list[int]] = []
    for plan in plans[1:]:  # two are unanswered, at most
        waiting.append(bench.graphs.begin(plan))
        said.append([drawn.token for drawn in waiting.pop(0)().drawn])
    said.append([drawn.token for drawn in waiting.pop()().drawn])
    bench.runner.cache.pages_PB.zero_()
    before: tuple[Drawn, ...] = ()
    for plan, tokens in zip(plans, said, strict=True):
        before = bench.runner.run(filled(plan, before)).drawn
        assert [drawn.token for drawn in before] == tokens


def test_a_step_is_asked_for_without_waiting_and_without_memory(bench: Bench) -> None:
    first, second, third = bench.steps(4, 500, 3)
    bench.graphs.begin(first)()
    begun = [bench.graphs.begin(second)]
    n_taken = torch.cuda.memory_stats()["allocation.all.allocated"]
    torch.cuda.set_sync_debug_mode("error")
    try:
        begun.append(bench.graphs.begin(third))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == n_taken
    for wait in begun:
        assert len(wait().drawn) == 4
