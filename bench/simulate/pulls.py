"""Pulls between virtual devices: pages come one by one, in any order, while their owner goes on.

The contract is `transfer.api`'s: a ticket is final once, no page is written after it, and it is
well only if every page was still the announced one after it was copied.
"""

from collections.abc import Callable, Iterable

from bench.simulate.device import GARBAGE, Device
from bench.simulate.laws import require
from bench.simulate.process import World
from common.engine.events import Pull, TicketFinal
from common.errors import InvariantBroken
from common.ids import InstanceId, PageId, TicketId
from common.messages import PageRef

STOPPING_S = 0.003  # at most, from a Cancel to its ticket's end
Final = Callable[[TicketFinal], None]


class Pulls:
    """Those of one process into its device."""

    def __init__(self, world: World, owner: InstanceId, device: Device, final: Final) -> None:
        self._world = world
        self._owner = owner
        self._device = device
        self._final = final
        self._running: dict[TicketId, Pull] = {}
        self._broken: set[TicketId] = set()  # of these: a page did not come

    def start(self, pull: Pull) -> None:
        world, draw = self._world, self._world.random
        require(pull.ticket not in self._running, f"ticket {pull.ticket} is pulled twice")
        self._running[pull.ticket] = pull
        stalled_s, seconds = self._stall_s(), self._seconds(len(pull.copies))
        for ref, local in pull.copies:
            self._device.slots[local] = GARBAGE
            at = stalled_s + draw.uniform(0.0, seconds)
            world.clock.at(at, lambda r=ref.page, n=local: self._copy(pull, r, n))
        if draw.random() < world.weather.torn:
            self._broken.add(pull.ticket)
        world.clock.at(stalled_s + seconds, lambda: self._finish(pull.ticket, ok=True))

    def cancel(self, ticket: TicketId) -> None:
        """Pages may still come until the ticket is final."""
        if ticket in self._running:
            delay_s = self._world.random.choice((0.0, STOPPING_S))
            self._world.clock.at(delay_s, lambda: self._finish(ticket, ok=False))

    def _stall_s(self) -> float:
        """How long nothing comes."""
        world, draw = self._world, self._world.random
        if draw.random() >= world.weather.slow:
            return 0.0
        world.network.counts["slow"] += 1
        return draw.uniform(0.0, world.weather.slow_s)

    def _seconds(self, n_pages: int) -> float:
        costs = self._world.shape.costs
        return self._world.random.uniform(0.0005, 0.01) if costs is None else costs.pull_s(n_pages)

    def _copy(self, pull: Pull, remote: PageId, local: PageId) -> None:
        if pull.ticket not in self._running:
            return
        if self._is_out_of_reach(pull):
            self._broken.add(pull.ticket)
        else:
            self._device.slots[local] = self._world.devices[pull.remote.owner].slots[remote]

    def _is_out_of_reach(self, pull: Pull) -> bool:
        """One host's memory outlives its owner; another's is asked for over the network."""
        world = self._world
        if not world.shape.far:
            return False
        dead = pull.remote.owner not in world.living
        return dead or world.network.is_cut(pull.remote.owner, self._owner)

    def _finish(self, ticket: TicketId, *, ok: bool) -> None:
        """Idempotent."""
        pull = self._running.pop(ticket, None)
        if pull is None:
            return
        broken = ticket in self._broken or self._is_out_of_reach(pull)
        self._broken.discard(ticket)
        owner = self._world.devices[pull.remote.owner]
        valid = ok and not broken and owner.are_still(ref for ref, _ in pull.copies)
        self._world.network.counts["pulled" if valid else "not_pulled"] += 1
        if valid:
            self._check_content(pull)
            self._world.pulled_pages += len(pull.copies)
        self._final(TicketFinal(ticket, valid, "" if valid else "torn"))

    def _check_content(self, pull: Pull) -> None:
        """What is taken for valid is what was announced."""
        for ref, local in pull.copies:
            announced = self._world.announced[pull.remote.owner, ref.page, ref.generation]
            if self._device.slots[local].tobytes() != announced:
                raise InvariantBroken(f"ticket {pull.ticket} is valid, and page {local} is not")


def announce(world: World, owner: InstanceId, device: Device, refs: Iterable[PageRef]) -> None:
    """From now on nobody writes these pages in this life of theirs."""
    for ref in refs:
        content = device.slots[ref.page].tobytes()
        known = world.announced.setdefault((owner, ref.page, ref.generation), content)
        if known != content:
            raise InvariantBroken(f"{owner} has written page {ref.page}, which it has announced")
