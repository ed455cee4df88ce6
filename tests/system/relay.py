"""A relay between the control sockets of real processes. It reads every message, and a test tells
it which to lose, repeat, hold back or pass on late, and what is to happen then.

Whoever joins the gateway is reached at an address of the relay's from then on: it writes that into
hellos as they pass. What it sends comes from the routing id of whoever sent it, so that nobody can
tell. Page sockets are `tests.system.page_relay`'s.
"""

import heapq
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec
import zmq
from msgspec.structs import replace

from common.ids import InstanceId, Role
from common.messages import AnyMessage, Hello, Welcome
from tests.system.page_relay import PageFront
from transfer.inbox import Inbox

HIGH_WATER = 20_000  # more than any burst here: the relay is not what loses messages
TAKEN_AT_ONCE = 500
KEPT_LETTERS = 5000
NUMBER_BYTES = 8
Way = tuple[Role | None, Role | None]
Frames = list[bytes]


@dataclass(frozen=True, slots=True)
class Letter:
    """A message on its way, and from whom to whom (None: not known yet)."""

    sender: InstanceId
    way: Way
    message: AnyMessage
    frames: Frames  # addressee, payload and, of most, a number


@dataclass(frozen=True, slots=True, kw_only=True)
class Fate:
    """What becomes of a letter."""

    copies: int = 1  # sent now; 0: it is lost, unless it comes later
    again_after_s: float | None = None  # one more, while others pass
    hold_s: float = 0.0  # it waits, and so does whatever follows on its link


LOST = Fate(copies=0)
PASSED = Fate()
Judge = Callable[[Letter], Fate | None]
"""Called in the relay's thread. None: it is no matter of this judge's."""


@dataclass(slots=True, eq=False)
class _Front:
    """Stands for a process: what comes here goes on to it."""

    socket: "zmq.Socket[bytes]"
    endpoint: str  # of the relay's
    real: str  # where the process listens
    role: Role | None = None


@dataclass(slots=True, eq=False)
class _Link:
    """From one sender to one front's process."""

    socket: "zmq.Socket[bytes]"
    held_until: float = 0.0
    waiting: deque[Frames] = field(default_factory=deque[Frames])
    last: int = 0  # number
    n_own: int = 0  # numbers that are the relay's own messages'

    def numbered(self, frames: Frames) -> Frames:
        """Numbers ascend, whatever was put between those of the sender."""
        if len(frames) < 3:
            return frames
        self.last = int.from_bytes(frames[2], "big") + self.n_own
        return [*frames[:2], self.last.to_bytes(len(frames[2]), "big")]

    def own(self, frames: Frames) -> Frames:
        """With the number that is next."""
        self.n_own, self.last = self.n_own + 1, self.last + 1
        return [*frames, self.last.to_bytes(NUMBER_BYTES, "big")]


class Relay:
    """Owned by its thread, but for what says otherwise."""

    def __init__(self, gateway: Path) -> None:
        """`gateway`: its socket file. It must listen there, and nobody must have joined yet."""
        self.letters: deque[Letter] = deque(maxlen=KEPT_LETTERS)  # passed or not; any thread reads
        self.judges: tuple[Judge, ...] = ()  # asked in turn; any thread sets
        self.silenced: set[InstanceId] = set()  # whose letters are lost; any thread adds
        self.hellos: dict[Role, Hello] = {}  # the last of each role, as it was sent
        self.error: Exception | None = None
        self._decoder: msgspec.msgpack.Decoder[AnyMessage] = msgspec.msgpack.Decoder(AnyMessage)
        self._context = zmq.Context(io_threads=1)
        self._inbox = Inbox[Callable[[], None]]()
        self._poller = zmq.Poller()
        self._handlers: dict[object, Callable[[], None]] = {}
        self._roles: dict[InstanceId, Role] = {}
        self._fronts: dict[InstanceId, _Front] = {}
        self._pages: dict[InstanceId, PageFront] = {}
        self._links: dict[tuple[InstanceId, str], _Link] = {}
        self._later: list[tuple[float, int, _Link, Frames]] = []
        self._numbers = count()
        hidden = gateway.with_suffix(".real")
        gateway.rename(hidden)
        self._gateway = self._open(f"ipc://{gateway}", real=f"ipc://{hidden}")
        self._gateway.role = Role.GATEWAY
        self._thread = threading.Thread(target=self._run, name="relay")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._inbox.ask_to_end()
        self._thread.join()
        if kind is None and self.error is not None:
            raise self.error

    # --- for tests ---------------------------------------------------------------------------

    @contextmanager
    def judging(self, *judges: Judge) -> Iterator[None]:
        """For as long as it lasts these are asked first."""
        before = self.judges
        self.judges = (*judges, *before)
        try:
            yield
        finally:
            self.judges = before

    def instance(self, role: Role) -> InstanceId:
        return self.hellos[role].peer.instance

    def endpoints(self, role: Role) -> tuple[str, ...]:
        """Where the process itself listens: past the relay."""
        if role is Role.GATEWAY:
            real = self.hellos[role].peer.endpoints[1:]
            return (self._gateway.real, *real)
        return self.hellos[role].peer.endpoints

    def pages(self, role: Role) -> PageFront:
        """What stands before that worker's page server."""
        return self._pages[self.instance(role)]

    def inject(self, sender: Role, receiver: Role, *many: Sequence[bytes]) -> None:
        """Send frames, whatever they are, on the link that is there between the two."""
        link = self._link_between(sender, receiver)

        def send() -> None:
            for frames in many:
                self._send(link, list(frames))

        self._inbox.put(send)

    def say(self, sender: Role, receiver: Role, *messages: AnyMessage) -> None:
        """Send messages, as the sender would have."""
        link, me = self._link_between(sender, receiver), self.instance(receiver).encode()

        def send() -> None:
            for message in messages:
                self._send(link, link.own([me, msgspec.msgpack.encode(message)]))

        self._inbox.put(send)

    def _link_between(self, sender: Role, receiver: Role) -> _Link:
        return self._links[self.instance(sender), self._front_of(receiver).endpoint]

    def _front_of(self, role: Role) -> _Front:
        return self._gateway if role is Role.GATEWAY else self._fronts[self.instance(role)]

    # --- the thread --------------------------------------------------------------------------

    def _run(self) -> None:
        self._poller.register(self._inbox.fileno(), zmq.POLLIN)
        try:
            while not self._inbox.closing:
                for socket, _ in self._poller.poll(self._timeout_ms()):
                    handler = self._handlers.get(socket)
                    if handler is not None:
                        handler()
                for command in self._inbox.drain():
                    command()
                self._release(time.monotonic())
        except Exception as error:  # noqa: BLE001  the test that ends raises it
            self.error = error
        finally:
            self._close()

    def _timeout_ms(self) -> int | None:
        due = [link.held_until for link in self._links.values() if link.waiting]
        due += [at for at, *_ in self._later[:1]]
        return int(max(0.0, min(due) - time.monotonic()) * 1000) + 1 if due else None

    def _release(self, now: float) -> None:
        for link in self._links.values():
            while link.waiting and now >= link.held_until:
                self._put(link, link.waiting.popleft())
        while self._later and now >= self._later[0][0]:
            _, _, link, frames = heapq.heappop(self._later)
            self._put(link, frames)

    def _close(self) -> None:
        sockets = [front.socket for front in (self._gateway, *self._fronts.values())]
        sockets += [link.socket for link in self._links.values()]
        for socket in sockets:
            socket.close(linger=0)
        for front in self._pages.values():
            front.close()
        self._inbox.close()
        self._context.term()

    def _open(self, address: str, *, real: str) -> _Front:
        socket = self._context.socket(zmq.ROUTER)
        socket.set(zmq.RCVHWM, HIGH_WATER)
        socket.set(zmq.ROUTER_HANDOVER, 1)
        socket.bind(address)
        front = _Front(socket, socket.getsockopt_string(zmq.LAST_ENDPOINT), real)
        self._attend(socket, lambda: self._take(front))
        return front

    def _attend(self, socket: "zmq.Socket[bytes]", handler: Callable[[], None]) -> None:
        self._poller.register(socket, zmq.POLLIN)
        self._handlers[socket] = handler

    # --- letters -----------------------------------------------------------------------------

    def _take(self, front: _Front) -> None:
        for _ in range(TAKEN_AT_ONCE):
            try:
                sender, *frames = front.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            if 2 <= len(frames) <= 3:
                self._pass_on(InstanceId(sender.decode()), front, frames)

    def _pass_on(self, sender: InstanceId, front: _Front, frames: Frames) -> None:
        if sender in self.silenced:
            return
        message = self._decoder.decode(frames[1])
        if isinstance(message, Hello):
            frames[1] = msgspec.msgpack.encode(self._fronted(message))
        elif isinstance(message, Welcome):
            fronted = Welcome(hello=self._fronted(message.hello))
            frames[1] = msgspec.msgpack.encode(fronted)
        link = self._link(sender, front)
        way = (self._roles.get(sender), front.role)
        letter = Letter(sender, way, message, link.numbered(frames))
        self.letters.append(letter)
        self._dispatch(letter, link)

    def _dispatch(self, letter: Letter, link: _Link) -> None:
        fates = (judge(letter) for judge in self.judges)
        fate = next((fate for fate in fates if fate is not None), PASSED)
        now = time.monotonic()
        if fate.hold_s:
            link.held_until = max(link.held_until, now + fate.hold_s)
        for _ in range(fate.copies):
            self._send(link, letter.frames)
        if fate.again_after_s is not None:
            due = (now + fate.again_after_s, next(self._numbers), link, letter.frames)
            heapq.heappush(self._later, due)

    def _send(self, link: _Link, frames: Frames) -> None:
        if link.waiting or time.monotonic() < link.held_until:
            link.waiting.append(frames)
        else:
            self._put(link, frames)

    def _put(self, link: _Link, frames: Frames) -> None:
        with suppress(zmq.Again):  # its reader is dead
            link.socket.send_multipart(frames, zmq.NOBLOCK)

    def _link(self, sender: InstanceId, front: _Front) -> _Link:
        key = (sender, front.endpoint)
        link = self._links.get(key)
        if link is None:
            socket = self._context.socket(zmq.DEALER)
            socket.set(zmq.ROUTING_ID, sender.encode())
            socket.set(zmq.SNDHWM, HIGH_WATER)
            socket.set(zmq.RECONNECT_IVL, 20)
            socket.connect(front.real)
            link = self._links[key] = _Link(socket)
        return link

    # --- who is there ------------------------------------------------------------------------

    def _fronted(self, hello: Hello) -> Hello:
        """As those are to see it that are to reach its sender through the relay."""
        peer = hello.peer
        self.hellos[peer.role] = hello
        self._roles[peer.instance] = peer.role
        if peer.role is Role.GATEWAY:
            return replace(hello, peer=replace(peer, endpoints=(self._gateway.endpoint,)))
        front = self._fronts.get(peer.instance)
        if front is None:
            front = self._open("tcp://127.0.0.1:*", real=peer.endpoints[0])
            front.role = peer.role
            self._fronts[peer.instance] = front
        pool = hello.pool
        if pool is not None and "tcp" in pool.doors:
            doors = {**pool.doors, "tcp": self._door(peer.instance, pool.doors["tcp"])}
            pool = replace(pool, doors=doors)
        return replace(hello, peer=replace(peer, endpoints=(front.endpoint,)), pool=pool)

    def _door(self, instance: InstanceId, real: str) -> str:
        front = self._pages.get(instance)
        if front is None:
            front = self._pages[instance] = PageFront(self._context, real, self._attend)
        return front.door
