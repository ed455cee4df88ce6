import os

import pytest

from bench import client
from bench.arrivals import Arrivals
from bench.client import Request, Target
from bench.load import EVENTS_PER_PROCESS_S, processes_for, split
from bench.processes import Job

TARGET = Target(base_url="http://h", model="m", temperature=None, ignore_eos=False)


def job(n: int, max_concurrency: int | None) -> Job:
    request = Request(prompt="a", max_tokens=1)
    return Job(TARGET, [(i, request, float(i)) for i in range(n)], max_concurrency)


@pytest.mark.parametrize(
    ("n", "places", "n_processes", "shares", "places_of"),
    [
        (5, None, 2, [[0, 2, 4], [1, 3]], [None, None]),
        (4, 3, 2, [[0, 2], [1, 3]], [2, 1]),
        (4, 1, 2, [[0, 1, 2, 3]], [1]),
        (2, None, 3, [[0], [1]], [None, None]),
    ],
)
def test_processes_share_requests_and_places(
    n: int,
    places: int | None,
    n_processes: int,
    shares: list[list[int]],
    places_of: list[int | None],
) -> None:
    jobs = split(job(n, places), n_processes)
    assert [[index for index, _, _ in part.due] for part in jobs] == shares
    assert [part.max_concurrency for part in jobs] == places_of


def test_a_rate_beyond_one_process_takes_several() -> None:
    requests = [Request(prompt="a", max_tokens=100)] * 1000
    few = Arrivals(request_rate=0.9 * EVENTS_PER_PROCESS_S / 100)
    many = Arrivals(request_rate=1.5 * EVENTS_PER_PROCESS_S / 100)
    assert processes_for(requests, few) == 1
    assert processes_for(requests, many) == min(2, os.cpu_count() or 1)
    assert processes_for(requests, Arrivals()) == 1


def test_a_completion_asks_for_its_usage_and_nothing_it_was_not_told() -> None:
    assert client.body(TARGET, Request(prompt=[1, 2], max_tokens=3)) == {
        "model": "m",
        "prompt": [1, 2],
        "max_tokens": 3,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_a_chat_has_one_message_and_the_extra_body_has_the_last_word() -> None:
    target = Target(
        base_url="http://h",
        model="m",
        backend="openai-chat",
        extra_body={"temperature": 0.7, "stream_options": None},
    )
    assert client.body(target, Request(prompt="hi", max_tokens=3)) == {
        "model": "m",
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 3,
        "stream": True,
        "stream_options": None,
        "temperature": 0.7,
        "ignore_eos": True,
    }


def test_an_answer_may_be_asked_for_whole() -> None:
    asked = client.body(TARGET, Request(prompt="a", max_tokens=3, stream=False))
    assert asked == {"model": "m", "prompt": "a", "max_tokens": 3, "stream": False}
