"""Pulls between virtual devices: pages come one by one, in any order, while their owner goes on.

The contract is `transfer.api`'s: a ticket is final once, no page is written after it, and it is
well only if every page was still the announced one after it was copied.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from bench.simulate.device import GARBAGE, Device
from bench.simulate.laws import require
from bench.simulate.process import World
from common.engine.events import Pull, Spill, TicketFinal
from common.errors import InvariantBroken
from common.ids import InstanceId, PageId, TicketId
from common.messages import PageRef

STOPPING_S = 0.003  # at most, from a Cancel to its ticket's end
Final = Callable[[TicketFinal], None]


@dataclass(frozen=True, slots=True)
class _Copying:
    """A ticket that is not final."""

    ticket: TicketId
    owner: InstanceId  # of what is read
    target: Device
    copies: tuple[tuple[PageRef, PageId], ...]


class Pulls:
    """Those of one process into its device, and into its host memory."""

    def __init__(
        self, world: World, owner: InstanceId, device: Device, host: Device | None, final: Final
    ) -> None:
        self._world = world
        self._owner = owner
        self._device = device
        self._host = host
        self._final = final
        self._running: dict[TicketId, _Copying] = {}
        self._broken: dict[TicketId, PageId] = {}  # of these: a local page that does not come

    def pull(self, pull: Pull) -> None:
        self._start(_Copying(pull.ticket, pull.remote.owner, self._device, pull.copies))

    def spill(self, spill: Spill) -> None:
        """Host memory reads the own pool."""
        if self._host is None:
            raise InvariantBroken("a spill, and no host memory")
        self._world.network.counts["spilled"] += 1
        self._start(_Copying(spill.ticket, self._owner, self._host, spill.copies))

    def cancel(self, ticket: TicketId) -> None:
        """Pages may still come until the ticket is final."""
        if ticket in self._running:
            delay_s = self._world.random.choice((0.0, STOPPING_S))
            self._world.clock.at(delay_s, lambda: self._finish(ticket, ok=False))

    def _start(self, copying: _Copying) -> None:
        world, draw, ticket = self._world, self._world.random, copying.ticket
        require(ticket not in self._running, f"ticket {ticket} is begun twice")
        self._running[ticket] = copying
        stalled_s, seconds = self._stall_s(), self._seconds(copying)
        for ref, local in copying.copies:
            copying.target.slots[local] = GARBAGE
            at = stalled_s + draw.uniform(0.0, seconds)
            world.clock.at(at, lambda r=ref.page, n=local: self._copy(copying, r, n))
        if draw.random() < world.weather.torn:
            self._broken[ticket] = draw.choice(copying.copies)[1]
        world.clock.at(stalled_s + seconds, lambda: self._finish(ticket, ok=True))

    def _stall_s(self) -> float:
        """How long nothing comes."""
        world, draw = self._world, self._world.random
        if draw.random() >= world.weather.slow:
            return 0.0
        world.network.counts["slow"] += 1
        return draw.uniform(0.0, world.weather.slow_s)

    def _seconds(self, copying: _Copying) -> float:
        draw = self._world.random
        if self._is_own(copying.owner):
            return draw.uniform(0.0001, 0.001)
        return draw.uniform(0.0005, 0.01)

    def _copy(self, copying: _Copying, remote: PageId, local: PageId) -> None:
        if copying.ticket not in self._running:
            return
        if self._is_out_of_reach(copying.owner):
            self._broken.setdefault(copying.ticket, local)
        elif self._broken.get(copying.ticket) != local:
            copying.target.slots[local] = self._world.devices[copying.owner].slots[remote]

    def _is_own(self, owner: InstanceId) -> bool:
        return owner in (self._owner, host_memory_of(self._owner))

    def _is_out_of_reach(self, owner: InstanceId) -> bool:
        """One host's memory outlives its owner; another's is asked for over the network."""
        world = self._world
        if not world.shape.far or self._is_own(owner):
            return False
        return owner not in world.living or world.network.is_cut(owner, self._owner)

    def _finish(self, ticket: TicketId, *, ok: bool) -> None:
        """Idempotent."""
        copying = self._running.pop(ticket, None)
        if copying is None:
            return
        broken = ticket in self._broken or self._is_out_of_reach(copying.owner)
        self._broken.pop(ticket, None)
        owner = self._world.devices[copying.owner]
        valid = ok and not broken and owner.are_still(ref for ref, _ in copying.copies)
        self._world.network.counts["pulled" if valid else "not_pulled"] += 1
        if valid and not self._is_own(copying.owner):
            self._check_content(copying)
            self._world.pulled_pages += len(copying.copies)
        self._final(TicketFinal(ticket, valid, "" if valid else "torn"))

    def _check_content(self, copying: _Copying) -> None:
        """What is taken for valid is what was announced."""
        for ref, local in copying.copies:
            announced = self._world.announced[copying.owner, ref.page, ref.generation]
            if copying.target.slots[local].tobytes() != announced:
                raise InvariantBroken(f"ticket {copying.ticket} is valid, and page {local} is not")


def host_memory_of(worker: InstanceId) -> InstanceId:
    """Its name as a region's owner."""
    return InstanceId(f"{worker} host")


def announce(world: World, owner: InstanceId, device: Device, refs: Iterable[PageRef]) -> None:
    """From now on nobody writes these pages in this life of theirs."""
    for ref in refs:
        content = device.slots[ref.page].tobytes()
        known = world.announced.setdefault((owner, ref.page, ref.generation), content)
        if known != content:
            raise InvariantBroken(f"{owner} has written page {ref.page}, which it has announced")
