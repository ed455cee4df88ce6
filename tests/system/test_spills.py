"""A pool of half the pages that are needed, and host memory: the same text, to the bit."""

from pathlib import Path

import pytest

from common.text.load import load_text_model
from tests.api_client import Answer, Body, at_once, metrics, until
from tests.servers import RunningServer, serving

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

PAGE_BYTES = 2 * 368_640 + 8  # of 16 tokens in float32
N_PROMPTS, N_PROMPT, N_OUT = 8, 20, 44
PAGES_EACH = (N_PROMPT + N_OUT) // 16
N_SHORT = 40
FLAGS = (
    *("--prefill", "0"),
    *("--dtype", "float32"),
    *("--max-model-len", "64"),
    "--no-enable-prefix-caching",
)


def bodies() -> dict[str, Body]:
    """Prompts of random words."""
    return {
        str(n): {
            "prompt": [(7919 * (n * N_PROMPT + i)) % 30_000 + 1_000 for i in range(N_PROMPT)],
            "max_tokens": N_OUT,
            "temperature": 0,
            "ignore_eos": True,
            "logprobs": 0,
        }
        for n in range(N_PROMPTS)
    }


def teach_brevity(server: RunningServer, end: int) -> None:
    """Answers of two tokens: decode then lets in more than the pool can hold until they end."""
    short = {
        "prompt": [504],
        "max_tokens": N_OUT,
        "min_tokens": 1,
        "temperature": 0,
        "logit_bias": {end: 100},
        "logprobs": 0,
    }
    at_once(server.url, {str(n): short for n in range(N_SHORT)})


def answers(model: Path, n_pages: int, *flags: str) -> tuple[dict[str, Answer], dict[str, float]]:
    """And what decode has counted."""
    (end,) = load_text_model(model).end_token_ids
    memory = ("--kv-cache-memory-bytes", str(n_pages * PAGE_BYTES))
    with serving(model, *FLAGS, *memory, *flags) as server:
        teach_brevity(server, end)
        said = at_once(server.url, bodies())
        n_tokens = N_PROMPTS * N_OUT
        until(lambda: counted(server, "engine_step_tokens_total") >= n_tokens, "it is counted")
        until(lambda: counted(server, "kv_host_held_pages") == 0, "host pages are given back")
        names = ("num_preemptions_total", "kv_spills_total", "kv_restores_total")
        return said, {name: counted(server, name) for name in names}


def counted(server: RunningServer, name: str) -> float:
    return metrics(server.url).total(name, "decode")


def test_spilled_sequences_say_what_they_would_have_said(default_model: Path) -> None:
    needed = N_PROMPTS * PAGES_EACH
    host = ("--kv-host-memory-bytes", "64MiB")
    wanted, of_ample = answers(default_model, 2 * needed)
    said, of_scarce = answers(default_model, needed // 2, *host)
    assert {name: answer.said for name, answer in said.items()} == {
        name: answer.said for name, answer in wanted.items()
    }
    assert of_ample["num_preemptions_total"] == of_ample["kv_spills_total"] == 0
    assert of_scarce["kv_spills_total"] > 0
    assert of_scarce["kv_restores_total"] > 0
