"""A prefill and a decode worker of SmolLM2's shape in float32 on one GPU: their answers are those
of `transformers`, or where they part from them."""

import random
import tempfile
from collections.abc import Mapping
from pathlib import Path

from transformers import LlamaConfig

from tests.gpu.rows import N_PROMPTS, Row, emit, say
from tests.gpu.worker_logs import say_logs
from tests.oracle import TIE_LOGITS
from tests.system.pairs import answers, behind
from tests.system.test_families import random_model

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
N_OUT = 32


def measure(_found: Mapping[str, float]) -> bool:
    with tempfile.TemporaryDirectory() as directory:
        try:
            return compare(
                Path(directory),
                SMOLLM2,
                most_tokens=600,
                devices="cuda:0",
                max_model_len=1024,
                max_num_seqs=32,
                chunk_tokens=256,
                kv_cache_memory_bytes=None,
                gpu_memory_utilization=0.15,  # so that a worker measures what it needs
            )
        finally:
            say_logs(Path(directory))


def compare(
    directory: Path, config: LlamaConfig, *, most_tokens: int, **options: float | str | None
) -> bool:
    """Of workers with those options, for prompts of up to so many tokens."""
    rng = random.Random(0)
    lengths = [rng.randrange(1, most_tokens) for _ in range(N_PROMPTS)]
    prompts = {
        f"prompt {n}, {length} tokens": rng.choices(range(config.vocab_size), k=length)
        for n, length in enumerate(lengths)
    }
    oracle = random_model(config)
    oracle.save_pretrained(directory / "model")
    said, counters = answers(directory, prompts, N_OUT, **options)
    n_equal = 0
    for name, prompt in prompts.items():
        gaps = behind(oracle, prompt, said[name])
        wrong = (gaps >= TIE_LOGITS).nonzero().flatten().tolist()
        n_equal += not wrong and len(said[name]) == N_OUT
        if wrong:
            at = wrong[0]
            say(f"{name}: token {at} is {gaps[at]:.4f} below the oracle's; {len(wrong)} are")
    emit(Row.of("tokens", float(n_equal), unit="prompts"))
    pulled, failed = counters["kv_pulls_total"], counters["kv_pull_failures_total"]
    say(f"{pulled:.0f} pulls, {failed:.0f} failed")
    return pulled >= len(prompts) and not failed
