"""The handshake and liveness, over real sockets; time is what the test says it is."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from common.curve import made_from
from common.engine.events import Event, PeerBarred, PeerDown, PeerUp, Received
from common.engine.links import PEER_LOST_AFTER_S, Links
from common.errors import PeerRefused
from common.ids import HostId, InstanceId, Role, TransferId
from common.messages import (
    End,
    Heartbeat,
    Hello,
    ModelIdentity,
    PeerLost,
)
from common.wire import Mailbox
from tests.unit.engine.hellos import MODEL, hello

END = End(transfer=TransferId("t"), attempt=0)
BEAT = Heartbeat(transfers=())


class Side:
    """One process: its links, what they told, and a clock that the test may push."""

    def __init__(self, name: str, role: Role, run_dir: Path, model: ModelIdentity = MODEL) -> None:
        self.id = InstanceId(name * 32)
        self.mailbox = Mailbox(self.id, role, run_dir=run_dir, listen="127.0.0.1:0")
        self.hello: Hello = hello(name, role, self.mailbox.endpoints, model)
        self.links = Links(self.mailbox, self.hello)
        self.events: list[Event] = []
        self.ahead_s = 0.0

    @property
    def now(self) -> float:
        return time.monotonic() + self.ahead_s

    def dial(self, other: "Side") -> None:
        self.links.dial(other.hello.peer, self.now)

    def turn(self) -> None:
        self.events += self.links.hear(self.now)

    def told(self, event: Event) -> Callable[[], bool]:
        return lambda: event in self.events

    def wait_s(self) -> float:
        """Until its loop wants to be called."""
        now = self.now
        return self.links.wake_at(now) - now


Start = Callable[..., Side]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    sides: list[Side] = []

    def start_side(name: str, role: Role = Role.DECODE, model: ModelIdentity = MODEL) -> Side:
        sides.append(Side(name, role, tmp_path / "r", model))
        return sides[-1]

    yield start_side
    for side in sides:
        side.mailbox.close()


def run(*sides: Side, until: Callable[[], bool], within_s: float = 10.0) -> None:
    deadline = time.monotonic() + within_s
    while not until():
        assert time.monotonic() < deadline, [side.events for side in sides]
        for side in sides:
            side.turn()
        time.sleep(0.001)


def up(a: Side, b: Side) -> None:
    """a knocks at b, and both know it."""
    a.dial(b)
    run(a, b, until=lambda: PeerUp(b.hello) in a.events and PeerUp(a.hello) in b.events)
    a.events.clear()
    b.events.clear()


def test_a_knock_makes_both_sides_up_and_messages_flow(start: Start) -> None:
    d, p = start("d"), start("p", Role.PREFILL)
    up(d, p)
    assert d.links.send(p.id, END, d.now)
    assert p.links.send(d.id, BEAT, p.now)  # the one that was called can speak at once, too
    run(d, p, until=lambda: bool(p.events) and bool(d.events))
    assert p.events == [Received(d.id, END)]
    assert d.events == [Received(p.id, BEAT)]
    assert p.links.hello_of(d.id) == d.hello
    assert p.links.gateways == []


def test_both_may_knock_at_once(start: Start) -> None:
    d, p = start("d"), start("p", Role.PREFILL)
    p.dial(d)
    up(d, p)
    run(d, p, until=lambda: d.wait_s() > 0.4 and p.wait_s() > 0.4)  # nothing is left to be said
    assert d.events == p.events == []
    d.dial(p)
    assert d.links.hear(d.now) == []  # it is up: no news


def test_nothing_goes_before_the_hello(start: Start) -> None:
    d, p = start("d"), start("p", Role.PREFILL)
    assert not d.links.send(p.id, END, d.now)
    d.dial(p)
    assert not d.links.send(p.id, END, d.now)


def test_a_stranger_is_not_listened_to(start: Start) -> None:
    d, p = start("d"), start("p", Role.PREFILL)
    d.mailbox.connect(p.id, p.mailbox.endpoints[0])
    run(d, p, until=lambda: d.mailbox.send(p.id, END))
    run(d, p, until=lambda: p.mailbox.counts["dropped_from_stranger"] == 1)
    assert p.events == []


def test_a_worker_joins_a_gateway_by_address_and_again_after_it_restarted(start: Start) -> None:
    g, d = start("g", Role.GATEWAY), start("d")
    address = g.mailbox.endpoints[1]
    d.links.join(address, d.now)
    run(g, d, until=lambda: PeerUp(g.hello) in d.events and PeerUp(d.hello) in g.events)
    assert d.links.gateways == [g.id]
    assert g.links.expected == MODEL
    g.mailbox.close()
    later = Side("h", Role.GATEWAY, Path(g.mailbox.endpoints[0][6:]).parent)
    later.mailbox.close()
    later.mailbox = Mailbox(later.id, Role.GATEWAY, listen=address.removeprefix("tcp://"))
    later.links = Links(later.mailbox, later.hello)
    d.ahead_s += PEER_LOST_AFTER_S / 2
    d.turn()  # a pause of ours: nobody is judged
    for _ in range(12):
        d.ahead_s += 0.9
        d.turn()
    assert d.events[-1] == PeerDown(g.id)
    run(later, d, until=d.told(PeerUp(later.hello)))
    later.mailbox.close()


@pytest.mark.parametrize(
    ("field", "theirs", "said", "flags"),
    [
        ("name", "other", "model differs: ours is {m}, theirs is {other}", "--model"),
        ("fingerprint", "e", "model fingerprint differs: ours is {f}, theirs is {e}", "--model"),
        (
            *("kv_dtype", "float32"),
            *("kv_dtype differs: ours is {bfloat16}, theirs is {float32}", "--dtype"),
        ),
        (
            *("page_layout", "x32x"),
            *("page_layout differs: ours is {x16x}, theirs is {x32x}", "--block-size"),
        ),
    ],
)
def test_a_refusal_names_the_field_both_values_and_the_flags(
    start: Start, field: str, theirs: str, said: str, flags: str
) -> None:
    p = start("p", Role.PREFILL)
    d = start("d", model=msgspec.structs.replace(MODEL, **{field: theirs}))
    d.dial(p)
    run(d, p, until=lambda: bool(d.events) and bool(p.events))
    ours, other = (part.partition("}")[0] for part in said.split("{")[1:])
    for of, peer, one, two in ((p, d, ours, other), (d, p, other, ours)):
        (barred,) = of.events
        assert isinstance(barred, PeerBarred)
        assert barred.instance == peer.id
        what = said.partition(":")[0]
        assert barred.detail.startswith(f"refused: {what}: ours is {one}, theirs is {two} (set by")
        assert flags in barred.detail
    d.events.clear()
    d.dial(p)
    d.turn()
    assert len(d.events) == 1  # asked again, it says again
    assert not d.links.send(p.id, END, d.now)


def test_a_gateway_that_refuses_a_worker_ends_it(start: Start) -> None:
    g = start("g", Role.GATEWAY)
    g.links.reference = ModelIdentity(
        name="m", fingerprint="other", kv_dtype="", page_layout="", kernel_path=""
    )
    d = start("d")
    d.links.join(g.mailbox.endpoints[0], d.now)
    with pytest.raises(PeerRefused, match="fingerprint differs: ours is f, theirs is other"):
        run(g, d, until=lambda: False)
    assert [type(event) for event in g.events] == [PeerBarred]


def test_workers_that_are_there_complete_what_the_gateway_left_open(start: Start) -> None:
    g, d = start("g", Role.GATEWAY), start("d")
    g.links.reference = said = msgspec.structs.replace(MODEL, kv_dtype="", page_layout="")
    up(d, g)
    assert g.links.expected == MODEL
    d.links.leave()
    run(g, until=g.told(PeerDown(d.id)))
    assert [event.left for event in g.events if isinstance(event, PeerDown)] == [True]
    assert g.links.expected == said


def test_who_has_left_bars_nobody(start: Start) -> None:
    wide = msgspec.structs.replace(MODEL, page_layout="x32x")
    g, first = start("g", Role.GATEWAY), start("d", model=wide)
    first.dial(g)
    run(g, first, until=g.told(PeerUp(first.hello)))
    late = start("e")
    late.dial(g)
    run(g, first, late, until=lambda: any(isinstance(e, PeerBarred) for e in late.events))
    (why,) = g.links.refusals(Role.DECODE)
    assert why == (
        "eeeeeeee was refused: page_layout differs: ours is x32x, theirs is x16x "
        "(set by --block-size, --dtype and --model)"
    )
    assert g.links.refusals(Role.PREFILL) == ()
    first.links.leave()
    run(g, until=g.told(PeerDown(first.id)))
    next_one = start("f")
    next_one.dial(g)
    run(g, next_one, until=g.told(PeerUp(next_one.hello)))
    assert g.links.expected == MODEL
    assert g.links.refusals(Role.DECODE) == ()  # the pool has one that is right


def test_what_the_gateway_says_itself_outlives_its_workers(start: Start) -> None:
    g, d = start("g", Role.GATEWAY), start("d")
    g.links.reference = msgspec.structs.replace(MODEL, page_layout="x32x")
    d.dial(g)
    run(g, d, until=lambda: any(isinstance(event, PeerBarred) for event in d.events))
    assert g.links.expected == g.links.reference


def test_an_address_where_nobody_answers_may_be_the_wrong_one(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    d = start("d")
    d.links.join("tcp://127.0.0.1:9", d.now)
    for _ in range(13):
        d.turn()
        d.ahead_s += 0.9
    (told,) = [r.getMessage() for r in caplog.records if "no_answer" in r.getMessage()]
    assert "address=tcp://127.0.0.1:9" in told
    assert "if that is the HTTP port" in told
    assert "--control-port" in told


def test_a_goodbye_and_a_loss_told_by_a_gateway_are_down(start: Start) -> None:
    g, d, p = start("g", Role.GATEWAY), start("d"), start("p", Role.PREFILL)
    up(d, p)
    up(d, g)
    p.links.leave()
    run(d, p, until=d.told(PeerDown(p.id)))
    assert not d.links.send(p.id, END, d.now)
    other = InstanceId("x" * 32)
    assert g.links.send(d.id, PeerLost(instance=other), g.now)
    run(g, d, until=d.told(PeerDown(other)))
    d.dial(p)
    run(d, p, until=d.told(PeerUp(p.hello)))
    d.events.clear()
    assert p.mailbox.send(d.id, PeerLost(instance=g.id))  # not a prefill worker's to say
    assert p.mailbox.send(d.id, END)
    run(d, p, until=lambda: bool(d.events))
    assert d.events == [Received(p.id, END)]


def test_silence_is_down_and_a_wrong_judgement_is_undone(start: Start) -> None:
    d, p = start("d"), start("p", Role.PREFILL)
    up(d, p)
    for _ in range(int(PEER_LOST_AFTER_S) + 2):
        d.ahead_s += 0.95
        d.turn()
    assert d.events == [PeerDown(p.id)]
    assert not any(event.left for event in d.events if isinstance(event, PeerDown))
    d.events.clear()
    assert p.links.send(d.id, BEAT, p.now)  # it was alive, and takes d for up
    run(d, p, until=d.told(PeerUp(p.hello)))
    assert d.links.send(p.id, END, d.now)
    run(d, p, until=p.told(Received(d.id, END)))


def test_a_gateways_wrong_judgement_is_undone(start: Start) -> None:
    g, d, p = start("g", Role.GATEWAY), start("d"), start("p", Role.PREFILL)
    up(d, p)
    up(p, g)
    assert g.links.send(p.id, PeerLost(instance=d.id), g.now)
    run(g, p, until=p.told(PeerDown(d.id)))
    p.events.clear()
    assert d.links.send(p.id, BEAT, d.now)  # it was alive, and takes p for up
    run(d, p, until=p.told(PeerUp(d.hello)))


def test_who_joins_with_another_key_is_told_at_once_and_now_and_then(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    def told() -> int:
        return sum("event=gateway_unreachable" in text for text in caplog.messages)

    key = made_from(b"the server's")
    gateway = Mailbox(InstanceId("9" * 32), Role.GATEWAY, listen="127.0.0.1:0", curve=key)
    d = start("d")
    d.links.join(gateway.endpoints[0], d.now)
    run(d, until=lambda: told() == 1)
    began = d.now
    run(d, until=lambda: d.now > began + 0.3)
    assert told() == 1
    d.ahead_s += 10.1
    run(d, until=lambda: told() == 2)  # though ZeroMQ has given it up
    gateway.close()


def test_heartbeats_keep_a_peer_up(start: Start) -> None:
    d, p = start("d"), start("p", Role.PREFILL)
    up(d, p)
    for _ in range(int(PEER_LOST_AFTER_S) + 3):
        d.ahead_s += 0.9
        assert p.links.send(d.id, BEAT, p.now)
        d.events.clear()
        run(d, until=lambda: bool(d.events))
    assert d.events == [Received(p.id, BEAT)]


def test_after_a_pause_of_ours_nobody_is_judged(start: Start) -> None:
    d, p = start("d"), start("p", Role.PREFILL)
    up(d, p)
    d.ahead_s += 3600
    d.turn()
    d.ahead_s += 0.9
    d.turn()
    assert d.events == []


def test_who_never_answers_is_down(start: Start) -> None:
    d = start("d")
    nobody = hello("x", Role.PREFILL, ("tcp://127.0.0.1:9",)).peer
    d.links.dial(nobody, d.now)
    for _ in range(13):
        d.turn()
        d.ahead_s += 0.9
    assert d.events == [PeerDown(nobody.instance)]
    d.events.clear()
    d.links.dial(hello("y", Role.PREFILL, ("nonsense",)).peer, d.now)
    assert d.wait_s() <= 0
    d.turn()
    assert d.events == [PeerDown(InstanceId("y" * 32))]


def test_a_socket_file_of_another_host_is_passed_over(start: Start) -> None:
    d, p = start("d"), start("p", Role.PREFILL)
    far = msgspec.structs.replace(p.hello.peer, host=HostId("there"))
    d.links.dial(far, d.now)
    run(d, p, until=d.told(PeerUp(p.hello)))
    near_only = msgspec.structs.replace(
        far, instance=InstanceId("z" * 32), endpoints=far.endpoints[:1]
    )
    d.links.dial(near_only, d.now)
    d.turn()
    assert d.events[-1] == PeerDown(near_only.instance)


def test_a_hello_in_anothers_name_is_dropped(start: Start) -> None:
    d, p = start("d"), start("p", Role.PREFILL)
    d.mailbox.connect(p.id, p.mailbox.endpoints[0])
    forged = hello("x", Role.DECODE, d.mailbox.endpoints)
    run(d, p, until=lambda: d.mailbox.send(p.id, forged))
    run(d, p, until=lambda: p.mailbox.counts["dropped_malformed"] == 1)
    assert p.events == []
