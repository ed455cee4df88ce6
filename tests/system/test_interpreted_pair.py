"""Workers as on GPUs, as far as a machine without one goes: processes whose kernels are Triton's,
interpreted. A prompt in one, its tokens in the other, and they are those of `transformers`.
"""

from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

from common.ids import Role
from tests.system.test_families import config_of, random_model
from tests.system.workers import Gateway, configured, expect, prefill, started

pytest.importorskip("triton", "3.7", "needs Triton; before 3.7 it fails beside numpy 2.4")

N_OUT = 5
PROMPTS = {"one": [7], "two chunks": [n * n % 150 + 5 for n in range(21)]}

pytestmark = pytest.mark.full


def test_disaggregated_tokens_are_those_of_transformers(tmp_path: Path) -> None:
    oracle = random_model(config_of("llama", num_attention_heads=3, num_key_value_heads=1))
    oracle.save_pretrained(tmp_path / "model")
    with ExitStack() as stack:
        gateway = Gateway(tmp_path / "r")
        stack.callback(gateway.mailbox.close)
        for role in (Role.PREFILL, Role.DECODE):
            config = configured(
                role,
                tmp_path / "model",
                tmp_path / "r",
                gateway.mailbox.endpoints[0],
                devices="interpreter",
                max_model_len=64,
                max_num_seqs=2,
                chunk_tokens=16,
                kv_cache_memory_bytes=2**20,
            )
            stack.enter_context(started(config))
        gateway.until(lambda: len(gateway.workers) == 2)
        path = gateway.workers[Role.DECODE].model
        assert path is not None
        assert "(interpreted)" in path.kernel_path
        p, d = (gateway.workers[role].peer for role in (Role.PREFILL, Role.DECODE))
        for name, prompt in PROMPTS.items():
            gateway.send(Role.PREFILL, prefill(name, prompt, N_OUT, d.instance))
            gateway.send(Role.DECODE, expect(name, prompt, N_OUT, p))
        gateway.until(lambda: len(gateway.finished) == len(PROMPTS))
        assert gateway.complaints == []
        for name, prompt in PROMPTS.items():
            answer = gateway.tokens[name]
            with torch.inference_mode():
                logits_TV = oracle(torch.tensor([[*prompt, *answer[:-1]]])).logits[0]
            assert answer == logits_TV[len(prompt) - 1 :].argmax(-1).tolist()
            gateway.end(name)
        gateway.forget()
        gateway.until(lambda: bool(gateway.metrics(Role.DECODE)))
        assert gateway.metrics(Role.DECODE)["kv_pulls_total"] >= len(PROMPTS)
