"""Two hundred streams, a third of whose readers leave: the others get theirs, nothing is left."""

import asyncio
import random
import time
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.api_client import Answer, Body, Client, alone, gathered, metrics, run, until
from tests.servers import RunningServer, serving

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

N_REQUESTS = 200
N_KINDS = 8
MAX_OUT = 24
ARRIVE_S = 1.0  # all requests come within
LEAVE_S = 8.0  # readers who leave at a time leave within, after they came
PATH = "/v1/completions"
ROLES = ("prefill", "decode")


@dataclass(frozen=True, slots=True)
class Visit:
    """One request of the storm, and when its reader leaves it."""

    kind: str
    max_tokens: int
    arrives_s: float
    leaves_after_events: int | None = None
    leaves_after_s: float | None = None

    @property
    def stays(self) -> bool:
        return self.leaves_after_events is None and self.leaves_after_s is None


def kinds() -> dict[str, Body]:
    """Prompts of random lengths, greedy and drawn, as they are asked alone."""
    draw = random.Random(1)
    made: dict[str, Body] = {}
    for n in range(N_KINDS):
        prompt = [draw.randrange(100, 40_000) for _ in range(draw.choice((1, 7, 16, 30, 64)))]
        drawn = {"temperature": 0.9, "seed": n} if n % 2 else {"temperature": 0}
        made[f"kind {n}"] = {
            "prompt": prompt,
            "max_tokens": MAX_OUT,
            "ignore_eos": True,
            "logprobs": 0,
            **drawn,
        }
    return made


def visits() -> list[Visit]:
    """A third leave: half of these after some events, half after some time."""
    draw = random.Random(2)
    made: list[Visit] = []
    for n in range(N_REQUESTS):
        max_tokens = draw.randint(1, MAX_OUT)
        visit = Visit(
            kind=f"kind {draw.randrange(N_KINDS)}",
            max_tokens=max_tokens,
            arrives_s=draw.uniform(0, ARRIVE_S),
            leaves_after_events=draw.randrange(max_tokens) if n % 6 == 0 else None,
            leaves_after_s=draw.uniform(0, LEAVE_S) if n % 6 == 3 else None,
        )
        made.append(visit)
    return made


@pytest.fixture(scope="module")
def truth() -> dict[str, Answer]:
    """What each kind says alone; asked of the first server, good for all."""
    return {}


@pytest.mark.parametrize(
    "flags",
    [
        ("--transport=shm", "--prefill=2", "--decode=2"),
        ("--transport=tcp", "--prefill=2", "--decode=2", "--no-enable-prefix-caching"),
    ],
    ids=["shm", "tcp"],
)
def test_storm(default_model: Path, truth: dict[str, Answer], flags: tuple[str, ...]) -> None:
    with serving(
        default_model,
        "--dtype=float32",
        "--max-model-len=128",
        "--prefill.kv-cache-memory-bytes=64MiB",
        "--decode.kv-cache-memory-bytes=36MiB",
        *flags,
    ) as server:
        until(lambda: "event=ready" in server.log(), "all workers up")
        if not truth:
            truth.update(alone(server.url, kinds()))
        came = visits()
        answers = run(server.url, lambda client: storm(client, came))
        assert answers.count(None) > N_REQUESTS // 6
        for visit, answer in zip(came, answers, strict=True):
            if visit.stays:
                assert answer is not None
                assert_begins(truth[visit.kind], answer, visit)
        assert_idle(server)


async def storm(client: Client, came: list[Visit]) -> list[Answer | None]:
    return await asyncio.gather(*(receive(client, visit) for visit in came))


async def receive(client: Client, visit: Visit) -> Answer | None:
    """The answer; None if the reader has left before its end."""
    await asyncio.sleep(visit.arrives_s)
    try:
        async with asyncio.timeout(visit.leaves_after_s):
            return await read(client, visit)
    except TimeoutError:
        return None


async def read(client: Client, visit: Visit) -> Answer | None:
    asked = {**kinds()[visit.kind], "max_tokens": visit.max_tokens, "return_token_ids": True}
    events = []
    async with aclosing(client.events(PATH, asked)) as stream:
        async for event in stream:
            if len(events) == visit.leaves_after_events:
                return None
            events.append(event)
    return gathered(events)


def assert_begins(whole: Answer, answer: Answer, visit: Visit) -> None:
    """A shorter answer is the beginning of the longer one, to the bits of its scores."""
    n = visit.max_tokens
    assert answer.finish == "length"
    assert (answer.tokens, answer.logprobs) == (whole.tokens[:n], whole.logprobs[:n]), visit
    assert whole.text.startswith(answer.text.rstrip("\ufffd")), visit


def assert_idle(server: RunningServer) -> None:
    """Every page has been given back, and stays so."""
    until(lambda: idle(server), "all pages given back")
    time.sleep(1.0)
    assert idle(server)
    assert [len(server.workers(role)) for role in ROLES] == [2, 2]  # nobody was restarted
    assert "worker_exited" not in server.log()


def idle(server: RunningServer) -> bool:
    told = metrics(server.url)
    gauges = ("kv_cache_usage_perc", "num_requests_running", "num_requests_waiting")
    values = [value for role in ROLES for name in gauges for value in told.each(name, role)]
    assert len(values) == 4 * len(gauges)
    return not any(values)
