"""A prefill and a decode worker on one GPU: `tests/gpu/run.sh` runs it."""

import random
from pathlib import Path

import pytest

pytest.importorskip("transformers")

from transformers import LlamaConfig

from tests.system.pairs import check_pair
from tests.system.test_families import random_model

pytestmark = pytest.mark.gpu

SMOLLM2 = LlamaConfig(
    vocab_size=49152,
    hidden_size=576,
    intermediate_size=1536,
    num_hidden_layers=30,
    num_attention_heads=9,
    num_key_value_heads=3,
    head_dim=64,
    max_position_embeddings=2048,
    tie_word_embeddings=True,
    bos_token_id=None,
    eos_token_id=None,
)


def test_disaggregated_tokens_in_float32_are_those_of_transformers(tmp_path: Path) -> None:
    pytest.importorskip("cupy")
    rng = random.Random(0)
    lengths = [rng.randrange(1, 600) for _ in range(24)]
    prompts = {f"{n} tokens": rng.choices(range(49152), k=n) for n in lengths}
    counters = check_pair(
        tmp_path,
        random_model(SMOLLM2),
        prompts,
        n_out=32,
        devices="cuda:0",
        transport="cuda_ipc",
        max_model_len=1024,
        max_num_seqs=32,
        chunk_tokens=256,
        kv_cache_memory_bytes=2**31,
    )
    assert counters["kv_pulls_total"] >= len(prompts)
    assert counters["kv_pull_failures_total"] == 0
