"""What a backend tells the thread that reads for it, and how: the same over every kind of memory.

Must not wait: whoever tells is a control loop.
"""

from dataclasses import dataclass

from common.ids import InstanceId
from common.messages import RegionKey
from transfer.inbox import Inbox
from transfer.tickets import Pull, Reason, Tickets


@dataclass(frozen=True, slots=True)
class Connect:
    """Reach that region now: map it, or open a link there."""

    remote: RegionKey


@dataclass(frozen=True, slots=True)
class Forget:
    """Unmap the owner's regions and close the links there, once pulls from there are final."""

    owner: InstanceId


@dataclass(frozen=True, slots=True)
class Nudge:
    """A pull was cancelled."""


Command = Pull | Connect | Forget | Nudge


class Commanding:
    """The part of `transfer.transport.Backend` that only passes on. Sets nothing up itself."""

    _inbox: Inbox[Command]
    _tickets: Tickets

    def start(self, pull: Pull) -> None:
        if not self._inbox.put(pull):
            self._tickets.fail(pull, Reason.CLOSED, "")

    def nudge(self) -> None:
        self._inbox.put(Nudge())

    def connect(self, remote: RegionKey) -> None:
        self._inbox.put(Connect(remote))

    def forget(self, owner: InstanceId) -> None:
        self._inbox.put(Forget(owner))
