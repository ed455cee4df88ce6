import asyncio
from collections.abc import Coroutine
from typing import Any

from launch.gateway.arrival import Arrival


def run(test: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(5):
            await test

    asyncio.run(bounded())


def test_who_waits_goes_on_when_something_comes() -> None:
    async def test() -> None:
        arrival = Arrival()
        asyncio.get_running_loop().call_soon(arrival.set)
        await arrival.wait()

    run(test())


def test_what_came_before_is_not_missed_until_it_is_cleared() -> None:
    async def test() -> None:
        arrival = Arrival()
        arrival.set()
        await arrival.wait()
        await arrival.wait()
        arrival.clear()
        waiting = asyncio.ensure_future(arrival.wait())
        await asyncio.sleep(0)
        assert not waiting.done()
        arrival.set()
        await waiting

    run(test())


def test_a_waiter_may_give_up() -> None:
    async def test() -> None:
        arrival = Arrival()
        waiting = asyncio.ensure_future(arrival.wait())
        waiting.cancel()
        arrival.set()
        await arrival.wait()

    run(test())
