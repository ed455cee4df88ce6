"""Every socket of real processes, and whatever may come to it. What is no message is counted and
dropped; what is one arrives, however many there are; answers in flight are exact meanwhile."""

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import permutations
from pathlib import Path
from random import Random
from typing import Any

import pytest

from common.engine.events import Received
from common.ids import InstanceId, PageId, Role, TransferId
from common.messages import (
    End,
    Gone,
    Goodbye,
    Heartbeat,
    Hello,
    HelloRefused,
    Listed,
    PageRef,
    Phase,
    Welcome,
)
from common.wire import MAX_MESSAGE_BYTES
from tests.api_client import metrics, until
from tests.system.relay import LOST, Fate, Letter
from tests.system.relayed import LENGTHS, ROLES, Relayed
from tests.system.strangers import dealer, knock, rubbish, shout, speak
from tests.system.workers import Gateway
from transfer.backends.tcp_messages import MAX_HEADER_BYTES, PagesWanted, encoder

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

N_FRAMES = 200  # to one socket
N_BURST = 5000  # ZeroMQ's own high-water mark is 1,000
MEETING = (Hello, Welcome, HelloRefused, Goodbye)  # links' alone; the rest is the cores'
DROPPED = "control_messages_dropped_total"
BAD_PAGES = "kv_bad_frames_total"
COUNTED = [(DROPPED, role) for role in Role] + [(BAD_PAGES, role) for role in ROLES]
TOLD_S = 1.1  # counters are told once a second


def on(always: str) -> list[Any]:
    """Over that transport; over the other where there is time."""
    return [
        pytest.param(name, marks=() if name == always else pytest.mark.full)
        for name in ("shm", "tcp")
    ]


@contextmanager
def counted(relayed: Relayed) -> Iterator[Counter[tuple[str, Role]]]:
    """In the end each counter is higher by what is said of it, the others as high as before."""
    time.sleep(TOLD_S)
    before = told(relayed)
    more: Counter[tuple[str, Role]] = Counter()
    yield more
    expected = {counter: n + more[counter] for counter, n in before.items()}

    def are_counted() -> bool:
        now = told(relayed)
        return all(now[counter] >= n for counter, n in expected.items())

    until(are_counted, f"{more} are counted")
    assert told(relayed) == expected


def told(relayed: Relayed) -> dict[tuple[str, Role], float]:
    now = metrics(relayed.server.url)
    return {(name, role): now.total(name, role) for name, role in COUNTED}


def valid(relayed: Relayed, role: Role) -> list[bytes]:
    """Payloads that this role was sent lately."""
    payloads = [
        letter.frames[1]
        for letter in list(relayed.relay.letters)
        if letter.way[1] is role and not isinstance(letter.message, MEETING)
    ]
    assert payloads
    return payloads


def test_strangers_at_every_socket(relayed: Relayed) -> None:
    noise = Random(0)
    for role in Role:  # some of it looks like frames: it cannot be told how many are counted
        for endpoint in relayed.relay.endpoints(role):
            for _ in range(5):
                shout(endpoint, noise.randbytes(2000))
    with counted(relayed) as more, relayed.busy("strangers"):
        for role in Role:
            more[DROPPED, role] = at_control(relayed, role)
        for role in ROLES:
            more[BAD_PAGES, role] = at_pages(relayed, role)
    relayed.settle()


def at_control(relayed: Relayed, role: Role) -> int:
    """Returns how many are to be counted."""
    draw, n = Random(role), 0
    me, payloads = relayed.relay.instance(role).encode(), valid(relayed, role)
    for endpoint in relayed.relay.endpoints(role):
        n += speak(endpoint, b"stranger", rubbish(draw, me, payloads, N_FRAMES))
        parroted = enumerate(payloads[-N_FRAMES:])
        n += speak(endpoint, b"parrot", [[me, one, at.to_bytes(8, "big")] for at, one in parroted])
    giant = bytes(MAX_MESSAGE_BYTES + 1)
    speak(relayed.relay.endpoints(role)[-1], b"giant", [[me, giant]])  # is cut off
    return n


@pytest.mark.parametrize("relayed", on("shm"), indirect=True)
def test_rubbish_between_what_is_sent_well(relayed: Relayed) -> None:
    """On the very links that carry the requests, in the name of their senders."""
    draw = Random(1)
    with counted(relayed) as more, relayed.busy("rubbish"):
        for sender, receiver in permutations(Role, 2):
            me, payloads = relayed.relay.instance(receiver).encode(), valid(relayed, receiver)
            frames = [*rubbish(draw, me, payloads, N_FRAMES), *sent(relayed, sender, receiver)]
            relayed.relay.inject(sender, receiver, *frames)
            more[DROPPED, receiver] += len(frames)
    relayed.settle()


def sent(relayed: Relayed, sender: Role, receiver: Role) -> list[list[bytes]]:
    """Numbered messages that have passed between the two lately."""
    relay = relayed.relay
    instance, me = relay.instance(sender), relay.instance(receiver).encode()
    letters = [one for one in list(relay.letters) if one.sender == instance]
    frames = [one.frames for one in letters if one.frames[0] == me and len(one.frames) == 3]
    assert frames
    return frames[-N_FRAMES:]


@pytest.mark.parametrize("relayed", on("shm"), indirect=True)
@pytest.mark.parametrize("seed", [1, *(pytest.param(n, marks=pytest.mark.full) for n in (2, 3, 4))])
def test_messages_that_overtake_each_other_and_come_again(relayed: Relayed, seed: int) -> None:
    """What comes late or twice is dropped, and what was dropped is said again."""
    draw = Random(seed)
    n_harmed = 0

    def shuffle(_letter: Letter) -> Fate | None:
        nonlocal n_harmed
        chance = draw.random()
        if chance > 0.4:
            return None
        n_harmed += 1
        if chance > 0.15:
            return Fate(copies=0, again_after_s=draw.uniform(0, 0.05))
        return Fate(again_after_s=draw.uniform(0, 1.0)) if chance > 0.02 else LOST

    dropped = sum(relayed.total(DROPPED, role) for role in Role)
    with relayed.relay.judging(shuffle):
        asked = [(n, relayed.begin(f"shuffled {seed} {n}", n)) for n in LENGTHS]
        for n_tokens, one in asked:
            relayed.check(one, n_tokens)
    relayed.settle()
    assert n_harmed > 20
    until(lambda: sum(relayed.total(DROPPED, role) for role in Role) > dropped, "some are counted")


@pytest.mark.parametrize("relayed", on("tcp"), indirect=True)
def test_giants_cut_links_and_lose_no_request(relayed: Relayed) -> None:
    giant = bytes(MAX_MESSAGE_BYTES + 1)
    with relayed.busy("giants"):
        for sender, receiver in permutations(Role, 2):
            me = relayed.relay.instance(receiver).encode()
            relayed.relay.inject(sender, receiver, [me, giant])
            time.sleep(0.1)
    relayed.settle()


# --- bursts ------------------------------------------------------------------------------------


def names() -> list[TransferId]:
    return [TransferId(f"burst {n}") for n in range(N_BURST)]


def beat(name: TransferId) -> Heartbeat:
    """Whoever hears it has never heard of that transfer, and says so."""
    return Heartbeat(transfers=(Listed(name, 0, Phase.WAITING),))


@pytest.mark.parametrize("relayed", on("tcp"), indirect=True)
def test_a_burst_at_a_worker_arrives_whole_and_so_do_the_answers(
    relayed: Relayed, tmp_path: Path
) -> None:
    """From another gateway, which both workers serve as well."""
    with ExitStack() as stack:
        other = Gateway(tmp_path / "r")
        stack.callback(other.mailbox.close, linger_ms=200)
        stack.callback(other.links.leave)
        for role in ROLES:
            other.links.dial(relayed.relay.hellos[role].peer, time.monotonic())
        other.until(lambda: len(other.workers) == len(ROLES))
        stack.enter_context(relayed.busy("bursts"))
        for role in ROLES:
            for name in names():
                other.send(role, beat(name))
            assert gone(other, relayed.relay.instance(role)) == names()
    relayed.settle()


def gone(other: Gateway, sender: InstanceId) -> list[TransferId]:
    """In the order in which they are told."""
    told: list[TransferId] = []
    deadline = time.monotonic() + 60
    while len(told) < N_BURST and time.monotonic() < deadline:
        for event in other.links.hear(time.monotonic()):
            if isinstance(event, Received) and isinstance(event.message, Gone):
                assert event.sender == sender
                told.append(event.message.transfer)
        time.sleep(0.001)
    return told


@pytest.mark.parametrize("relayed", on("shm"), indirect=True)
def test_a_burst_at_the_gateway_arrives_whole_and_so_do_the_answers(relayed: Relayed) -> None:
    """From a worker, on the link that carries its tokens."""
    told: list[TransferId] = []

    def collect(letter: Letter) -> Fate | None:
        message = letter.message
        if not (isinstance(message, End) and message.transfer.startswith("burst")):
            return None
        told.append(message.transfer)
        return LOST

    beats = map(beat, names())
    with relayed.busy("burst"), relayed.relay.judging(collect):
        relayed.relay.say(Role.PREFILL, Role.GATEWAY, *beats)
        until(lambda: len(told) == N_BURST, "each is answered", within_s=60)
    assert told == names()
    relayed.settle()


# --- where pages are fetched -------------------------------------------------------------------


def at_pages(relayed: Relayed, role: Role) -> int:
    """Returns how many are to be counted."""
    draw, pool = Random(role), relayed.relay.hellos[role].pool
    assert pool is not None
    if "shm" in pool.doors:
        return knocks(draw, pool.doors["shm"])
    return asks(draw, pool.doors["tcp"], pool.owner)


def knocks(draw: Random, door: str) -> int:
    return knock(door, (draw.randbytes(draw.randrange(1, 4000)) for _ in range(N_FRAMES)))


def asks(draw: Random, door: str, owner: InstanceId) -> int:
    """Frames that are none, and well-formed ones: the same again and again, out of order, for
    pages that are not there."""
    wanted = [
        PagesWanted(
            protocol=1,
            request=draw.randrange(10),
            owner=owner,
            region=draw.randrange(2),
            pages=(PageRef(PageId(draw.randrange(10_000)), draw.randrange(2**40)),),
        )
        for _ in range(20)
    ]
    whole = [encoder.encode(one) for one in wanted]
    bad = [draw.randbytes(draw.randrange(300)) for _ in range(N_FRAMES // 2)]
    bad += [frame[: draw.randrange(len(frame))] for frame in whole]
    with dealer(door, b"stranger") as talker:
        for frame in bad:
            talker.send(frame)
        talker.send_multipart([b"two", b"parts"])
        for frame in whole * 3:
            talker.send(frame)
            assert talker.poll(10_000)
            talker.recv_multipart()
    speak(door, b"giant", [[bytes(MAX_HEADER_BYTES + 1)]])  # is cut off
    return len(bad) + 1
