"""Workers as on GPUs, as far as a machine without one goes: real processes whose kernels are
Triton's, interpreted. A prompt in one, its tokens in the other, and they are `transformers`'.
"""

from pathlib import Path

import pytest

from tests.system.pairs import check_pair
from tests.system.test_families import config_of, random_model

pytest.importorskip("triton", "3.7", "needs Triton; before 3.7 it fails beside numpy 2.4")

PROMPTS = {"one": [7], "two chunks": [n * n % 150 + 5 for n in range(21)]}

pytestmark = pytest.mark.full


def test_disaggregated_tokens_are_those_of_transformers(tmp_path: Path) -> None:
    oracle = random_model(config_of("llama", num_attention_heads=3, num_key_value_heads=1))
    counters = check_pair(
        tmp_path,
        oracle,
        PROMPTS,
        n_out=5,
        devices="interpreter",
        max_model_len=64,
        max_num_seqs=2,
        chunk_tokens=16,
        kv_cache_memory_bytes=2**20,
    )
    assert counters["kv_pulls_total"] >= len(PROMPTS)
