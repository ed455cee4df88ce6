"""A prefill and a decode worker on a device, held against `transformers`: prompts in the one, their
tokens from the other."""

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import torch
from transformers import PreTrainedModel

from common.ids import Role
from tests.oracle import TIE_LOGITS
from tests.system.workers import Gateway, configured, expect, prefill, started


def check_pair(
    directory: Path,
    oracle: PreTrainedModel,
    prompts: Mapping[str, list[int]],
    n_out: int,
    **options: int | str,
) -> dict[str, float]:
    """Greedy answers of workers with those options are the oracle's. The decode worker's counters,
    in the end."""
    oracle.save_pretrained(directory / "model")
    with ExitStack() as stack:
        gateway = Gateway(directory / "r")
        stack.callback(gateway.mailbox.close)
        join = gateway.mailbox.endpoints[0]
        for role in (Role.PREFILL, Role.DECODE):
            config = configured(role, directory / "model", directory / "r", join, **options)
            stack.enter_context(started(config))
        gateway.until(lambda: len(gateway.workers) == 2)
        p, d = (gateway.workers[role].peer for role in (Role.PREFILL, Role.DECODE))
        for name, prompt in prompts.items():
            gateway.send(Role.PREFILL, prefill(name, prompt, n_out, d.instance))
            gateway.send(Role.DECODE, expect(name, prompt, n_out, p))
        gateway.until(lambda: len(gateway.finished) == len(prompts))
        assert gateway.complaints == []
        for name, prompt in prompts.items():
            assert len(gateway.tokens[name]) == n_out
            check_answer(oracle, prompt, gateway.tokens[name])
            gateway.end(name)
        gateway.forget()
        gateway.until(lambda: bool(gateway.metrics(Role.DECODE)))
        return gateway.metrics(Role.DECODE)


@torch.inference_mode()
def check_answer(oracle: PreTrainedModel, prompt: list[int], answer: list[int]) -> None:
    """Each token is the oracle's, given those before it, or as likely to it."""
    ids = torch.tensor([[*prompt, *answer[:-1]]])
    logits_TV = oracle(ids, attention_mask=torch.ones_like(ids)).logits[0, len(prompt) - 1 :]
    ours_T = logits_TV.gather(1, torch.tensor(answer)[:, None])[:, 0]
    assert (logits_TV.amax(-1) - ours_T).max() < TIE_LOGITS
