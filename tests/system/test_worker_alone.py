"""A decode worker's real process, alone: it computes prompts itself, for a gateway that is us."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from common.ids import Role
from common.messages import ModelIdentity
from common.params import FinishReason
from tests.system.workers import Gateway, config_pipe, configured, expect, started

N_OUT = 24

STARTER = """
import os, subprocess, sys
worker = subprocess.Popen(
    [sys.executable, "-P", "-m", "decode.worker", "--config-fd", sys.argv[1],
     "--parent", str(os.getpid())],
    pass_fds=[int(sys.argv[1])],
)
print(worker.pid, flush=True)
worker.wait()
"""

pytestmark = pytest.mark.slow


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Gateway]:
    gateway = Gateway(tmp_path / "r")
    yield gateway
    gateway.mailbox.close()


def check_greedy(model: Path, prompts: dict[str, list[int]], outputs: dict[str, list[int]]) -> None:
    """Each token is the oracle's choice after those before it, up to ties of 1e-3 in logit."""
    import torch
    from transformers import AutoModelForCausalLM

    oracle = AutoModelForCausalLM.from_pretrained(
        model.parent, gguf_file=model.name, dtype=torch.float32
    )
    for name, prompt in prompts.items():
        ids = torch.tensor([prompt + outputs[name]])
        with torch.inference_mode():
            logits = oracle(ids, attention_mask=torch.ones_like(ids)).logits[0].float()
        for at, token in enumerate(outputs[name], start=len(prompt) - 1):
            assert logits[at, token] >= logits[at].max() - 1e-3, (name, at)


def test_it_answers_as_the_oracle_does_and_leaves_nothing(
    default_model: Path, gateway: Gateway, tmp_path: Path
) -> None:
    prompts = {
        "one token": [504],
        "one page": list(range(500, 516)),
        "chunks": [(7 * n * n + 11) % 40_000 + 100 for n in range(200)],
    }
    config = configured(Role.DECODE, default_model, tmp_path / "r", gateway.mailbox.endpoints[0])
    with started(config) as worker:
        gateway.until(lambda: Role.DECODE in gateway.workers)
        for name, prompt in prompts.items():
            gateway.send(Role.DECODE, expect(name, prompt, N_OUT))
        gateway.until(lambda: gateway.finished.keys() == prompts.keys())
        assert set(gateway.finished.values()) == {FinishReason.LENGTH}
        for name in prompts:
            assert len(gateway.tokens[name]) == N_OUT
            gateway.end(name)
        n_pages = gateway.n_pages(Role.DECODE)
        gateway.until(lambda: gateway.free_pages(Role.DECODE) == n_pages)
        gateway.forget()
        gateway.until(lambda: bool(gateway.metrics(Role.DECODE)))
        rows = gateway.metrics(Role.DECODE)["engine_step_tokens_total"]
        assert rows >= sum(len(prompt) + N_OUT - 1 for prompt in prompts.values())
        worker.send_signal(signal.SIGTERM)
        _, text = worker.communicate(timeout=30)
    assert worker.returncode == 0, text
    assert "event=memory model=tiny dtype=float32" in text
    assert f"kv_tokens={n_pages * 16} " in text
    assert "event=drained" in text
    gateway.mailbox.close()
    left = [f.name for f in (tmp_path / "r").iterdir() if not f.name.startswith("weights-")]
    assert left == []
    check_greedy(default_model, prompts, gateway.tokens)


def test_it_dies_with_who_started_it(default_model: Path, gateway: Gateway, tmp_path: Path) -> None:
    join = gateway.mailbox.endpoints[1]
    reader = config_pipe(configured(Role.DECODE, default_model, tmp_path / "r", join))
    starter = subprocess.Popen(
        [sys.executable, "-P", "-c", STARTER, str(reader)],
        pass_fds=[reader],
        stdout=subprocess.PIPE,
        text=True,
    )
    os.close(reader)
    assert starter.stdout is not None
    worker = int(starter.stdout.readline())
    gateway.until(lambda: Role.DECODE in gateway.workers)
    starter.kill()
    starter.communicate()
    gateway.until(lambda: has_ended(worker), within_s=10)


def has_ended(process: int) -> bool:
    """Reaped or not."""
    try:
        stat = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return True
    return stat.rpartition(")")[2].split()[0] in "ZX"


@pytest.mark.parametrize(
    ("options", "numbers"),
    [
        ({"kv_cache_memory_bytes": 2**20}, ("1048576 holds 16 tokens", "--max-model-len 512")),
        ({"max_model_len": 9000}, ("--max-model-len 9000", "8192")),
    ],
)
def test_what_does_not_fit_is_said_with_both_numbers(
    default_model: Path, tmp_path: Path, options: dict[str, int], numbers: tuple[str, str]
) -> None:
    config = configured(Role.DECODE, default_model, tmp_path / "r", "ipc:///nowhere", **options)
    with started(config) as worker:
        _, text = worker.communicate(timeout=60)
    assert worker.returncode == 2
    assert all(number in text for number in numbers), text


def test_a_gateway_that_serves_another_model_refuses_it(
    default_model: Path, tmp_path: Path
) -> None:
    other = ModelIdentity(
        name="tiny", fingerprint="other", kv_dtype="", page_layout="", kernel_path=""
    )
    gateway = Gateway(tmp_path / "r", reference=other)
    join = gateway.mailbox.endpoints[0]
    with started(configured(Role.DECODE, default_model, tmp_path / "r", join)) as worker:
        gateway.until(lambda: worker.poll() is not None)
        _, text = worker.communicate(timeout=60)
    gateway.mailbox.close()
    assert worker.returncode == 2
    assert "model fingerprint differs" in text and "theirs is other" in text
