"""Gateways of one server that tell each other what only each of them knows, over real sockets."""

import asyncio
import math
import os
import socket
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from common.ids import InstanceId, Role
from launch.gateway.history import SHOWN
from launch.gateway.own_part import part_of
from launch.gateway.parts import Elsewhere
from launch.gateway.siblings import ASK_S, Siblings
from launch.supervise import LocalWorker
from tests.unit.gateway.builders import snapshot
from tests.unit.gateway.test_summary import D, P, Watched

NAMES = ("1" * 32, "2" * 32, "3" * 32)


def worker(number: int, *, alive: bool = True) -> LocalWorker:
    return LocalWorker(
        f"gateway-{number}",
        Role.GATEWAY,
        InstanceId(NAMES[number]),
        os.getpid() if alive else None,
        joined=True,
        restarts=0,
        trouble="" if alive else f"gateway-{number} ended with signal 9",
    )


@asynccontextmanager
async def sibling(run_dir: Path, number: int, of: Watched, *others: int) -> AsyncIterator[Siblings]:
    made = Siblings(
        run_dir,
        InstanceId(NAMES[number]),
        lambda after: part_of(of.history, number, of.now, after),
        lambda: [worker(other) for other in others],
    )
    await made.listen()
    try:
        yield made
    finally:
        made.close()


def answered(name: str, *ttfts_s: float, rate: int = 10) -> Watched:
    """A gateway that has answered such requests in ten seconds, and has one in progress."""
    watched = Watched()
    watched.up(P, snapshot())
    watched.up(D, snapshot())
    for n, ttft_s in enumerate(ttfts_s):
        one = f"{name}{n}"
        watched.submit(one, at=100.0 + n)
        watched.note("routed", one, at=100.0 + n, decision="local", reason="flag", decode=D)
        watched.note("first_token", one, at=100.0 + n + ttft_s, sample=0)
        fields = {"request": one, "tokens": 3, "longest": 3, "finish": "stop"}
        watched.note("finished", one, at=101.0 + n, **fields)
    watched.submit(f"{name}-live", at=109.5)
    for second in range(11):
        watched.now = 100.0 + second
        watched.tokens = rate * second
        watched.failures = {"429": second}
        watched.history.sample()
    return watched


async def asked(run_dir: Path, own: Watched, other: Watched) -> Elsewhere:
    async with sibling(run_dir, 0, own, 1) as first, sibling(run_dir, 1, other):
        return await first.ask(0.0)


def test_the_document_is_of_all_gateways() -> None:
    own, other = answered("a", 0.1, 0.3), answered("b", 0.15, 0.4, 0.5, rate=40)
    with tempfile.TemporaryDirectory(prefix="bs-") as run_dir:
        own.elsewhere = asyncio.run(asked(Path(run_dir), own, other))
        assert not [*Path(run_dir).iterdir()]
    document = own.status(after=0.0)
    assert document.gateways_missing == {}
    assert document.in_progress == 2  # as the helpers number them
    assert document.latency.ttft_s.n == document.latency.e2e_s.n == 5
    assert document.latency.ttft_s.p50 == pytest.approx(0.3)
    assert document.latency.ttft_s.p90 == pytest.approx(0.5)
    assert document.slo.judged == 5
    assert document.slo.ttft_met == pytest.approx(2 / 5)
    assert document.rates.output_tokens_per_s == pytest.approx(50.0)
    assert document.failures == document.failures_total == {"429": 20}
    told = [one.id for one in document.requests]
    assert told == ["a-live", "b-live", "b2", "a1", "b1", "a0", "b0"]
    last = document.series[-1]
    assert last.output_tokens_per_s == pytest.approx(50.0)
    assert (last.ttft_s.n, last.ttft_s.p90) == (5, pytest.approx(0.5))
    assert [worker.running for worker in document.workers] == [0, 0]  # each once, of all
    assert own.status(after=last.unix_s).series == []


def test_who_does_not_answer_is_told_as_missing_in_time() -> None:
    async def ask(run_dir: Path) -> tuple[Elsewhere, float]:
        others = [worker(1), worker(2), worker(2, alive=False)]
        mute = Siblings(run_dir, InstanceId(NAMES[0]), lambda _: pytest.fail(), lambda: others)
        began = time.monotonic()
        with socket.socket(socket.AF_UNIX) as hangs:
            hangs.bind(str(run_dir / f"{NAMES[1][:12]}.sta"))
            hangs.listen()
            return await mute.ask(0.0), time.monotonic() - began

    with tempfile.TemporaryDirectory(prefix="bs-") as run_dir:
        told, seconds = asyncio.run(ask(Path(run_dir)))
    assert ASK_S <= seconds < 3 * ASK_S
    assert told.parts == []
    assert told.missing == {
        "gateway-1": "has not answered within 1 s",
        "gateway-2": "ended with signal 9",
    }


def test_no_more_requests_are_told_than_one_gateway_tells() -> None:
    own, other = answered("a"), answered("b")
    for watched, name in ((own, "a"), (other, "b")):
        for n in range(SHOWN):
            watched.submit(f"{name}{n}", at=100.0)
            fields = {"request": f"{name}{n}", "tokens": 1, "longest": 1, "finish": "stop"}
            watched.note("finished", f"{name}{n}", at=100.0 + n, **fields)
    own.elsewhere = Elsewhere([part_of(other.history, 0, other.now, math.inf)], {})
    told = own.status().requests
    assert len(told) == 2 + SHOWN
    assert {one.id[0] for one in told[-50:]} == {"a", "b"}
