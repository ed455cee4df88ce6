"""Each step of a handoff between real processes, and what may happen at it: a worker is killed or
stands still, a message is lost, repeated or late, a link is cut. Every answer is exact all the
same, and no page is left held."""

import os
import signal
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import product
from typing import Any

import pytest

from common.ids import Role
from common.messages import (
    Accept,
    Accepted,
    AnyMessage,
    End,
    Expect,
    Handoff,
    Heartbeat,
    PagesReady,
    Prefill,
    Release,
    Tokens,
    TokensAck,
)
from tests.api_client import until
from tests.system.relay import LOST, PASSED, Fate, Letter, Way
from tests.system.relayed import LENGTHS, ROLES, Relayed, Trap

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

G, P, D = Role.GATEWAY, Role.PREFILL, Role.DECODE
TRANSPORTS = ("shm", "tcp")
HOLD_S = 0.6  # two heartbeats: whatever waits so long is taken for lost
CHUNK_PAGES = 4
HARMS = (LOST, Fate(copies=2, again_after_s=HOLD_S), Fate(hold_s=HOLD_S))
HARMED_WITHIN_S = 30.0
LEAVE_S = 0.2
SHORT_STOP_S, LONG_STOP_S = 3.0, 20.0
SILENCE_S = 10.0  # that makes a peer lost
Fits = Callable[[AnyMessage], bool]


def of(kind: type[AnyMessage]) -> Fits:
    return lambda message: isinstance(message, kind)


def announcing(n_pages: int) -> Fits:
    """So many pages or more."""
    return lambda message: isinstance(message, PagesReady) and len(message.pages) >= n_pages


def finishing(message: AnyMessage) -> bool:
    return isinstance(message, Tokens) and any(run.finish is not None for run in message.runs)


def renewing(message: AnyMessage) -> bool:
    """A digest with something in it."""
    return isinstance(message, Heartbeat) and bool(message.transfers)


@dataclass(frozen=True, slots=True)
class Step:
    """Reached when that message passes, or in the moment before."""

    way: Way
    fits: Fits
    fate: Fate = PASSED


STEPS = {
    "expected": Step((G, D), of(Expect)),
    "accepted": Step((D, P), of(Accept)),
    "first chunk announced": Step((P, D), announcing(1), LOST),
    "pulling": Step((P, D), announcing(CHUNK_PAGES + 1)),
    "token 0 sent": Step((P, G), of(Tokens)),
    "handed off": Step((P, D), of(Handoff)),
    "last page pulled": Step((D, P), of(Release), LOST),
    "released": Step((D, P), of(Release)),
}
"""Whoever dies at a step says nothing after it; where it is `LOST`, not even that."""

MESSAGES: dict[str, tuple[Way, Fits]] = {
    "Prefill": ((G, P), of(Prefill)),
    "Expect": ((G, D), of(Expect)),
    "Accepted by prefill": ((P, G), of(Accepted)),
    "Accepted by decode": ((D, G), of(Accepted)),
    "Accept": ((D, P), of(Accept)),
    "first PagesReady": ((P, D), of(PagesReady)),
    "PagesReady": ((P, D), announcing(CHUNK_PAGES + 1)),
    "Tokens of prefill": ((P, G), of(Tokens)),
    "Handoff": ((P, D), of(Handoff)),
    "Release": ((D, P), of(Release)),
    "Tokens of decode": ((D, G), of(Tokens)),
    "last Tokens": ((D, G), finishing),
    "TokensAck": ((G, D), of(TokensAck)),
    "End to prefill": ((G, P), of(End)),
    "End to decode": ((G, D), of(End)),
    "lease renewed": ((D, P), renewing),
    "digest of prefill": ((P, D), renewing),
    "digest of the gateway": ((G, D), renewing),
}
WAYS = tuple(dict.fromkeys(way for way, _ in MESSAGES.values()))


def kills() -> list[Any]:
    """Always: each step once, either side as often, and either transport."""
    cases = [
        (transport, step, side.value)
        for step in STEPS
        for transport in TRANSPORTS
        for side in ROLES
    ]
    always = {n for n in range(len(cases)) if n % 4 == (0, 3, 1, 2)[n // 4 % 4]}
    return [
        pytest.param(*case, marks=() if n in always else pytest.mark.full, id="-".join(case))
        for n, case in enumerate(cases)
    ]


@pytest.mark.parametrize(("relayed", "step", "side"), kills(), indirect=["relayed"])
def test_a_worker_that_is_killed_at_a_step(relayed: Relayed, step: str, side: str) -> None:
    role, at = Role(side), STEPS[step]
    pid, instance = relayed.pid(role), relayed.relay.instance(role)

    def kill(_: Letter) -> Fate:
        os.kill(pid, signal.SIGKILL)
        relayed.relay.silenced.add(instance)
        return at.fate

    trap = Trap(at.way, at.fits, kill)
    with relayed.relay.judging(trap):
        relayed.check(relayed.begin(f"{side} killed, {step}"))
    assert trap.sprung.is_set()
    relayed.meet()
    assert relayed.pid(role) != pid


@pytest.mark.parametrize(
    ("relayed", "side"),
    [
        pytest.param(transport, side, marks=() if n == 1 else pytest.mark.full)
        for n, (transport, side) in enumerate(product(TRANSPORTS, ("decode", "prefill")))
    ],
    indirect=["relayed"],
)
def test_a_worker_that_is_told_to_leave_finishes_its_handoff(relayed: Relayed, side: str) -> None:
    role, at = Role(side), STEPS["pulling"]
    pid, left = relayed.pid(role), relayed.server.log().count("exit_code=0")

    def tell(_: Letter) -> Fate:
        os.kill(pid, signal.SIGTERM)
        return PASSED

    attempts = relayed.n_attempts()
    trap = Trap(at.way, at.fits, tell)
    with relayed.relay.judging(trap):
        relayed.check(relayed.begin(f"{side} told to leave"))
    assert trap.sprung.is_set()
    assert relayed.n_attempts() == attempts + 1
    until(lambda: relayed.server.log().count("exit_code=0") > left, "it has left")
    relayed.meet()
    assert relayed.pid(role) != pid


@pytest.mark.parametrize(
    ("relayed", "step"),
    [
        pytest.param(transport, step, marks=() if n % 2 == at else pytest.mark.full)
        for n, step in enumerate(STEPS)
        for at, transport in enumerate(TRANSPORTS)
    ],
    indirect=["relayed"],
)
def test_a_client_that_leaves_at_a_step(relayed: Relayed, step: str) -> None:
    at = STEPS[step]
    trap = Trap(at.way, at.fits, lambda _: Fate(hold_s=LEAVE_S))
    with relayed.relay.judging(trap):
        connection = relayed.begin_unread(f"left, {step}")
        assert trap.sprung.wait(30)
        connection.close()
        time.sleep(LEAVE_S)
        relayed.settle()


# --- messages that are lost, repeated or late --------------------------------------------------


def harm(relayed: Relayed, messages: Collection[str]) -> None:
    """Of each kind one is lost, one comes twice and later again, and one waits, with all behind it
    on its link."""
    left = {name: deque(HARMS) for name in messages}

    def judge(letter: Letter) -> Fate | None:
        for name, fates in left.items():
            way, fits = MESSAGES[name]
            if fates and letter.way == way and fits(letter.message):
                return fates.popleft()
        return None

    deadline = time.monotonic() + HARMED_WITHIN_S
    with relayed.relay.judging(judge):
        while any(left.values()):
            assert time.monotonic() < deadline, left
            salt = f"{sorted(messages)} {time.monotonic()}"
            asked = [relayed.begin(f"{salt} {n_tokens}", n_tokens) for n_tokens in LENGTHS]
            for one, n_tokens in zip(asked, LENGTHS, strict=True):
                relayed.check(one, n_tokens)
    relayed.settle()


@pytest.mark.parametrize(
    ("relayed", "way"),
    [(TRANSPORTS[n % 2], way) for n, way in enumerate(WAYS)],
    ids=[f"{TRANSPORTS[n % 2]}-{sender}-to-{to}" for n, (sender, to) in enumerate(WAYS)],
    indirect=["relayed"],
)
def test_messages_of_a_link_are_lost_repeated_and_late(relayed: Relayed, way: Way) -> None:
    harm(relayed, [name for name, (of_way, _) in MESSAGES.items() if of_way == way])


@pytest.mark.full
@pytest.mark.parametrize("message", MESSAGES)
def test_a_message_is_lost_repeated_and_late(relayed: Relayed, message: str) -> None:
    harm(relayed, [message])


# --- links that are cut, workers that stand still ----------------------------------------------


@pytest.mark.parametrize("relayed", ["tcp"], indirect=True)
def test_pages_that_do_not_pass_between_two_that_hear_each_other(relayed: Relayed) -> None:
    """The pair is left alone for a while; then pages pass again."""
    before = relayed.total("kv_pull_failures_total", D)
    pages = relayed.relay.pages(P)
    pages.is_cut = True
    relayed.check(relayed.begin("pages are cut off"))
    assert relayed.server.is_ready()
    pages.is_cut = False
    until(lambda: relayed.total("kv_pull_failures_total", D) > before, "counted")
    relayed.meet()


@pytest.mark.full
@pytest.mark.parametrize("relayed", TRANSPORTS, indirect=True)
def test_two_that_do_not_hear_each_other_and_look_healthy(relayed: Relayed) -> None:
    def cut(letter: Letter) -> Fate | None:
        return LOST if letter.way in ((P, D), (D, P)) else None

    relayed.meet()
    with relayed.relay.judging(cut):
        began = time.monotonic()
        relayed.check(relayed.begin("cut off"))
        assert time.monotonic() - began > SILENCE_S / 2  # it was tried
        assert relayed.server.is_ready()
    relayed.meet()


@pytest.mark.parametrize(
    ("relayed", "side", "seconds"),
    [
        ("shm", "prefill", SHORT_STOP_S),
        ("tcp", "decode", SHORT_STOP_S),
        *(
            pytest.param(transport, side.value, LONG_STOP_S, marks=pytest.mark.full)
            for transport in TRANSPORTS
            for side in ROLES
        ),
    ],
    indirect=["relayed"],
)
def test_a_worker_that_stands_still_and_goes_on(
    relayed: Relayed, side: str, seconds: float
) -> None:
    """After a long while the others have taken it for lost, and find out that it was not."""
    role, at = Role(side), STEPS["pulling"]
    pid = relayed.pid(role)

    def stop(_: Letter) -> Fate:
        os.kill(pid, signal.SIGSTOP)
        return PASSED

    trap = Trap(at.way, at.fits, stop)
    with relayed.relay.judging(trap), awake_in_the_end(pid):
        asked = relayed.begin(f"{side} stopped for {seconds}")
        assert trap.sprung.wait(30)
        time.sleep(seconds)
        os.kill(pid, signal.SIGCONT)
        relayed.check(asked)
    relayed.meet()
    assert relayed.pid(role) == pid


@contextmanager
def awake_in_the_end(pid: int) -> Iterator[None]:
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
