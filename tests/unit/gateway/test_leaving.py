"""Workers that leave in good order: nobody is refused for it, and nobody suspect."""

from msgspec import structs

from common.engine.events import PeerDown
from common.engine.refusal import DRAINING
from common.errors import Overloaded
from launch.gateway.attempts import GatewayOptions
from launch.gateway.events import Rejected
from tests.unit.gateway.builders import Bench, D, refused, run, tokens


def test_who_is_refused_by_a_worker_that_leaves_waits_for_its_next_life() -> None:
    bench = Bench()
    bench.submit()
    for attempt in (1, 2, 3):
        bench.hear(structs.replace(refused(attempt), reason=DRAINING.text))
        assert not bench.did(Rejected)
        bench.tick(0.5)
    bench.take(PeerDown(D, left=True))
    bench.tick(1.0)
    bench.up(D)
    assert not bench.did(Rejected)
    assert bench.expect.attempt == 5


def test_who_is_refused_by_a_worker_that_leaves_does_not_wait_for_ever() -> None:
    bench = Bench()
    bench.submit()
    bench.hear(structs.replace(refused(1), reason=DRAINING.text))
    bench.take(PeerDown(D, left=True))
    bench.tick(GatewayOptions().admission_s + 0.1)
    assert isinstance(bench.error, Overloaded)
    assert bench.error.status == 503


def test_nobody_is_suspect_because_workers_left() -> None:
    bench = Bench()
    bench.admitted()
    bench.hear(tokens(run(0, 50)))
    for attempt in (2, 3, 4, 5):
        bench.take(PeerDown(D, left=True))
        bench.tick(1.0)
        bench.up(D)
        assert (bench.expect.attempt, bench.expect.alone) == (attempt, False)
