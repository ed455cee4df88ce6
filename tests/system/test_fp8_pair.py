"""Workers whose pages are fp8, as far as a machine without a GPU goes: kernels are interpreted.
Pages travel from one to the other as they are, and answers do not depend on where prompts are cut.
"""

from pathlib import Path

import pytest

from tests.system.pairs import answers, behind
from tests.system.test_families import config_of, random_model

pytest.importorskip("triton", "3.7", "needs Triton; before 3.7 it fails beside numpy 2.4")

PROMPTS = {"one": [7], "two chunks": [n * n % 150 + 5 for n in range(21)]}
NEAR_LOGITS = 0.5  # of a random model, whose logits lie some units apart

pytestmark = pytest.mark.full


def test_answers_are_near_those_without_fp8_however_prompts_are_cut(tmp_path: Path) -> None:
    oracle = random_model(config_of("llama", num_attention_heads=3, num_key_value_heads=1))
    said: list[dict[str, list[int]]] = []
    for chunk_tokens in (16, 5):
        directory = tmp_path / str(chunk_tokens)
        oracle.save_pretrained(directory / "model")
        tokens, counters = answers(
            directory,
            PROMPTS,
            n_out=5,
            devices="interpreter",
            kv_cache_dtype="fp8",
            max_model_len=64,
            max_num_seqs=2,
            chunk_tokens=chunk_tokens,
            kv_cache_memory_bytes=2**20,
        )
        assert counters["kv_pulls_total"] >= len(PROMPTS)
        said.append(tokens)
    assert said[0] == said[1]
    for name, prompt in PROMPTS.items():
        assert len(said[0][name]) == 5
        assert behind(oracle, prompt, said[0][name]).max() < NEAR_LOGITS
