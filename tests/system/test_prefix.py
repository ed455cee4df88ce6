"""What is computed once is neither computed nor stored nor moved again; pages travel early."""

import asyncio
import json
import math
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.api_client import Answer, Body, Client, Metrics, alone, metrics, run, until
from tests.servers import RunningServer, serving

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

PAGE_TOKENS = 16
CHUNK_TOKENS = 256
ROLES = ("prefill", "decode")
N_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class Watched:
    """A server with one worker a pool, its request log, and how many pages each worker has."""

    server: RunningServer
    request_log: Path
    n_pages: int

    def ask(self, prompt: list[int], max_tokens: int = 1) -> Answer:
        (answer,) = alone(self.server.url, {"": body(prompt, max_tokens)}).values()
        return answer

    def told(self) -> Metrics:
        """Counters of a moment at which nothing was going on any more: each worker tells them
        once a second, with the CPU time that it has used by then."""
        until(lambda: not any(self.pages_held().values()), "all pages given back")
        for _ in range(2):
            before = self._cpu_seconds()
            until(lambda before=before: self._is_news(before), "news of both workers")
        return metrics(self.server.url)

    def _cpu_seconds(self) -> list[float]:
        told = metrics(self.server.url)
        return [s for role in ROLES for s in told.each("process_cpu_seconds_total", role)]

    def _is_news(self, before: list[float]) -> bool:
        now = self._cpu_seconds()
        return len(now) == len(ROLES) and not set(before) & set(now)

    def pages_held(self) -> dict[str, int]:
        """By role, as last told."""
        told = metrics(self.server.url)
        share = {role: told.total("kv_cache_usage_perc", role) for role in ROLES}
        return {role: round(of_one * self.n_pages) for role, of_one in share.items()}

    def events(self) -> list[dict[str, Any]]:
        """The request log, in the order of this host's clock."""
        lines = self.request_log.read_text().splitlines()
        return sorted(map(json.loads, lines), key=lambda event: event["mono"])


@pytest.fixture(scope="module")
def watched(default_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    request_log = tmp_path_factory.mktemp("log") / "requests.jsonl"
    with serving(
        default_model,
        "--dtype=float32",
        "--disaggregate=always",
        "--max-model-len=1280",
        "--kv-cache-memory-bytes=192MiB",
        f"--prefill.chunk-tokens={CHUNK_TOKENS}",
        f"--request-log={request_log}",
    ) as server:
        tokens = re.findall(r"kv_tokens=(\d+)", server.log())
        assert len(set(tokens)) == 1
        yield Watched(server, request_log, int(tokens[0]) // PAGE_TOKENS)


def body(prompt: list[int], max_tokens: int) -> Body:
    return {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}


def ids(n: int, salt: int) -> list[int]:
    """`n` token ids that share no prefix with those of another salt."""
    return [(7 * i * i + 11 * i + 1009 * salt) % 40_000 + 100 for i in range(n)]


def test_pages_arrive_before_the_last_chunk_is_computed(watched: Watched) -> None:
    watched.ask(ids(4 * CHUNK_TOKENS, salt=1), max_tokens=2)
    until(lambda: "migration_end" in {e["event"] for e in watched.events()}, "pages moved")
    life = watched.events()
    (computed,) = [event["mono"] for event in life if event["event"] == "context_end"]
    pulled = [event for event in life if event["event"] == "pages_pulled"]
    early = sum(event["pages"] for event in pulled if event["mono"] < computed)
    assert {event["role"] for event in pulled} == {"decode"}
    assert early >= 3 * CHUNK_TOKENS // PAGE_TOKENS
    assert sum(event["pages"] for event in pulled) == 4 * CHUNK_TOKENS // PAGE_TOKENS


def test_a_second_request_with_the_same_prefix_computes_only_its_own_tokens(
    watched: Watched,
) -> None:
    prefix = ids(1000, salt=2)
    watched.ask([*prefix, *ids(9, salt=3)])
    before = watched.told()
    answer = watched.ask([*prefix, *ids(9, salt=4)])
    after = watched.told()
    assert answer.prompt_tokens == 1009
    assert answer.cached_tokens == 1000 // PAGE_TOKENS * PAGE_TOKENS
    assert answer.prompt_tokens - answer.cached_tokens < 32
    assert increase(before, after, "engine_step_tokens_total", "prefill") == 17
    assert increase(before, after, "engine_step_tokens_total", "decode") == 0
    assert increase(before, after, "prefix_cache_hits_total", "prefill") == answer.cached_tokens


def test_a_shared_prefix_is_stored_once_and_moved_once(watched: Watched) -> None:
    prefix, n_out = ids(500, salt=5), 48
    prompts = [[*prefix, *ids(20, salt=100 + n)] for n in range(N_AT_ONCE)]
    shared = len(prefix) // PAGE_TOKENS
    own = math.ceil((len(prompts[0]) + n_out) / PAGE_TOKENS) - shared
    at_most = shared + N_AT_ONCE * own
    assert at_most < N_AT_ONCE * shared  # or nothing would be shown
    before = watched.told()
    seen = run(watched.server.url, lambda client: watch(watched, client, prompts, n_out))
    after = watched.told()
    assert max(seen["running"]) == N_AT_ONCE
    assert max(seen["prefill"]) <= at_most
    assert shared + N_AT_ONCE <= max(seen["decode"]) <= at_most
    page_bytes = page_bytes_of(watched)
    pulled = increase(before, after, "kv_pull_bytes_total", "decode") / page_bytes
    assert shared < pulled <= at_most
    computed = increase(before, after, "engine_step_tokens_total", "prefill")
    unshared = len(prompts[0]) - shared * PAGE_TOKENS
    assert computed == len(prompts[0]) + (N_AT_ONCE - 1) * unshared


async def watch(
    watched: Watched, client: Client, prompts: list[list[int]], n_out: int
) -> dict[str, list[int]]:
    """Ask all at once; what the gauges said meanwhile."""
    seen: dict[str, list[int]] = {"running": [], "prefill": [], "decode": []}

    async def look() -> None:
        while True:
            told = await asyncio.to_thread(metrics, watched.server.url)
            seen["running"].append(round(told.total("num_requests_running", "decode")))
            for role in ROLES:
                share = told.total("kv_cache_usage_perc", role)
                seen[role].append(round(share * watched.n_pages))
            await asyncio.sleep(0.05)

    looking = asyncio.ensure_future(look())
    await asyncio.gather(*(client.complete(body(prompt, n_out)) for prompt in prompts))
    looking.cancel()
    with suppress(asyncio.CancelledError):
        await looking
    return seen


def test_a_second_turn_computes_its_new_tokens_alone(watched: Watched) -> None:
    first, question, n_out = ids(300, salt=6), ids(25, salt=7), 64
    answer = watched.ask(first, n_out)
    before = watched.told()
    second = [*first, *answer.tokens, *question]
    turn = watched.ask(second, max_tokens=8)
    after = watched.told()
    assert turn.prompt_tokens == len(second)
    computed = turn.prompt_tokens - turn.cached_tokens
    assert computed <= len(question) + PAGE_TOKENS
    assert increase(before, after, "engine_step_tokens_total", "prefill") == computed
    # of what was cached, the answer's pages existed in the decode pool alone
    known = len(first) // PAGE_TOKENS
    fetched = turn.cached_tokens // PAGE_TOKENS - known
    assert fetched >= n_out // PAGE_TOKENS - 1
    pulled = increase(before, after, "kv_pull_bytes_total", "prefill")
    assert pulled == fetched * page_bytes_of(watched)


def increase(before: Metrics, after: Metrics, name: str, role: str) -> int:
    return round(after.total(name, role) - before.total(name, role))


def page_bytes_of(watched: Watched) -> int:
    """From the memory that the log states: each page, and 8 bytes beside it."""
    (total,) = set(re.findall(r"kv_cache_memory_bytes=(\d+)", watched.server.log()))
    return int(total) // watched.n_pages - 8
