"""Two hundred streams, a third of whose readers leave: the others get theirs, nothing is left."""

import asyncio
import random
import time
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.api_client import Answer, Body, Client, Event, choices, metrics, run, until
from tests.covering import Settings, covering
from tests.servers import RunningServer, serving

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

N_REQUESTS = 200
N_KINDS = 6
MAX_OUT = 20
MAX_MODEL_LEN = "--max-model-len=128"
ARRIVE_S = 1.0  # all requests come within
LEAVE_S = 6.0  # readers who leave at a time leave within, after they came
PATH = "/v1/completions"
ROLES = ("prefill", "decode")

Truth = dict[str, tuple[Answer, ...]]


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
    """Prompts of random lengths, greedy, drawn, and drawn twice; as they are asked alone."""
    draw = random.Random(1)
    made: dict[str, Body] = {}
    for n in range(N_KINDS):
        prompt = [draw.randrange(100, 40_000) for _ in range(draw.choice((1, 7, 16, 30, 64)))]
        drawn = {"temperature": 0.9, "seed": n, "n": 1 + n % 2}
        made[f"kind {n}"] = {
            "prompt": prompt,
            "max_tokens": MAX_OUT,
            "ignore_eos": True,
            "logprobs": 0,
            "return_token_ids": True,
            **(drawn if n % 3 else {"temperature": 0}),
        }
    return made


def visits(seed: int) -> list[Visit]:
    """A third leave: half of these after some events, half after some time."""
    draw = random.Random(seed)
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
def truth() -> Truth:
    """What each kind says alone; asked of the first server, good for all."""
    return {}


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_storm(default_model: Path, truth: Truth, transport: str) -> None:
    settings = Settings(
        pools=(2, 2),
        transport=transport,
        caching=transport == "shm",
        chunk_tokens=32,
        ample=False,
    )
    with serving(default_model, *settings.flags(), MAX_MODEL_LEN) as server:
        weather(server, settings, truth, seed=2)


@pytest.mark.full
@pytest.mark.parametrize("settings", covering(), ids=str)
def test_storms_on_every_path(default_model: Path, truth: Truth, settings: Settings) -> None:
    with serving(default_model, *settings.flags(), MAX_MODEL_LEN) as server:
        for seed in range(3, 8):
            weather(server, settings, truth, seed)


def weather(server: RunningServer, settings: Settings, truth: Truth, seed: int) -> None:
    """A storm, what was promised to those who stayed, and the calm after it."""
    until(lambda: "event=ready" in server.log(), "all workers up")
    if not truth:
        truth.update(run(server.url, alone))
    came = visits(seed)
    answers = run(server.url, lambda client: storm(client, came))
    assert answers.count(None) > N_REQUESTS // 6
    for visit, answer in zip(came, answers, strict=True):
        if visit.stays:
            assert answer is not None
            for whole, choice in zip(truth[visit.kind], answer, strict=True):
                assert_begins(whole, choice, visit)
    assert_calm(server, settings.pools)


async def alone(client: Client) -> Truth:
    return {kind: choices([await client.post(PATH, body)]) for kind, body in kinds().items()}


async def storm(client: Client, came: list[Visit]) -> list[tuple[Answer, ...] | None]:
    return await asyncio.gather(*(receive(client, visit) for visit in came))


async def receive(client: Client, visit: Visit) -> tuple[Answer, ...] | None:
    """The answer; None if the reader has left before its end."""
    await asyncio.sleep(visit.arrives_s)
    try:
        async with asyncio.timeout(visit.leaves_after_s):
            return await read(client, visit)
    except TimeoutError:
        return None


async def read(client: Client, visit: Visit) -> tuple[Answer, ...] | None:
    asked = {**kinds()[visit.kind], "max_tokens": visit.max_tokens}
    events: list[Event] = []
    async with aclosing(client.events(PATH, asked)) as stream:
        async for event in stream:
            if len(events) == visit.leaves_after_events:
                return None
            events.append(event)
    return choices(events)


def assert_begins(whole: Answer, answer: Answer, visit: Visit) -> None:
    """A shorter answer is the beginning of the longer one, to the bits of its scores."""
    n = visit.max_tokens
    assert answer.finish == "length"
    assert (answer.tokens, answer.logprobs) == (whole.tokens[:n], whole.logprobs[:n]), visit
    assert whole.text.startswith(answer.text.rstrip("\ufffd")), visit


def assert_calm(server: RunningServer, pools: tuple[int, int]) -> None:
    """Every page has been given back, and stays so; nobody had to be restarted."""
    until(lambda: is_calm(server, pools), "all pages given back")
    time.sleep(0.5)
    assert is_calm(server, pools)
    assert "worker_exited" not in server.log()


def is_calm(server: RunningServer, pools: tuple[int, int]) -> bool:
    told = metrics(server.url)
    for role, n_workers in zip(ROLES, pools, strict=True):
        for name in ("kv_cache_usage_perc", "num_requests_running", "num_requests_waiting"):
            values = told.each(name, role)
            assert len(values) == n_workers
            if any(values):
                return False
    return True
