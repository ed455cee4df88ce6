"""Messages about transfers that nobody here has: answered or dropped, and never remembered."""

from collections.abc import Callable

import pytest

from bench.simulate.footprint import footprint
from common.ids import TransferId
from common.messages import (
    Accept,
    Accepted,
    Ack,
    AnyMessage,
    End,
    Failed,
    FailureKind,
    Gone,
    Handoff,
    Heartbeat,
    Listed,
    PagesReady,
    Phase,
    Refused,
    Release,
    TokenRun,
    Tokens,
    TokensAck,
)
from tests.unit.decode import builders as decode
from tests.unit.gateway import builders as gateway
from tests.unit.prefill import builders as prefill

FEW, MANY = 2000, 10_000  # a prefill worker keeps the last thousand Accepts: see EARLY_ACCEPTS
Hear = Callable[[AnyMessage], None]


def at_prefill() -> tuple[object, Hear]:
    bench = prefill.Bench()

    def hear(message: AnyMessage) -> None:
        from_gateway = isinstance(message, End | TokensAck)
        bench.hear(message, sender=prefill.G if from_gateway else prefill.D)

    return bench.core, hear


def at_decode() -> tuple[object, Hear]:
    bench = decode.Bench()

    def hear(message: AnyMessage) -> None:
        from_prefill = isinstance(message, PagesReady | Handoff)
        bench.hear(message, sender=decode.P if from_prefill else decode.G)

    return bench.core, hear


def at_gateway() -> tuple[object, Hear]:
    bench = gateway.Bench(gateway.P, gateway.D)

    def hear(message: AnyMessage) -> None:
        bench.hear(message, sender=gateway.D)

    return bench.core, hear


def to_prefill(t: TransferId) -> list[AnyMessage]:
    return [
        Accept(transfer=t, attempt=1, held=()),
        Release(transfer=TransferId(f"{t} too"), attempt=1),
        Gone(transfer=t, attempt=1),
        End(transfer=TransferId(f"{t} too"), attempt=1),
    ]


def to_decode(t: TransferId) -> list[AnyMessage]:
    return [
        PagesReady(transfer=t, attempt=1, first=0, pages=()),
        decode.handoff(0, 1, 2, transfer=t),
        Gone(transfer=t, attempt=1),
        End(transfer=t, attempt=1),
        TokensAck(acks=(Ack(t, 1, 0, 5),)),
    ]


def to_gateway(t: TransferId) -> list[AnyMessage]:
    return [
        Accepted(transfer=t, attempt=1),
        Refused(transfer=t, attempt=1, reason="", retry_after_s=None),
        Failed(transfer=t, attempt=1, kind=FailureKind.TRANSFER, detail=""),
        Gone(transfer=t, attempt=1),
        Tokens(runs=(TokenRun(t, 1, 0, 0, (5,)),)),
        Heartbeat(transfers=(Listed(t, 1, Phase.DECODING),)),
    ]


@pytest.mark.parametrize(
    ("make", "strays"),
    [(at_prefill, to_prefill), (at_decode, to_decode), (at_gateway, to_gateway)],
    ids=["prefill", "decode", "gateway"],
)
def test_strays_are_not_remembered(
    make: Callable[[], tuple[object, Hear]], strays: Callable[[TransferId], list[AnyMessage]]
) -> None:
    core, hear = make()
    sizes: list[dict[str, int]] = []
    for n in range(MANY):
        if n == FEW:
            sizes.append(footprint(core))
        for message in strays(TransferId(f"stray {n}")):
            hear(message)
    assert footprint(core) == sizes[0]
