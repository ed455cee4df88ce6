"""Answers with rules of every kind, side by side in one batch: workers as on GPUs, with kernels in
Triton's interpreter and draws by what is captured elsewhere, say what workers on CPUs say."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from openai.types import Completion

from tests.servers import RunningServer, serving
from tests.system.streams import connected
from tests.system.test_families import config_of, random_model
from tests.unit.text.hf_directory import byte_level_backend, write_directory

pytest.importorskip("triton", "3.7", "needs Triton; before 3.7 it fails beside numpy 2.4")

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]

OPTIONS = ("--dtype", "float32", "--max-model-len", "64", "--kv-cache-memory-bytes", "1MB")
ROOM = ("--prefill.max-num-seqs", "4", "--decode.max-num-seqs", "4")  # fewer than ask
PENALTIES = {"frequency_penalty": 0.7, "presence_penalty": 0.3}
ASKED: tuple[dict[str, Any], ...] = (
    {"temperature": 0, "ignore_eos": True},
    {"temperature": 0, **PENALTIES, "repetition_penalty": 1.5, "logprobs": 3},
    {"logit_bias": {"20": 6, "21": -100}, "min_tokens": 10, "logprobs": 0},
    {"structured_outputs": {"regex": "(ab|cd|e[f-k]){3,6}"}, **PENALTIES, "logprobs": 2},
    {"allowed_token_ids": [20, 21, 22, 23, 24]},
    {"n": 3, "presence_penalty": 1.0},
    {"bad_words": ["a", "he"], "logprobs": 20},
    {"prompt_logprobs": 2, "repetition_penalty": 1.3},
)


def answer(server: RunningServer, asked: dict[str, Any]) -> Completion:
    with connected(server) as client:
        return client.completions.create(
            model="small",
            prompt="hello world",
            max_tokens=12,
            seed=3,
            extra_body={"return_token_ids": True, **asked},
        )


def answers(model: Path, device: str) -> list[Completion]:
    """All asked for at once."""
    options = (*OPTIONS, *ROOM, "--devices", device, "--served-model-name", "small")
    with serving(model, *options) as server, ThreadPoolExecutor(len(ASKED)) as asking:
        return list(asking.map(lambda asked: answer(server, asked), ASKED))


def test_rules_of_every_kind_draw_what_they_draw_on_a_cpu(tmp_path: Path) -> None:
    backend = byte_level_backend()
    end = backend.token_to_id("</s>")
    config = config_of(
        "llama", num_attention_heads=3, num_key_value_heads=1, vocab_size=2048, eos_token_id=end
    )
    random_model(config).save_pretrained(tmp_path)
    write_directory(
        tmp_path, backend, config=config.to_dict(), tokenizer_config={"eos_token": "</s>"}
    )
    on_cpu, interpreted = answers(tmp_path, "cpu"), answers(tmp_path, "interpreter")
    for asked, one, other in zip(ASKED, on_cpu, interpreted, strict=True):
        for a, b in zip(one.choices, other.choices, strict=True):
            assert (a.text, a.finish_reason) == (b.text, b.finish_reason), asked
            assert a.model_extra is not None
            assert b.model_extra is not None
            assert a.model_extra["token_ids"] == b.model_extra["token_ids"], asked
            if a.logprobs is not None:
                assert b.logprobs is not None
                assert a.logprobs.tokens == b.logprobs.tokens
                assert a.logprobs.token_logprobs == pytest.approx(
                    b.logprobs.token_logprobs, abs=1e-3
                )
