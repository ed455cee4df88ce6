"""A turn of the gateway's costs what happens in it, not what is in flight."""

import time

from common.engine.events import Received
from common.messages import Ack, TokensAck
from launch.gateway.attempts import GatewayOptions
from launch.gateway.events import Submit
from tests.unit.gateway.builders import Bench, D, generate, run, tokens

MANY = 1000


def busy() -> Bench:
    bench = Bench(options=GatewayOptions(max_requests=MANY))
    requests = [generate(f"r{n}", max_tokens=100) for n in range(MANY)]
    bench.core.step(0.0, [Submit(request) for request in requests])
    bench.core.step(0.0, [])
    return bench


def test_a_turn_with_a_thousand_in_flight_takes_well_under_a_millisecond() -> None:
    core = busy().core
    seconds: list[float] = []
    for index in range(50):
        events = [Received(D, tokens(*(run(index, 50, transfer=f"t{n}") for n in range(1, 9))))]
        began = time.perf_counter()
        decision = core.step(0.001 * index, events)
        seconds.append(time.perf_counter() - began)
        assert len(decision.actions) >= 8
    assert min(seconds) < 0.0005  # 0.03 ms measured; a look at each transfer is 1 ms


def test_a_thousand_without_workers_are_looked_at_cheaply() -> None:
    bench = Bench(options=GatewayOptions(max_requests=MANY), alone=True)
    bench.core.step(0.0, [Submit(generate(f"r{n}")) for n in range(MANY)])
    seconds: list[float] = []
    for _ in range(50):
        began = time.perf_counter()
        assert bench.core.step(0.5, []).actions == ()
        seconds.append(time.perf_counter() - began)
    assert min(seconds) < 0.001


def test_one_acknowledgement_a_sample_however_many_messages_it_had() -> None:
    bench = busy()
    for index in range(20):
        bench.hear(tokens(run(index, 50)))
    bench.tick(0.1)
    assert bench.said(TokensAck, D) == [TokensAck(acks=(Ack(run(0).transfer, 1, 0, 20),))]
