"""Whatever a peer says, as long as it is a message: no core raises, and all laws hold after it."""

from random import Random

import pytest

from common.engine.events import Pull, TicketFinal
from common.ids import InstanceId
from common.messages import (
    Accept,
    Accepted,
    AnyMessage,
    End,
    Failed,
    Gone,
    Handoff,
    Heartbeat,
    Metrics,
    PagesReady,
    Refused,
    Release,
    Resync,
    Snapshot,
    Tokens,
    TokensAck,
)
from tests.property.any_message import Maker
from tests.unit.decode import builders as decode
from tests.unit.gateway import builders as gateway
from tests.unit.prefill import builders as prefill

N_MESSAGES = 3000
SEEDS = [0, 1, *(pytest.param(seed, marks=pytest.mark.full) for seed in range(2, 40))]
ANYBODYS: tuple[type[AnyMessage], ...] = (Heartbeat, Gone)
TO_PREFILL = (*ANYBODYS, End, TokensAck, Accept, Release, Resync)
TO_DECODE = (*ANYBODYS, End, TokensAck, PagesReady, Handoff, Resync)
TO_GATEWAY = (*ANYBODYS, Accepted, Refused, Tokens, Failed, Snapshot, Metrics)


@pytest.mark.parametrize("seed", SEEDS)
def test_prefill(seed: int) -> None:
    draw = Random(seed)
    texts = ("t", "t", "u", "x", *map(str, (prefill.G, prefill.D)))
    make, bench = Maker(draw, texts), prefill.Bench()
    pulls: list[Pull] = []
    for n in range(N_MESSAGES):
        if n % 20 == 0:
            bench.hear(
                prefill.prefill(draw.randrange(1, 30), transfer="tu"[n // 20 % 2], attempt=n // 40)
            )
        sender = draw.choice((prefill.G, prefill.D))
        bench.hear(make.message(TO_PREFILL), sender=sender)
        pulls += bench.did(Pull)
        if pulls and draw.random() < 0.2:
            bench.take(TicketFinal(pulls.pop().ticket, ok=draw.random() < 0.5))
            pulls += bench.did(Pull)
        if bench.launched is not None and draw.random() < 0.5:
            bench.done(*(50 for _ in bench.plan.draws))
            pulls += bench.did(Pull)


@pytest.mark.parametrize("seed", SEEDS)
def test_decode(seed: int) -> None:
    draw = Random(seed)
    texts = ("t", "t", "u", "x", *map(str, (decode.G, decode.P)))
    make, bench = Maker(draw, texts), decode.Bench()
    pulls: list[Pull] = []
    for n in range(N_MESSAGES):
        if n % 20 == 0:
            local: InstanceId | None = decode.P if draw.random() < 0.8 else None
            bench.hear(
                decode.expect(
                    draw.randrange(1, 30),
                    transfer="tu"[n // 20 % 2],
                    attempt=n // 40,
                    prefill=local,
                )
            )
        sender = draw.choice((decode.G, decode.P))
        bench.hear(make.message(TO_DECODE), sender=sender)
        pulls += bench.did(Pull)
        if pulls and draw.random() < 0.2:
            bench.take(TicketFinal(pulls.pop().ticket, ok=draw.random() < 0.5))
            pulls += bench.did(Pull)
        if bench.launched is not None and draw.random() < 0.5:
            bench.done(*(50 for _ in bench.plan.draws))
            pulls += bench.did(Pull)


@pytest.mark.parametrize("seed", SEEDS)
def test_gateway(seed: int) -> None:
    draw = Random(seed)
    workers = (gateway.P, gateway.P2, gateway.D, gateway.D2)
    bench = gateway.Bench(*workers)
    n_opened = 0
    for n in range(N_MESSAGES):
        if n % 20 == 0:
            n_opened += 1
            bench.submit(gateway.generate(f"r{n}", draw.randrange(1, 30)))
        newest = [f"t{i}" for i in range(max(1, n_opened - 3), n_opened + 1)]
        make = Maker(draw, (*newest, "x", *map(str, workers)))
        bench.hear(make.message(TO_GATEWAY), sender=draw.choice(workers))
        if draw.random() < 0.1:
            bench.tick(draw.uniform(0, 0.5))
