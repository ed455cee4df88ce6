"""What the benchmark's client measures, against a server whose timings are known exactly.

The server is a process of its own and writes into every chunk when it sent it.
"""

import asyncio
import json
import statistics
import time
from collections.abc import Iterator
from typing import Any
from urllib.request import urlopen

import pytest

from bench import stub
from bench.arrivals import Arrivals
from bench.client import Outcome, Request, Target
from bench.load import run
from bench.measures import duration_s, peak_concurrency, summarise

AT_ONCE = Arrivals()


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with stub.started() as started:
        yield started


def target(url: str, **script: object) -> Target:
    return Target(base_url=url, model="stub", extra_body={"stub": script})


def load(
    target: Target,
    n: int = 4,
    *,
    max_tokens: int = 6,
    arrivals: Arrivals = AT_ONCE,
    processes: int = 1,
    cancel_after_s: float | None = None,
) -> list[Outcome]:
    request = Request(prompt=[1, 2, 3], max_tokens=max_tokens, cancel_after_s=cancel_after_s)
    return asyncio.run(run(target, [request] * n, arrivals, processes=processes))


def sent_s(outcome: Outcome) -> list[float]:
    """When the server sent the chunks, on its own clock."""
    return [int(word) / 1e9 for word in outcome.text.split()]


def seen(url: str) -> dict[str, Any]:
    with urlopen(f"{url}/seen") as answer:
        return json.load(answer)


def test_times_are_those_at_which_the_server_sent(url: str) -> None:
    outcomes = load(target(url, ttft_s=0.15, gap_s=0.03), 10, max_tokens=11)
    errors_s: list[float] = []
    for outcome in outcomes:
        assert (outcome.input_tokens, outcome.output_tokens) == (3, 11)
        sent = sent_s(outcome)
        noted = outcome.chunk_times_s
        errors_s += [(t - noted[0]) - (s - sent[0]) for t, s in zip(noted, sent, strict=True)]
    assert abs(statistics.median(errors_s)) < 0.002
    made = summarise(outcomes, None, duration_s(outcomes))
    assert 150 <= made["median_ttft_ms"] < 230
    assert made["median_tpot_ms"] == pytest.approx(30, abs=2)
    assert made["median_itl_ms"] == pytest.approx(30, abs=2)
    assert made["median_ttst_ms"] == pytest.approx(30, abs=5)
    assert made["median_e2el_ms"] - made["median_ttft_ms"] == pytest.approx(300, abs=20)


def test_a_stall_is_one_long_gap_of_each_request(url: str) -> None:
    outcomes = load(target(url, gap_s=0.01, stall_s=0.4, stall_at=3))
    for outcome in outcomes:
        assert [gap_s > 0.3 for gap_s in outcome.gaps_s] == [False, False, True, False, False]
        assert outcome.tpot_s == pytest.approx(0.09, abs=0.02)


def test_a_role_is_no_token(url: str) -> None:
    chat = Target(
        base_url=url,
        model="stub",
        backend="openai-chat",
        extra_body={"stub": {"ttft_s": 0.3, "role_first": True}},
    )
    request = Request(prompt="hello", max_tokens=3)
    (outcome,) = asyncio.run(run(chat, [request], AT_ONCE))
    assert outcome.ok
    assert outcome.ttft_s >= 0.3
    assert len(outcome.chunk_times_s) == outcome.output_tokens == 3
    assert outcome.input_tokens == 5


@pytest.mark.parametrize(
    ("script", "n_out", "chunk_tokens", "counted_by"),
    [
        ({}, 8, [], "usage"),
        ({"token_ids": True}, 8, [3, 3, 2], "usage"),
        ({"running_usage": True}, 8, [3, 3, 2], "usage"),
        ({"token_ids": True, "usage": False}, 8, [3, 3, 2], "token_ids"),
        ({"usage": False}, 3, [], "chunks"),
    ],
)
def test_chunks_of_several_tokens_are_counted_by_the_best_that_there_is(
    url: str, script: dict[str, bool], n_out: int, chunk_tokens: list[int], counted_by: str
) -> None:
    told = target(url, tokens_per_chunk=3, gap_s=0.06, **script)
    for outcome in load(told, 2, max_tokens=8):
        assert outcome.output_tokens == n_out
        assert outcome.chunk_tokens == chunk_tokens
        assert outcome.counted_by == counted_by
        first_chunk, second_chunk, last_chunk = outcome.chunk_times_s
        assert outcome.tpot_s == (last_chunk - first_chunk) / (n_out - 1)
        assert outcome.second_token_s == (first_chunk if chunk_tokens else second_chunk)


@pytest.mark.parametrize(
    ("script", "kind", "n_chunks"),
    [
        ({"status": 429}, "http_429", 0),
        ({"status": 500}, "http_500", 0),
        ({"fail_at": 2}, "error_event", 2),
        ({"drop_at": 3}, "disconnect", 3),
        ({"drop_at": 0}, "disconnect", 0),
        ({"done": False}, "truncated", 6),
    ],
)
def test_errors_are_told_apart(
    url: str, script: dict[str, int | bool], kind: str, n_chunks: int
) -> None:
    for outcome in load(target(url, **script), 2):
        assert (outcome.error, len(outcome.chunk_times_s)) == (kind, n_chunks)
        assert not outcome.ok


def test_an_answer_without_tokens_is_a_failure(url: str) -> None:
    assert [outcome.error for outcome in load(target(url), 1, max_tokens=0)] == ["no_tokens"]


def test_nobody_there_is_a_failure() -> None:
    (outcome,) = load(target("http://127.0.0.1:1"), 1)
    assert outcome.error == "connect"


def test_a_request_that_takes_too_long_is_a_failure(url: str) -> None:
    slow = Target(base_url=url, model="stub", timeout_s=0.3, extra_body={"stub": {"stall_s": 30.0}})
    (outcome,) = load(slow, 1)
    assert (outcome.error, len(outcome.chunk_times_s)) == ("timeout", 2)


def test_a_client_that_hangs_up_is_neither_well_nor_failed_and_the_server_sees_it(
    url: str,
) -> None:
    before = seen(url)["hang_ups"]
    outcomes = load(target(url, gap_s=0.05), 3, max_tokens=40, cancel_after_s=0.25)
    for outcome in outcomes:
        assert outcome.cancelled
        assert not outcome.error
        assert not outcome.ok
        assert 0 < len(outcome.chunk_times_s) < 10
    deadline = time.monotonic() + 5
    while seen(url)["hang_ups"] < before + 3:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_late_server_delays_no_arrival(url: str) -> None:
    arrivals = Arrivals(request_rate=50.0, seed=3)
    outcomes = load(target(url, ttft_s=1.0), 25, arrivals=arrivals)
    assert [o.scheduled_s for o in outcomes] == arrivals.times_s(
        [Request(prompt="", max_tokens=1)] * 25
    )
    assert statistics.median(o.queued_s for o in outcomes) < 0.05
    assert max(o.sent_s for o in outcomes) < min(o.chunk_times_s[0] for o in outcomes)


def test_a_client_that_is_late_itself_says_so(url: str) -> None:
    async def blocked() -> list[Outcome]:
        asyncio.get_running_loop().call_later(0.1, time.sleep, 0.25)
        request = Request(prompt=[1], max_tokens=4)
        return await run(target(url, gap_s=0.05), [request] * 2, AT_ONCE)

    for outcome in asyncio.run(blocked()):
        assert 0.2 < outcome.client_lag_s < 1


def test_what_waits_for_a_place_waits_in_the_client_and_is_told_apart(url: str) -> None:
    arrivals = Arrivals(max_concurrency=1)
    outcomes = load(target(url, ttft_s=0.2), 3, max_tokens=1, arrivals=arrivals)
    waits_s = sorted(outcome.queued_s for outcome in outcomes)
    assert waits_s == pytest.approx([0.0, 0.2, 0.4], abs=0.1)
    assert max(outcome.ttft_s for outcome in outcomes) < 0.35


@pytest.mark.parametrize("processes", [1, 2])
def test_no_more_than_so_many_at_once(url: str, processes: int) -> None:
    arrivals = Arrivals(max_concurrency=3)
    outcomes = load(target(url), 12, arrivals=arrivals, processes=processes)
    assert [outcome.index for outcome in outcomes] == list(range(12))
    assert all(outcome.ok for outcome in outcomes)
    assert peak_concurrency(outcomes) == 3


def test_several_processes_measure_as_one_does(url: str) -> None:
    arrivals = Arrivals(request_rate=100.0)
    told = target(url, ttft_s=0.15, gap_s=0.03)
    outcomes = load(told, 10, arrivals=arrivals, processes=2)
    assert [outcome.index for outcome in outcomes] == list(range(10))
    assert 0.15 <= statistics.median(outcome.ttft_s for outcome in outcomes) < 0.23
    assert statistics.median(outcome.queued_s for outcome in outcomes) < 0.05


@pytest.mark.parametrize("processes", [1, 2])
def test_a_load_that_is_stopped_gives_what_it_has(url: str, processes: int) -> None:
    async def stopped() -> list[Outcome]:
        stop = asyncio.Event()
        ended: list[Outcome] = []

        def on_outcome(outcome: Outcome) -> None:
            ended.append(outcome)
            if len(ended) == 4:
                stop.set()

        requests = [Request(prompt=[1], max_tokens=4)] * 500
        arrivals = Arrivals(request_rate=50.0)
        outcomes = await run(
            target(url), requests, arrivals, processes=processes, on_outcome=on_outcome, stop=stop
        )
        assert sorted(o.index for o in ended) == [o.index for o in outcomes]
        return outcomes

    began = time.monotonic()
    outcomes = asyncio.run(stopped())
    assert time.monotonic() - began < 5
    assert 4 <= sum(outcome.ok for outcome in outcomes) < 100
    assert all(outcome.ok or outcome.cancelled for outcome in outcomes)
