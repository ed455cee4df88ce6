"""A core's pulls on a transport, and between its pool and host memory: its ticket numbers, and its
peers' memory kept at hand.

Must not choose what is pulled, or when.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from common.curve import CurveKey
from common.engine.events import Event, PeerDown, PeerUp, Pull, Spill, TicketFinal
from common.errors import InvariantBroken
from common.ids import InstanceId, TicketId
from common.log import line
from common.messages import RegionKey
from common.rundir import host_id
from transfer.api import Copy, Region, Status, Ticket
from transfer.open import Name, open_transport
from transfer.pool import device_of
from transfer.tiers.host import HostTier
from transfer.transport import PageTransport

FORGET_AFTER_S = 60.0  # a dead peer's memory may be pulled from for this long
_TIER_COUNTERS = (
    "kv_spills_total",
    "kv_spill_bytes_total",
    "kv_restores_total",
    "kv_restore_bytes_total",
    "kv_host_pull_failures_total",
)

_log = logging.getLogger(__name__)


def open_pulls(  # noqa: PLR0913  a worker's memory and its place in the world, named one by one
    name: Name,
    pool: Region,
    *,
    instance: InstanceId,
    run_dir: Path,
    listen_host: str,
    wake: Callable[[], None],
    curve: CurveKey | None = None,
    host_memory: Region | None = None,
) -> "Pulls":
    """Pulls into `pool` on a transport of their own; see `transfer.open`. Raises SetupError.

    With `host_memory` pages are spilled there, and pulled back."""
    transport = open_transport(
        name,
        instance=instance,
        host=host_id(),
        run_dir=run_dir,
        listen_host=listen_host,
        wake=wake,
        curve=curve,
        device=device_of(pool),
    )
    if host_memory is None:
        return Pulls(transport, pool)
    instance = InstanceId(f"{instance}-host")
    return Pulls(
        transport,
        pool,
        HostTier(pool, host_memory, instance=instance, host=host_id(), wake=wake),
    )


@dataclass(slots=True)
class _Open:
    """A ticket that was not final when last asked."""

    transport: PageTransport
    ticket: Ticket
    peer: InstanceId
    counter: str  # of the tier, when it is done; empty: of the transport, which counts itself
    n_bytes: int


class Pulls:
    """One a worker, used by its loop's thread."""

    def __init__(
        self, transport: PageTransport, pool: Region, tier: HostTier | None = None
    ) -> None:
        """`pool`, the worker's own, is made reachable here. Closes the transport and the `tier`
        when closed."""
        self._transport = transport
        self._tier = tier
        self.key = transport.register(pool)
        self._page_bytes = self.key.page_bytes
        self._open: dict[TicketId, _Open] = {}
        self._of_tier: dict[str, float] = {} if tier is None else dict.fromkeys(_TIER_COUNTERS, 0)
        self._dead: dict[InstanceId, float] = {}  # when to forget it

    @property
    def host_key(self) -> RegionKey | None:
        """Where to pull back from what was spilled; None: there is no host memory."""
        return None if self._tier is None else self._tier.key

    def start(self, action: Pull | Spill) -> None:
        """Start moving; `finals` tells the end."""
        copies = tuple(Copy(ref.page, ref.generation, local) for ref, local in action.copies)
        transport, tier, counter = self._transport, self._tier, ""
        if isinstance(action, Spill):
            if tier is None:
                raise InvariantBroken("a spill, and there is no host memory")
            transport, peer, counter = tier.transport, tier.key.owner, "spill"
            ticket = tier.spill(copies)
        elif tier is not None and action.peer == tier.key.owner:
            transport, peer, counter = tier.transport, action.peer, "restore"
            ticket = tier.restore(copies)
        else:
            peer = action.peer
            ticket = transport.pull(peer, action.remote, self.key, copies)
        n_bytes = len(copies) * self._page_bytes
        self._open[action.ticket] = _Open(transport, ticket, peer, counter, n_bytes)

    def cancel(self, ticket: TicketId) -> None:
        """Ask to stop. Idempotent; of a ticket that is final, nothing."""
        moving = self._open.get(ticket)
        if moving is not None:
            moving.transport.cancel(moving.ticket)

    def finals(self, now: float) -> list[TicketFinal]:
        """What has ended since the last call. To be called as time passes, too.

        Raises InvariantBroken if the transport's threads have died.
        """
        if not (self._transport.alive and (self._tier is None or self._tier.transport.alive)):
            raise InvariantBroken("a thread of the transport has died")
        if self._dead:
            self._forget_dead(now)
        ended: list[TicketFinal] = []
        for ticket, moving in list(self._open.items()):
            status = moving.transport.poll(moving.ticket)
            if status is not Status.PENDING:
                del self._open[ticket]
                ok = status is Status.DONE
                detail = "" if ok else moving.transport.why(moving.ticket)
                ended.append(TicketFinal(ticket, ok, detail))
                if moving.counter:
                    self._count(moving, ok=ok)
        return ended

    def _count(self, moving: _Open, *, ok: bool) -> None:
        """Of the tier, whose transport does not tell one way from the other."""
        if ok:
            self._of_tier[f"kv_{moving.counter}s_total"] += 1
            self._of_tier[f"kv_{moving.counter}_bytes_total"] += moving.n_bytes
        else:
            self._of_tier["kv_host_pull_failures_total"] += 1

    def hear(self, event: Event, now: float) -> None:
        """A peer that comes is connected to; the memory of one that went is given back later."""
        match event:
            case PeerUp(hello) if hello.pool is not None:
                self._dead.pop(hello.peer.instance, None)
                self._transport.connect(hello.pool)
                way, why = self._transport.way(hello.pool)
                _log.info(
                    line("pages_come_by", way=way, peer=hello.peer.instance, not_by=why or None)
                )
            case PeerDown(instance):
                self._dead[instance] = now + FORGET_AFTER_S
            case _:
                pass

    def close(self) -> None:
        """Pulls in flight fail. Idempotent."""
        self._transport.close()
        if self._tier is not None:
            self._tier.close()

    def counters(self) -> dict[str, float]:
        """By metric's name."""
        stats = self._transport.stats()
        return {
            "kv_pulls_total": stats.pulls_done,
            "kv_pull_failures_total": sum(stats.failed.values()),
            "kv_pull_seconds_total": stats.pull_seconds,
            "kv_pull_bytes_total": stats.pulled_bytes,
            "kv_served_bytes_total": stats.served_bytes,
            "kv_bad_frames_total": stats.bad_frames,
            **self._of_tier,
        }

    def _forget_dead(self, now: float) -> None:
        in_use = {moving.peer for moving in self._open.values()}
        for instance, due in list(self._dead.items()):
            if now >= due and instance not in in_use:
                del self._dead[instance]
                self._transport.forget(instance)
