"""The request log: every event of a request's life, from three processes, joined by its id."""

import json
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.api_client import until

pytestmark = pytest.mark.slow
PROMPT = [(13 * n) % 40_000 + 500 for n in range(200)]  # 4 chunks of 64, 13 pages
N = 6


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_life_of_a_request(client: openai.OpenAI, request_log: Path) -> None:
    with client.completions.create(
        model="smollm2", prompt=PROMPT, stream=True, max_tokens=N, extra_body={"ignore_eos": True}
    ) as stream:
        answer_id = next(stream).id
        list(stream)
    (transfer,) = {
        line["transfer"] for line in lines(request_log) if line.get("request") == f"{answer_id}-0"
    }

    def life() -> list[dict[str, Any]]:
        own = [line for line in lines(request_log) if line["transfer"] == transfer]
        return sorted(own, key=lambda line: line["mono"])

    until(lambda: {"finished", "decoding_end"} <= {line["event"] for line in life()}, "its end")
    events = [(line["role"], line["event"]) for line in life()]
    assert len({line["instance"] for line in life()}) == 3
    assert {line["attempt"] for line in life() if line["event"] != "received"} == {1}
    first = events.index

    # Each process's own story, in order.
    assert [event for role, event in events if role == "gateway"] == [
        "received",
        "routed",
        "first_token",
        "finished",
    ]
    prefill = [event for role, event in events if role == "prefill"]
    assert [event for event in prefill if event != "pages_ready"] == [
        "queued",
        "context_begin",
        "context_end",
    ]
    assert prefill.count("pages_ready") == 4  # after every chunk
    decode = [event for role, event in events if role == "decode"]
    assert [event for event in decode if event != "pages_pulled"] == [
        "queued",
        "migration_begin",
        "migration_end",
        "decoding_begin",
        "decoding_end",
    ]

    # And what one must wait for from another.
    assert first(("gateway", "received")) < first(("prefill", "queued"))
    assert first(("gateway", "received")) < first(("decode", "queued"))
    assert first(("prefill", "pages_ready")) < first(("decode", "migration_begin"))
    assert first(("decode", "migration_begin")) < first(("prefill", "context_end"))
    assert first(("prefill", "context_end")) < first(("decode", "migration_end"))
    assert first(("gateway", "first_token")) < first(("decode", "decoding_end"))
    assert first(("decode", "decoding_begin")) < first(("gateway", "finished"))


def test_lines_say_when_by_two_clocks(client: openai.OpenAI, request_log: Path) -> None:
    client.completions.create(model="smollm2", prompt="a", max_tokens=1)
    line = lines(request_log)[-1]
    assert {"t", "mono", "event", "transfer", "attempt", "role", "instance"} <= line.keys()
    assert abs(line["t"] - request_log.stat().st_mtime) < 1
