"""What a worker takes beside its pages, by what CUDA would tell; its calls are replaced."""

from typing import Any, cast

import msgspec
import pytest
import torch

from common.config import ServeConfig, WorkerConfig, resolve_worker
from common.engine.gpu_memory import draws_bytes, graphs_bytes, logits_bytes
from common.engine.gpu_profile import measured
from common.engine.sizing import Sizes
from common.ids import Role
from common.kv.layout import KVSpec
from tests.unit.engine.test_runner import PAGE_TOKENS, VOCAB, NextToken

KV = KVSpec(n_layers=1, n_kv_heads=1, head_dim=8, page_tokens=PAGE_TOKENS, dtype="float32")
WEIGHTS_BYTES, TAKEN_BYTES = 1000, 300


def config(role: Role) -> WorkerConfig:
    serve = ServeConfig(
        model="m",
        served_model_name="m",
        devices="cuda:0",
        max_num_batched_tokens=10,
        max_num_seqs=3,
        chunk_tokens=10,
    )
    return resolve_worker(serve, role, index=0, name="w", join="", threads=1)


@pytest.mark.parametrize("role", [Role.PREFILL, Role.DECODE])
def test_the_longest_pass_is_computed_on_pages_that_are_given_back(
    monkeypatch: pytest.MonkeyPatch, role: Role
) -> None:
    n_pages = 3  # of ten tokens and one more
    after = WEIGHTS_BYTES + n_pages * KV.page_bytes + TAKEN_BYTES
    asked: list[str] = []
    for name, answer in {
        "memory_allocated": WEIGHTS_BYTES,
        "max_memory_reserved": after,
        "reset_peak_memory_stats": None,
        "synchronize": None,
        "empty_cache": None,
    }.items():
        monkeypatch.setattr(torch.cuda, name, _telling(asked, name, answer))
    model = NextToken()
    size = Sizes(kv=KV, dtype=KV.dtype, max_model_len=64, n_pages=0)
    device, common = torch.device("cpu"), 2001  # of a copy that two share, beside torch's count
    sharing = msgspec.structs.replace(config(role), gpu_sharers=2)
    needs = measured(cast("Any", model), size, sharing, VOCAB, device, common)
    assert needs.weights_bytes == WEIGHTS_BYTES + 1001
    assert needs.activations_bytes == TAKEN_BYTES + logits_bytes(3, VOCAB)
    of_graphs = graphs_bytes(TAKEN_BYTES, 3, VOCAB) + draws_bytes(3, VOCAB)
    assert needs.graphs_bytes == (of_graphs if role is Role.DECODE else 0)
    assert asked == [
        "memory_allocated",
        "reset_peak_memory_stats",
        "synchronize",
        "max_memory_reserved",
        "empty_cache",
    ]


def _telling(asked: list[str], name: str, answer: int | None) -> Any:  # noqa: ANN401
    def told(*_: object) -> int | None:
        asked.append(name)
        return answer

    return told
