"""Work in line before one thread."""

import asyncio
import threading
from collections.abc import Awaitable, Callable

import pytest

from common.errors import Overloaded
from launch.gateway.lane import RETRY_S, Lane


def run(test: Callable[[Lane, threading.Event], Awaitable[None]]) -> None:
    """With a lane whose thread is busy until the event is set."""

    async def busy() -> None:
        lane, go = Lane("tests", max_pending=2), threading.Event()
        first = asyncio.create_task(lane.run(lambda: go.wait(5)))
        await asyncio.sleep(0.01)
        try:
            await test(lane, go)
        finally:
            go.set()
            assert await first

    asyncio.run(busy())


def test_nothing_else_waits_for_it_and_the_line_has_an_end() -> None:
    async def test(lane: Lane, go: threading.Event) -> None:
        second = asyncio.create_task(lane.run(lambda: 2))
        assert await asyncio.to_thread(lambda: 3) == 3
        with pytest.raises(Overloaded, match="requests that wait for tests: 2 of 2") as raised:
            await lane.run(lambda: 4)
        assert (raised.value.status, raised.value.retry_after_s) == (429, RETRY_S)
        go.set()
        assert await second == 2
        assert await lane.run(lambda: 5) == 5

    run(test)


def test_there_may_be_several_threads() -> None:
    async def test() -> None:
        lane, go = Lane("tests", max_pending=9, n_threads=2), threading.Event()
        busy = asyncio.create_task(lane.run(lambda: go.wait(5)))
        await asyncio.sleep(0.01)
        assert await lane.run(lambda: 2) == 2
        go.set()
        assert await busy

    asyncio.run(test())


def test_who_leaves_the_line_has_nothing_begun() -> None:
    async def test(lane: Lane, go: threading.Event) -> None:
        begun: list[int] = []
        left = asyncio.create_task(lane.run(lambda: begun.append(1)))
        await asyncio.sleep(0.01)
        left.cancel()
        await asyncio.gather(left, return_exceptions=True)
        go.set()
        await lane.run(lambda: begun.append(2))
        assert begun == [2]

    run(test)


def test_work_that_nobody_waits_for_any_more_keeps_its_turn() -> None:
    """Or as many threads would be busy as clients have left."""

    async def test() -> None:
        lane, go, ended = Lane("tests", max_pending=2), threading.Event(), list[int]()
        first = asyncio.create_task(lane.run(lambda: (go.wait(5), ended.append(1))))
        await asyncio.sleep(0.01)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        second = asyncio.create_task(lane.run(lambda: ended.append(2)))
        await asyncio.sleep(0.01)
        assert ended == []
        go.set()
        await second
        assert ended == [1, 2]

    asyncio.run(test())
