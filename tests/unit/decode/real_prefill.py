"""The other side's core itself, with a pool of its own, in the place of `prefill.Prefiller`."""

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from common.engine.events import (
    Cancel,
    Event,
    Launch,
    PeerUp,
    Pull,
    Received,
    Send,
    StepDone,
    StepFailed,
    TicketFinal,
)
from common.ids import InstanceId, TicketId, TransferId
from common.kv.pages import PagePool
from common.messages import AnyMessage, End, Expect, Limits, PageRef, Prefill
from prefill.core import PrefillCore, PrefillOptions
from tests.unit.decode.builders import FINGERPRINT, G, hello
from tests.unit.decode.memory import Content, Memory

if TYPE_CHECKING:
    from tests.unit.decode.world import World

N_PAGES = 200
DECODE = InstanceId("core")


class RealPrefiller:
    """A prefill worker whose decisions are `prefill.core`'s."""

    def __init__(self, world: "World", instance: InstanceId) -> None:
        self._world = world
        self._instance = instance
        page_tokens = world.bench.page_tokens
        limits = Limits(
            n_pages=N_PAGES,
            page_tokens=page_tokens,
            max_model_len=64,
            max_num_seqs=8,
            max_num_batched_tokens=32,
            max_waiting=1000,
        )
        self.pool = PagePool(N_PAGES, np.zeros(N_PAGES, np.uint64))
        self._core = PrefillCore(
            limits, self.pool, PrefillOptions(fingerprint=FINGERPRINT, chunk_tokens=8)
        )
        self._memory = Memory(self.pool, page_tokens)
        self._pulls: dict[TicketId, Pull] = {}
        self._alarm = 0
        self.give(PeerUp(hello(G)), PeerUp(hello(DECODE)))

    @property
    def idle(self) -> bool:
        return self._core.idle and self.pool.n_held == 0

    def content(self, ref: PageRef) -> Content | None:
        return self._memory.content(ref)

    # --- what the gateway sends --------------------------------------------------------------

    def prefill(self, request: Expect) -> None:
        message = Prefill(
            transfer=request.transfer,
            attempt=request.attempt,
            prompt=request.prompt,
            samples=request.samples,
            params=request.params,
            decode=DECODE,
        )
        self._world.post(G, self._instance, message)

    def ended(self, key: tuple[TransferId, int]) -> None:
        self._world.post(G, self._instance, End(transfer=key[0], attempt=key[1]))

    def hear(self, message: AnyMessage, sender: str) -> None:
        self.give(Received(InstanceId(sender), message))

    # --- its shell ---------------------------------------------------------------------------

    def give(self, *events: Event) -> None:
        if self._world.prefills.get(self._instance, self) is not self:
            return
        decision = self._core.step(self._world.now, events)
        self._core.check()
        random = self._world.random
        for action in decision.actions:
            match action:
                case Launch():
                    self._memory.launch(action)
                    self._memory.begin(action)
                    self._world.later(random.uniform(0.001, 0.03), partial(self._done, action))
                case Pull():
                    self._memory.pull(action)
                    self._pulls[action.ticket] = action
                    self._world.later(random.expovariate(100), partial(self._pulled, action.ticket))
                case Cancel(ticket):
                    self._world.later(0.0, partial(self._pulled, ticket))
                case Send(peer, message):
                    self._world.post(self._instance, peer, message)
                case _:
                    pass
        self._alarm += 1
        if decision.wake_at is not None:
            self._world.later(decision.wake_at - self._world.now, partial(self._wake, self._alarm))

    def _wake(self, alarm: int) -> None:
        if alarm == self._alarm:
            self.give()

    def _done(self, launch: Launch) -> None:
        if self._world.random.random() < self._world.weather.raised:
            self._memory.failed(launch)
            self.give(StepFailed(launch.step, "raised"))
        else:
            self.give(StepDone(launch.step, self._memory.done(launch)))

    def _pulled(self, ticket: TicketId) -> None:
        pull = self._pulls.pop(ticket, None)
        if pull is None:
            return
        content = [self._world.memory.content(ref) for ref, _ in pull.copies]
        ok = None not in content and self._world.random.random() >= self._world.weather.torn
        self._memory.pulled(pull, content)
        self.give(TicketFinal(pull.ticket, ok))
