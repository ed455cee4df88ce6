"""Several gateways that share a port: one of them is killed, and what is the others' goes on."""

import asyncio
import json
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import httpx2 as httpx
import pytest

from tests.servers import RunningServer, launched
from tests.system.streams import SMALL

N_STREAMS, N_TOKENS = 12, 150
ASKED = {
    "model": "smollm2",
    "prompt": "Count: one, two,",
    "max_tokens": N_TOKENS,
    "temperature": 0,
    "ignore_eos": True,
    "stream": True,
}


async def read(client: httpx.AsyncClient, begun: asyncio.Semaphore) -> bytes:
    """A stream's events; whatever came of one that broke."""
    got = b""
    try:
        async with client.stream("POST", "/v1/completions", json=ASKED) as response:
            assert response.status_code == 200
            async for data in response.aiter_bytes():
                if not got:
                    begun.release()
                got += data
    except httpx.TransportError:
        pass
    return got


@asynccontextmanager
async def streams(server: RunningServer) -> AsyncIterator[list[asyncio.Task[bytes]]]:
    """All of them begun, a connection each."""
    begun = asyncio.Semaphore(0)
    limits = httpx.Limits(max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=server.url, timeout=60, limits=limits) as client:
        tasks = [asyncio.create_task(read(client, begun)) for _ in range(N_STREAMS)]
        async with asyncio.timeout(60):
            for _ in tasks:
                await begun.acquire()
        yield tasks


def text_of(events: bytes) -> str:
    """Of a stream that is whole."""
    *lines, done = events.decode().removesuffix("\n\n").split("\n\n")
    assert done == "data: [DONE]"
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines]
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"
    return "".join(chunk["choices"][0]["text"] for chunk in chunks)


async def one_is_killed(server: RunningServer) -> None:
    killed, survivor = server.gateways()
    async with streams(server) as tasks:
        os.kill(killed, signal.SIGKILL)
        got = await asyncio.gather(*tasks)
    whole = [events for events in got if events.endswith(b"data: [DONE]\n\n")]
    assert 0 < len(whole) < N_STREAMS
    assert len({text_of(events) for events in whole}) == 1
    deadline = time.monotonic() + 60
    while server.log().count("event=serving") < 3:
        assert time.monotonic() < deadline, server.tail()
        await asyncio.sleep(0.1)
    now = server.gateways()
    assert len(now) == 2
    assert survivor in now
    assert killed not in now


async def workers_restart(server: RunningServer) -> None:
    """SIGHUP is the launcher's; to its gateways and workers it means nothing."""
    gateways, workers = server.gateways(), server.workers("decode")
    for process in (*gateways, *workers):
        os.kill(process, signal.SIGHUP)
    await asyncio.sleep(0.5)
    assert (server.gateways(), server.workers("decode")) == (gateways, workers)
    server.process.send_signal(signal.SIGHUP)
    deadline = time.monotonic() + 120
    while "event=rolling_restarted" not in server.log():
        assert time.monotonic() < deadline, server.tail()
        await asyncio.sleep(0.1)
    assert server.gateways() == gateways
    assert not {*workers} & {*server.workers("decode")}


async def all_drain(server: RunningServer) -> None:
    async with streams(server) as tasks:
        server.process.send_signal(signal.SIGTERM)
        got = await asyncio.gather(*tasks)
    assert len({text_of(events) for events in got}) == 1


def told(server: RunningServer) -> dict[str, Any]:
    """By whichever gateway a new connection comes to. Raises OSError: it does not answer."""
    with urlopen(f"{server.url}/status", timeout=5) as answer:
        return json.load(answer)


async def each_tells_of_all(server: RunningServer) -> None:
    """Whichever is asked. One that hangs is missed, and holds nobody up."""
    async with streams(server) as tasks:
        assert {told(server)["in_progress"] for _ in range(8)} == {N_STREAMS}
        await asyncio.gather(*tasks)
    await asyncio.sleep(1.5)  # workers tell of theirs once a second
    documents = [told(server) for _ in range(8)]
    ids = [[request["id"] for request in one["requests"]] for one in documents]
    assert len(ids[0]) == N_STREAMS
    assert all(one == ids[0] for one in ids)
    for one in documents:
        assert one["gateways_missing"] == {}
        assert one["latency"]["ttft_s"]["n"] == N_STREAMS
        assert one["latency"]["ttft_s"] == documents[0]["latency"]["ttft_s"]
        tokens = one["rates"]["output_tokens_per_s"] * one["window_s"]
        assert tokens == pytest.approx(N_STREAMS * N_TOKENS, rel=0.05)
    stopped, _ = server.gateways()
    os.kill(stopped, signal.SIGSTOP)
    try:
        missing: dict[str, str] | None = None
        for _ in range(20):  # connections are dealt to the one that is stopped, too
            with suppress(OSError):  # its limit is what the answer must be within
                missing = told(server)["gateways_missing"]
                break
        assert missing == {"gateway-0": "has not answered within 1 s"}
    finally:
        os.kill(stopped, signal.SIGCONT)


@pytest.mark.full
def test_a_killed_gateway_ends_its_own_clients_streams_alone(default_model: Path) -> None:
    flags = ("--gateways", "2", "--prefill", "0", *SMALL)
    with launched(default_model, *flags) as server:
        server.wait_until_ready()
        asyncio.run(each_tells_of_all(server))
        asyncio.run(one_is_killed(server))
        asyncio.run(workers_restart(server))
        asyncio.run(all_drain(server))
        assert server.wait(within_s=40) == 0, server.tail()
        server.assert_nothing_left()
