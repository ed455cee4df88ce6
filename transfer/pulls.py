"""A core's pulls on a transport: its ticket numbers, and its peers' memory kept at hand.

Must not choose what is pulled, or when.
"""

from collections.abc import Callable
from pathlib import Path

from common.engine.events import Event, PeerDown, PeerUp, Pull, TicketFinal
from common.errors import InvariantBroken
from common.ids import InstanceId, TicketId
from common.rundir import host_id
from transfer.api import Copy, Region, Status, Ticket
from transfer.open import Name, open_transport
from transfer.transport import PageTransport

FORGET_AFTER_S = 60.0  # a dead peer's memory may be pulled from for this long


def open_pulls(
    name: Name,
    pool: Region,
    *,
    instance: InstanceId,
    run_dir: Path,
    listen_host: str,
    wake: Callable[[], None],
) -> "Pulls":
    """Pulls into `pool` on a transport of their own; see `transfer.open`. Raises SetupError."""
    transport = open_transport(
        name,
        instance=instance,
        host=host_id(),
        run_dir=run_dir,
        listen_host=listen_host,
        wake=wake,
    )
    return Pulls(transport, pool)


class Pulls:
    """One a worker, used by its loop's thread."""

    def __init__(self, transport: PageTransport, pool: Region) -> None:
        """`pool`, the worker's own, is made reachable here. Closes the transport when closed."""
        self._transport = transport
        self.key = transport.register(pool)
        self._open: dict[TicketId, tuple[Ticket, InstanceId]] = {}
        self._dead: dict[InstanceId, float] = {}  # when to forget it

    def start(self, pull: Pull) -> None:
        """Start moving; `finals` tells the end."""
        copies = tuple(Copy(ref.page, ref.generation, local) for ref, local in pull.copies)
        ticket = self._transport.pull(pull.peer, pull.remote, self.key, copies)
        self._open[pull.ticket] = (ticket, pull.peer)

    def cancel(self, ticket: TicketId) -> None:
        """Ask to stop. Idempotent; of a ticket that is final, nothing."""
        if ticket in self._open:
            self._transport.cancel(self._open[ticket][0])

    def finals(self, now: float) -> list[TicketFinal]:
        """What has ended since the last call. To be called as time passes, too.

        Raises InvariantBroken if the transport's threads have died.
        """
        if not self._transport.alive:
            raise InvariantBroken("a thread of the transport has died")
        if self._dead:
            self._forget_dead(now)
        ended: list[TicketFinal] = []
        for ticket, (moving, _) in list(self._open.items()):
            status = self._transport.poll(moving)
            if status is not Status.PENDING:
                del self._open[ticket]
                ok = status is Status.DONE
                detail = "" if ok else self._transport.why(moving)
                ended.append(TicketFinal(ticket, ok, detail))
        return ended

    def hear(self, event: Event, now: float) -> None:
        """A peer that comes is connected to; the memory of one that went is given back later."""
        match event:
            case PeerUp(hello) if hello.pool is not None:
                self._dead.pop(hello.peer.instance, None)
                self._transport.connect(hello.pool)
            case PeerDown(instance):
                self._dead[instance] = now + FORGET_AFTER_S
            case _:
                pass

    def close(self) -> None:
        """Pulls in flight fail. Idempotent."""
        self._transport.close()

    def counters(self) -> dict[str, float]:
        """By metric's name."""
        stats = self._transport.stats()
        return {
            "kv_pulls_total": stats.pulls_done,
            "kv_pull_failures_total": sum(stats.failed.values()),
            "kv_pull_seconds_total": stats.pull_seconds,
            "kv_pull_bytes_total": stats.pulled_bytes,
            "kv_served_bytes_total": stats.served_bytes,
        }

    def _forget_dead(self, now: float) -> None:
        in_use = {peer for _, peer in self._open.values()}
        for instance, due in list(self._dead.items()):
            if now >= due and instance not in in_use:
                del self._dead[instance]
                self._transport.forget(instance)
