"""A prefill and a decode worker's real processes: the prompt in one, its tokens in the other."""

import json
from contextlib import ExitStack
from pathlib import Path

import pytest

from common.ids import Role
from tests.system.workers import Gateway, configured, expect, prefill, started

N_OUT = 16
PROMPTS = {
    "one": [504],
    "page": list(range(500, 516)),
    "four chunks": [(7 * n * n + 11) % 40_000 + 100 for n in range(250)],
}

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_disaggregated_tokens_are_those_of_one_process(
    default_model: Path, tmp_path: Path, transport: str
) -> None:
    log = tmp_path / "requests.jsonl"
    with ExitStack() as stack:
        gateway = Gateway(tmp_path / "r")
        stack.callback(gateway.mailbox.close)
        for role in (Role.PREFILL, Role.DECODE):
            config = configured(
                role,
                default_model,
                tmp_path / "r",
                gateway.mailbox.endpoints[0],
                transport=transport,
                request_log=str(log),
                enable_prefix_caching=False,
            )
            stack.enter_context(started(config))
        gateway.until(lambda: len(gateway.workers) == 2)
        p, d = (gateway.workers[role].peer for role in (Role.PREFILL, Role.DECODE))
        for name, prompt in PROMPTS.items():
            gateway.send(Role.PREFILL, prefill(name, prompt, N_OUT, d.instance))
            gateway.send(Role.DECODE, expect(name, prompt, N_OUT, p))
        gateway.until(lambda: len(gateway.finished) == len(PROMPTS))
        for name, prompt in PROMPTS.items():
            gateway.end(name)
            gateway.send(Role.DECODE, expect(f"{name} alone", prompt, N_OUT))
        gateway.until(lambda: len(gateway.finished) == 2 * len(PROMPTS))
        assert gateway.complaints == []
        for name in PROMPTS:
            gateway.end(f"{name} alone")
            assert gateway.tokens[name] == gateway.tokens[f"{name} alone"]
            assert len(gateway.tokens[name]) == N_OUT
        for role in (Role.PREFILL, Role.DECODE):
            gateway.until(lambda role=role: gateway.free_pages(role) == gateway.n_pages(role))
        gateway.forget()
        gateway.until(lambda: bool(gateway.metrics(Role.DECODE)))
        assert gateway.metrics(Role.DECODE)["kv_pulls_total"] >= len(PROMPTS)
        assert gateway.metrics(Role.DECODE)["kv_pull_failures_total"] == 0
    check_log(log)


def check_log(log: Path) -> None:
    """Both processes wrote the request's life into one file; pages moved while chunks were
    still to come."""
    entries = [json.loads(text) for text in log.read_text().splitlines()]
    life = [e for e in entries if e["transfer"] == "four chunks"]
    life.sort(key=lambda entry: entry["mono"])
    names = [entry["event"] for entry in life]
    order = ("context_begin", "migration_begin", "context_end", "migration_end", "decoding_end")
    assert [name for name in names if name in order] == list(order)
    before_end = names[: names.index("context_end")]
    assert before_end.count("pages_pulled") >= 2
    assert {entry["role"] for entry in life} == {"prefill", "decode"}
