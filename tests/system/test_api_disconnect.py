"""A client that leaves takes its work with it, at the prefill and at the decode side."""

import http.client
import json
import time
from collections.abc import Callable
from urllib.request import urlopen

import openai
import pytest

from tests.api_client import metrics, until
from tests.servers import RunningServer

pytestmark = pytest.mark.slow
LONG_PROMPT = [(11 * n) % 40_000 + 500 for n in range(900)]  # 15 chunks: seconds of prefill
ROLES = ("prefill", "decode")


def held(server: RunningServer) -> list[float]:
    """Shares of the pools held, and sequences running, by worker."""
    now = metrics(server.url)
    names = ("kv_cache_usage_perc", "num_requests_running", "num_requests_waiting")
    return [value for name in names for role in ROLES for value in now.each(name, role)]


def is_idle(server: RunningServer) -> bool:
    shares = held(server)
    return len(shares) == 6 and not any(shares)


def is_held_by(server: RunningServer, role: str) -> Callable[[], bool]:
    return lambda: metrics(server.url).total("kv_cache_usage_perc", role) > 0


def post(server: RunningServer, **body: object) -> http.client.HTTPConnection:
    """A request whose answer nobody has read yet."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request(
        "POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"}
    )
    return connection


@pytest.fixture(autouse=True)
def idle_before(server: RunningServer) -> None:
    until(lambda: is_idle(server), "idle before the test")


def steps(server: RunningServer, role: str) -> float:
    return metrics(server.url).total("engine_steps_total", role)


def assert_all_is_freed(server: RunningServer) -> None:
    """And that nobody computes on: passes stop."""
    until(lambda: is_idle(server), "all pages given back", within_s=10)
    time.sleep(1.1)  # workers tell their counters once a second
    before = [steps(server, role) for role in ROLES]
    time.sleep(1.1)
    assert [steps(server, role) for role in ROLES] == before
    assert 'baton:num_requests_in_progress{model_name="smollm2"} 0.0' in page(server)


def page(server: RunningServer) -> str:
    with urlopen(f"{server.url}/metrics", timeout=10) as answer:
        return bytes(answer.read()).decode()


def test_in_the_middle_of_a_stream(server: RunningServer, client: openai.OpenAI) -> None:
    stream = client.completions.create(
        model="smollm2",
        prompt="Count: one, two,",
        stream=True,
        max_tokens=900,
        extra_body={"ignore_eos": True},
    )
    for _ in range(3):
        next(stream)
    until(is_held_by(server, "decode"), "the sequence is decoded")
    stream.close()
    assert_all_is_freed(server)


@pytest.mark.parametrize("stream", [False, True])
def test_in_the_middle_of_prefill(server: RunningServer, stream: bool) -> None:  # noqa: FBT001
    prompt = [int(stream) + 1, *LONG_PROMPT]  # nothing of it is cached
    connection = post(server, prompt=prompt, max_tokens=100, stream=stream)
    until(is_held_by(server, "prefill"), "the prompt is computed")
    connection.close()
    assert_all_is_freed(server)


def test_in_the_middle_of_an_answer_that_comes_whole(server: RunningServer) -> None:
    connection = post(server, prompt="Count: one, two,", max_tokens=900, ignore_eos=True, n=2)
    until(is_held_by(server, "decode"), "the sequences are decoded")
    connection.close()
    assert_all_is_freed(server)
