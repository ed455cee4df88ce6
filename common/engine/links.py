"""Who is there: the hello handshake and liveness over a mailbox.

The side that wants a peer repeats `Hello` until it is answered: by `Welcome`, where the two agree
on all that must be equal, or by `HelloRefused`, which names a field and both values. A peer is up
from then on until it says `Goodbye`, a gateway says that it is lost, or it is silent for too long;
each side judges for itself. Must not block, read a clock, or know what a transfer is.
"""

import logging
from collections import OrderedDict
from dataclasses import dataclass

from common.engine.events import Event, PeerBarred, PeerDown, PeerUp, Received
from common.engine.identity import completed, difference
from common.errors import PeerRefused
from common.ids import InstanceId, Role
from common.log import line
from common.messages import (
    AnyMessage,
    Goodbye,
    Hello,
    HelloRefused,
    ModelIdentity,
    Peer,
    PeerLost,
    Welcome,
)
from common.wire import ANYONE, RECEIVE_BATCH, Mailbox

PEER_LOST_AFTER_S = 10.0  # of silence; everyone heartbeats once a second or more often
MAX_PEERS = 1000
PAUSE_S = 1.0  # between two calls of `hear`: beyond it, it was we who were silent
TURN_S = 0.5  # `hear` wants to be called this often

_RETRY_S = 0.005  # first wait when a link does not stand yet; doubles
_HELLO_S = 0.1  # first wait for the answer to a Hello; doubles
_MAX_WAIT_S = 1.0
_REMIND_S = 10.0  # between log lines about a gateway that does not answer
_HINT = (
    "if that is the HTTP port: the one to join is join= in the server's log (--control-port); "
    "--control-key-file must be the server's"
)

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Link:
    """What is known of one peer, or of an address whose process has not told its name."""

    peer: Peer | None
    heard_at: float  # or dialled at
    hello: Hello | None = None  # theirs, found equal to ours
    up: bool = False  # and it knows that, and a link stands
    saying: Hello | Welcome | HelloRefused | None = None  # Hello until answered; others once
    due_at: float = 0.0  # when to say it (again)
    retry_s: float = _RETRY_S
    hello_s: float = _HELLO_S
    barred: str | None = None  # why


class Links:
    """All peers of one process. Owned, like its mailbox, by one thread.

    The loop around it: `hear` when the mailbox's fd is readable, at `wake_at`, and again at once
    while not `drained`; then give the events to the core.
    """

    def __init__(
        self,
        mailbox: Mailbox,
        hello: Hello,
        *,
        reference: ModelIdentity | None = None,
        peer_lost_after_s: float = PEER_LOST_AFTER_S,
    ) -> None:
        """`reference` (a gateway's): what workers must have; what it leaves empty, the worker that
        has been there longest decides."""
        self.reference = reference
        self.drained = True  # False: `hear` has left messages unread; call it again at once
        self._mailbox = mailbox
        self._hello = hello
        self._lost_after_s = peer_lost_after_s
        self._links: dict[InstanceId, _Link] = {}
        self._silent: OrderedDict[InstanceId, Peer] = OrderedDict()  # judged, perhaps wrongly
        self._events: list[Event] = []
        self._heard_at: float | None = None
        self._address = ""  # of the gateway to join
        self._gateway = ANYONE  # its link's name
        self._remind_at = 0.0
        self._failure, self._has_reminded = "", False  # to connect there, since the last reminder
        self._refusals: dict[Role, str] = {}  # the last one's, until one of that role is up

    # --- what the loop calls -----------------------------------------------------------------

    def join(self, address: str, now: float) -> None:
        """Find the gateway that listens there, and any later life of it. Once.

        Raises PeerRefused if the address is none; `hear` raises it if the gateway refuses us.
        """
        self._address, self._remind_at = address, now + _REMIND_S
        self._failure, self._has_reminded = "", False
        self._gateway = InstanceId(f"at {address}")
        if not self._mailbox.connect(self._gateway, address, watched=True):
            raise PeerRefused("join", "ipc://PATH or tcp://HOST:PORT", address)
        link = self._links[self._gateway] = _Link(peer=None, heard_at=now)
        self._say(self._gateway, link, self._hello, now)

    def dial(self, peer: Peer, now: float) -> None:
        """Get to know a peer: `hear` answers PeerUp, PeerBarred or PeerDown. Idempotent."""
        link = self._links.get(peer.instance)
        if link is None:
            self._silent.pop(peer.instance, None)
            link = self._open(peer, now)
            if link is None:
                self._events.append(PeerDown(peer.instance))
            else:
                self._say(peer.instance, link, self._hello, now)
        elif link.barred is not None:
            self._events.append(PeerBarred(peer.instance, link.barred))

    def send(self, peer: InstanceId, message: AnyMessage, now: float) -> bool:
        """True: on its way. False: not up, a full or cut link, or a Welcome still owed."""
        link = self._links.get(peer)
        if link is None or not link.up:
            self._mailbox.counts["unsent_not_up"] += 1
            return False
        if link.saying is not None:  # the Welcome goes before anything else
            self._speak(peer, link, now)
        return link.saying is None and self._mailbox.send(peer, message)

    def hear(self, now: float) -> list[Event]:
        """Take in what has come; say what is due; judge who is gone. Never blocks."""
        paused = self._heard_at is not None and now - self._heard_at > PAUSE_S
        self._heard_at = now
        messages = self._mailbox.receive()
        for sender, message in messages:
            self._take(sender, message, now)
        if paused:
            for link in self._links.values():
                link.heard_at = now
        self.drained = len(messages) < RECEIVE_BATCH
        if self.drained:  # never judge beside an unread inbox
            self._judge(now)
        for name, link in list(self._links.items()):
            if link.saying is not None and now >= link.due_at:
                self._speak(name, link, now)
        events, self._events = self._events, []
        return events

    def wake_at(self, now: float) -> float:
        """When to call `hear` at the latest."""
        if self._events:
            return now
        due = (link.due_at for link in self._links.values() if link.saying is not None)
        return min((now + TURN_S, *due))

    def lost(self, instance: InstanceId, now: float) -> None:
        """Somebody who knows says that it is dead: its parent process, say."""
        self._silent.pop(instance, None)
        self._drop(instance, now)

    def leave(self) -> None:
        """Say goodbye to everyone."""
        for name, link in self._links.items():
            if link.up:
                self._mailbox.send(name, Goodbye())

    def hello_of(self, instance: InstanceId) -> Hello | None:
        """None: not up."""
        link = self._links.get(instance)
        return link.hello if link is not None and link.up else None

    @property
    def expected(self) -> ModelIdentity | None:
        """What a worker must have that joins now; None: anything. Who has left does not count."""
        expected = self.reference
        if self._hello.model is None:
            for link in self._links.values():
                if link.hello is not None and link.hello.model is not None:
                    expected = completed(expected, link.hello.model)
        return expected

    def refusals(self, role: Role) -> tuple[str, ...]:
        """Why the last peer of that role was refused; nothing once another one is up."""
        return (self._refusals[role],) if role in self._refusals else ()

    @property
    def gateways(self) -> list[InstanceId]:
        """Those that are up."""
        return [
            name
            for name, link in self._links.items()
            if link.up and link.hello is not None and link.hello.peer.role is Role.GATEWAY
        ]

    # --- what came ---------------------------------------------------------------------------

    def _take(self, sender: InstanceId, message: AnyMessage, now: float) -> None:
        link = self._links.get(sender)
        if link is not None:
            link.heard_at = now
        match message:
            case Hello():
                self._take_hello(sender, message, now)
            case Welcome(hello=hello):
                self._take_welcome(sender, hello, now)
            case HelloRefused():
                self._take_refusal(sender, message)
            case Goodbye():
                self._silent.pop(sender, None)
                self._drop(sender, now, left=True)
            case PeerLost(instance=instance) if link is not None and link.hello is not None:
                if link.hello.peer.role is Role.GATEWAY:
                    self._drop(instance, now, even_unknown=True)
            case _ if link is not None and link.hello is not None:
                self._up(sender, link)  # if it was not: it has our Hello, and speaks already
                self._events.append(Received(sender, message))
            case _:
                self._take_from_stranger(sender, now)

    def _take_hello(self, sender: InstanceId, hello: Hello, now: float) -> None:
        if not self._is_own(sender, hello):
            return
        link = self._links.get(sender) or self._open(hello.peer, now)
        if link is None:
            return
        refused = difference(self._hello, hello, self.expected)
        if refused is not None:
            self._refuse(sender, link, refused, now)
        else:
            self._agree(sender, link, hello)
            self._say(sender, link, Welcome(hello=self._hello), now)

    def _take_welcome(self, sender: InstanceId, hello: Hello, now: float) -> None:
        if not self._is_own(sender, hello):
            return
        if self._joining is not None and hello.peer.role is Role.GATEWAY:
            self._name_gateway(hello.peer, self._joining, now)
        link = self._links.get(sender)
        if link is None or not isinstance(link.saying, Hello):
            return  # an answer to a Hello that we repeated needlessly
        refused = difference(self._hello, hello, self.expected)
        if refused is not None:
            self._refuse(sender, link, refused, now)
        else:
            link.saying = None
            self._agree(sender, link, hello)
            self._up(sender, link)

    def _take_refusal(self, sender: InstanceId, refused: HelloRefused) -> None:
        ours, theirs = refused.theirs, refused.ours
        link = self._links.get(sender)
        if sender == self._gateway or (link is None and self._joining is not None):
            raise PeerRefused(refused.field, ours, theirs)
        if link is not None:
            link.saying = None
            self._bar(sender, link, HelloRefused(field=refused.field, ours=ours, theirs=theirs))

    def _take_from_stranger(self, sender: InstanceId, now: float) -> None:
        """It takes us for up. If silence made us judge it, it was wrong: know each other again."""
        self._mailbox.counts["dropped_from_stranger"] += 1
        peer = self._silent.get(sender)
        if peer is not None:
            self.dial(peer, now)

    def _is_own(self, sender: InstanceId, hello: Hello) -> bool:
        """A process speaks for itself, and not to itself."""
        own = sender == hello.peer.instance != self._hello.peer.instance
        if not own:
            self._mailbox.counts["dropped_malformed"] += 1
        return own

    @property
    def _joining(self) -> _Link | None:
        """The link to the joined address while its process has not told its name."""
        link = self._links.get(self._gateway)
        return link if link is not None and link.peer is None else None

    def _name_gateway(self, peer: Peer, joining: _Link, now: float) -> None:
        nameless, self._gateway = self._gateway, peer.instance
        del self._links[nameless]
        if peer.instance in self._links:  # it has called us meanwhile: one link is enough
            self._mailbox.disconnect(nameless)
        else:
            self._mailbox.rename(nameless, peer.instance)
            self._links[peer.instance] = joining
            joining.peer, joining.heard_at = peer, now

    # --- what is said ------------------------------------------------------------------------

    def _open(self, peer: Peer, now: float) -> _Link | None:
        """A link to the nearest address of the peer's that is one."""
        if len(self._links) >= MAX_PEERS:
            self._mailbox.counts["dropped_too_many_peers"] += 1
            return None
        near = peer.host == self._hello.peer.host
        for endpoint in peer.endpoints:
            if (near or not endpoint.startswith("ipc:")) and self._mailbox.connect(
                peer.instance, endpoint
            ):
                self._links[peer.instance] = link = _Link(peer=peer, heard_at=now)
                return link
        self._mailbox.counts["dropped_unreachable"] += 1
        return None

    def _say(
        self, name: InstanceId, link: _Link, message: Hello | Welcome | HelloRefused, now: float
    ) -> None:
        link.saying, link.retry_s = message, _RETRY_S
        self._speak(name, link, now)

    def _speak(self, name: InstanceId, link: _Link, now: float) -> None:
        """Say it if the link stands. A Hello is repeated until it is answered."""
        assert link.saying is not None
        if not self._mailbox.send(name, link.saying, to=ANYONE if link.peer is None else None):
            link.due_at = now + link.retry_s
            link.retry_s = min(2 * link.retry_s, _MAX_WAIT_S)
        elif isinstance(link.saying, Hello):
            link.due_at = now + link.hello_s
            link.hello_s = min(2 * link.hello_s, _MAX_WAIT_S)
        else:
            if isinstance(link.saying, Welcome):
                self._up(name, link)
            link.saying = None

    # --- who is up ---------------------------------------------------------------------------

    def _agree(self, instance: InstanceId, link: _Link, hello: Hello) -> None:
        """Nothing that must be equal differs."""
        link.hello, link.peer, link.barred = hello, hello.peer, None
        self._silent.pop(instance, None)

    def _up(self, instance: InstanceId, link: _Link) -> None:
        """It knows that we agree, too."""
        if not link.up and link.hello is not None:
            link.up = True
            self._refusals.pop(link.hello.peer.role, None)
            _log.info(line("peer_up", peer=instance, role=link.hello.peer.role))
            self._events.append(PeerUp(link.hello))

    def _refuse(self, name: InstanceId, link: _Link, refused: HelloRefused, now: float) -> None:
        self._bar(name, link, refused)
        self._say(name, link, refused, now)

    def _bar(self, instance: InstanceId, link: _Link, refused: HelloRefused) -> None:
        detail = str(PeerRefused(refused.field, refused.ours, refused.theirs))
        if link.up:
            self._events.append(PeerDown(instance))
        link.hello, link.up = None, False
        if link.peer is not None:
            self._refusals[link.peer.role] = f"{instance[:8]} was {detail}"
        if link.barred is None:
            _log.error(line("peer_barred", peer=instance, detail=detail))
            self._events.append(PeerBarred(instance, detail))
        link.barred = detail

    def _judge(self, now: float) -> None:
        for name, link in list(self._links.items()):
            if link.peer is None:
                self._remind(name, now)
            elif now - link.heard_at > self._lost_after_s:
                if link.up:
                    self._remember_silent(link.peer)
                self._drop(name, now)

    def _remind(self, name: InstanceId, now: float) -> None:
        """Tell that the joined address does not answer; at once, where it is known why."""
        self._failure = self._mailbox.failure(name) or self._failure
        if now < self._remind_at and (self._has_reminded or not self._failure):
            return
        if self._failure:
            _log.error(line("gateway_unreachable", address=self._address, detail=self._failure))
            self._mailbox.connect(name, self._address, watched=True)  # ZeroMQ may have given up
        else:
            _log.warning(line("no_answer_from_gateway", address=self._address, hint=_HINT))
        self._remind_at = now + _REMIND_S
        self._failure, self._has_reminded = "", True

    def _remember_silent(self, peer: Peer) -> None:
        self._silent[peer.instance] = peer
        if len(self._silent) > MAX_PEERS:
            self._silent.popitem(last=False)

    def _drop(
        self, instance: InstanceId, now: float, *, even_unknown: bool = False, left: bool = False
    ) -> None:
        """It is gone. `left`: as it said itself. A gateway that we joined is looked for again at
        its address."""
        link = self._links.pop(instance, None)
        self._mailbox.disconnect(instance)
        if link is not None and link.barred is not None:
            return
        if even_unknown and link is not None and link.up and link.peer is not None:
            self._remember_silent(link.peer)  # the gateway, too, may judge wrongly
        if link is not None or even_unknown:
            _log.info(line("peer_down", peer=instance))
            self._events.append(PeerDown(instance, left=left))
        if link is not None and instance == self._gateway:
            self.join(self._address, now)
