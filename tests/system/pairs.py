"""A prefill and a decode worker on a device, held against `transformers`: prompts in the one, their
tokens from the other."""

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor
from transformers import PreTrainedModel

from common.ids import Role
from tests.oracle import TIE_LOGITS
from tests.system.workers import Gateway, configured, expect, prefill, started

ROLES = (Role.PREFILL, Role.DECODE)
_G = TypeVar("_G", bound=Gateway)


@contextmanager
def workers(directory: Path, gateway: _G, **options: float | str | None) -> Iterator[_G]:
    """Both, ready, with those options; the model is in `directory / "model"`. Their logs are in
    `directory`, and the end of them in what is raised where one does not live."""
    logs = {role: directory / f"{role}.log" for role in ROLES}
    processes: dict[Role, subprocess.Popen[str]] = {}

    def ready() -> bool:
        for role, process in processes.items():
            assert process.poll() is None, logs[role].read_text()[-4000:]
        return len(gateway.workers) == len(ROLES)

    with ExitStack() as stack:
        stack.callback(gateway.mailbox.close)
        join = gateway.mailbox.endpoints[0]
        for role in ROLES:
            config = configured(role, directory / "model", directory / "r", join, **options)
            log = stack.enter_context(logs[role].open("w"))
            processes[role] = stack.enter_context(started(config, log))
        gateway.until(ready)
        yield gateway


def ask(gateway: Gateway, prompts: Mapping[str, list[int]], n_out: int) -> None:
    """For greedy answers, of the one worker and the other."""
    p, d = (gateway.workers[role].peer for role in ROLES)
    for name, prompt in prompts.items():
        gateway.send(Role.PREFILL, prefill(name, prompt, n_out, d.instance))
        gateway.send(Role.DECODE, expect(name, prompt, n_out, p))


def answers(
    directory: Path, prompts: Mapping[str, list[int]], n_out: int, **options: float | str | None
) -> tuple[dict[str, list[int]], dict[str, float]]:
    """Of workers with those options, and the decode worker's counters in the end."""
    with workers(directory, Gateway(directory / "r"), **options) as gateway:
        ask(gateway, prompts, n_out)
        gateway.until(lambda: len(gateway.finished) == len(prompts))
        assert gateway.complaints == []
        for name in prompts:
            gateway.end(name)
        gateway.forget()
        gateway.until(lambda: bool(gateway.metrics(Role.DECODE)))
        return gateway.tokens, gateway.metrics(Role.DECODE)


def check_pair(
    directory: Path,
    oracle: PreTrainedModel,
    prompts: Mapping[str, list[int]],
    n_out: int,
    **options: float | str | None,
) -> dict[str, float]:
    """Greedy answers of workers with those options are the oracle's. The decode worker's counters,
    in the end."""
    oracle.save_pretrained(directory / "model")
    said, counters = answers(directory, prompts, n_out, **options)
    for name, prompt in prompts.items():
        assert len(said[name]) == n_out
        assert behind(oracle, prompt, said[name]).max() < TIE_LOGITS
    return counters


@torch.inference_mode()
def behind(oracle: PreTrainedModel, prompt: list[int], answer: list[int]) -> Tensor:
    """By how much each token's logit is below the largest, given those before it: 0 where it is the
    oracle's own token."""
    ids = torch.tensor([[*prompt, *answer[:-1]]])
    logits_TV = oracle(ids, attention_mask=torch.ones_like(ids)).logits[0, len(prompt) - 1 :]
    ours_T = logits_TV.gather(1, torch.tensor(answer)[:, None])[:, 0]
    return logits_TV.amax(-1) - ours_T
