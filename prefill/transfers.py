"""The live prompts of a prefill worker: what decode asks and is told of them, and the exits.

Completion, failure, abort, supersession and a lost gateway all end in `_free`: pages and the lease
come back there and nowhere else. Says nothing to decode before its Accept.
"""

from bisect import insort
from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping, ValuesView

from common.engine.events import Action, Cancel, Note, Send
from common.errors import InvariantBroken
from common.ids import InstanceId, TransferId
from common.messages import Accept, AnyMessage, Gone, Listed
from common.messages import Phase as WirePhase
from prefill.compute import Compute
from prefill.handoff import Key, Leases
from prefill.outgoing import failed, first_tokens, handoff, pages_ready
from prefill.scheduler import order
from prefill.state import Event, Phase, Prompt

EARLY_ACCEPTS = 1024  # Accepts that overtook their Prefill; their senders repeat them anyway


class Transfers:
    """One attempt of each transfer, from its Prefill to decode's Release or the gateway's End."""

    def __init__(self, compute: Compute) -> None:
        self._compute = compute
        self._leases = Leases(compute.pool)
        self._live: dict[TransferId, Prompt] = {}
        self.queue: list[Prompt] = []  # the same, most urgent first
        self._early: OrderedDict[tuple[Key, InstanceId], Accept] = OrderedDict()
        self._actions: list[Action] = []
        self.stale_messages = 0

    def __len__(self) -> int:
        return len(self._live)

    @property
    def all(self) -> ValuesView[Prompt]:
        return self._live.values()

    def get(self, transfer: TransferId) -> Prompt | None:
        return self._live.get(transfer)

    def of_gateway(self, gateway: InstanceId) -> list[Prompt]:
        return [p for p in self._live.values() if p.gateway == gateway]

    def read_by(self, decode: InstanceId) -> list[Prompt]:
        """Those that it has a lease on."""
        return [p for p in self._live.values() if self._leases.reader(p.key) == decode]

    def held(self) -> Iterator[tuple[Key, InstanceId]]:
        """What is here, and for whom: prompts of gateways, leases of readers."""
        yield from ((p.key, p.gateway) for p in self._live.values())
        yield from self._leases.readers()

    def add(self, prompt: Prompt) -> None:
        self._live[prompt.transfer] = prompt
        insort(self.queue, prompt, key=order)
        self._compute.wait(prompt)
        self.note(prompt, "queued", {"prompt_tokens": len(prompt.tokens)})
        accept = self._early.pop((prompt.key, prompt.request.decode), None)
        if accept is not None:
            self.accept(prompt.request.decode, accept)

    # --- actions -----------------------------------------------------------------------------

    def drain(self) -> tuple[Action, ...]:
        actions, self._actions = tuple(self._actions), []
        return actions

    def act(self, actions: Collection[Action]) -> None:
        self._actions += actions

    def send(self, peer: InstanceId, message: AnyMessage) -> None:
        self._actions.append(Send(peer, message))

    def note(self, prompt: Prompt, name: str, fields: dict[str, int | float | str]) -> None:
        self._actions.append(Note(prompt.transfer, prompt.attempt, name, fields))

    # --- what decode says --------------------------------------------------------------------

    def accept(self, sender: InstanceId, accept: Accept) -> None:
        key = (accept.transfer, accept.attempt)
        prompt = self._live.get(accept.transfer)
        if prompt is None or prompt.attempt < accept.attempt:  # it has overtaken its Prefill
            self._early[key, sender] = accept
            if len(self._early) > EARLY_ACCEPTS:
                self._early.popitem(last=False)
            return
        if prompt.key != key or prompt.request.decode != sender:
            self.stale_messages += 1
            return
        if prompt.phase in (Phase.ANSWERED, Phase.FAILED):
            return  # the gateway knows, and will end it on both sides
        if prompt.accept is None:
            prompt.accept = accept
        self._leases.grant(key, sender, first=len(prompt.accept.held))
        self.announce(prompt, answer=True)

    def release(self, key: Key, sender: InstanceId) -> None:
        lease = self._leases.get(key)
        if lease is not None and lease.reader == sender:
            self._leases.end(key)
        self._early.pop((key, sender), None)
        prompt = self._live.get(key[0])
        if prompt is None or prompt.key != key or prompt.request.decode != sender:
            return
        prompt.accept = None
        if prompt.phase is Phase.COMPUTED:
            self._retire(prompt, Event.RELEASED)

    def peer_down(self, instance: InstanceId) -> None:
        """Leases are void, Accepts will not come; a gateway's prompts are nobody's."""
        self._forget_early(instance, keep=())
        for key in self._leases.end_reader(instance):
            self._live[key[0]].accept = None
        for prompt in self.of_gateway(instance):
            self.end(prompt)

    def listed(self, sender: InstanceId, listed: Mapping[Key, Listed]) -> None:
        """Decode's digest: what it does not list has lapsed; what it lists in vain is gone."""
        for key in self._leases.end_unlisted(sender, listed.keys()):
            self.release(key, sender)
        self._forget_early(sender, keep=listed.keys())
        for key, row in listed.items():
            prompt = self._live.get(key[0])
            if prompt is not None and self._leases.reader(key) == sender:
                if row.phase is WirePhase.ACCEPTED:
                    self.hand_over(prompt)
            elif not (self._is_settled(prompt) or (key, sender) in self._early):
                self.gone(sender, key)

    def gone(self, peer: InstanceId, key: Key) -> None:
        self.send(peer, Gone(transfer=key[0], attempt=key[1]))

    def _forget_early(self, sender: InstanceId, *, keep: Collection[Key]) -> None:
        for early in [e for e in self._early if e[1] == sender and e[0] not in keep]:
            del self._early[early]

    def _is_settled(self, prompt: Prompt | None) -> bool:
        """The gateway knows that nothing comes of it for decode, and ends it there."""
        return prompt is not None and prompt.phase in (Phase.ANSWERED, Phase.FAILED)

    # --- what decode is told -----------------------------------------------------------------

    def announce(self, prompt: Prompt, *, answer: bool = False) -> None:
        """Tell decode of pages that are final. `answer`: say so even if there is no news."""
        lease = self._leases.get(prompt.key)
        if lease is None:
            return
        if prompt.phase is Phase.COMPUTED:
            n_final = len(prompt.pages)
        else:
            n_final = prompt.done // self._compute.page_tokens
        news = self._leases.announce(prompt.key, prompt.pages, n_final)
        if news:
            self.note(prompt, "pages_ready", {"pages": n_final, "tokens": prompt.done})
        if prompt.phase is Phase.COMPUTED and answer:
            self.hand_over(prompt)
        elif answer or (news and prompt.phase is not Phase.COMPUTED):
            self.send(lease.reader, pages_ready(prompt, lease))

    def hand_over(self, prompt: Prompt) -> None:
        """If it is computed, and decode has accepted."""
        lease = self._leases.get(prompt.key)
        if lease is not None and prompt.phase is Phase.COMPUTED:
            self.send(lease.reader, handoff(prompt, lease))

    # --- progress and the exits --------------------------------------------------------------

    def advance(self, prompt: Prompt) -> None:
        """A chunk is done: announce its pages; after the last one hand over."""
        if not prompt.handed:
            self.announce(prompt)
            return
        self.note(prompt, "context_end", {"cached_tokens": prompt.cached})
        if all(token.finish is not None for token in prompt.handed):
            prompt.on(Event.ANSWERED)
            self._free(prompt)
        else:
            prompt.on(Event.COMPUTED)
        self.send(prompt.gateway, first_tokens(prompt))
        self.announce(prompt)
        self.hand_over(prompt)

    def fail(self, prompt: Prompt, detail: str) -> None:
        """The gateway is told again until its End."""
        prompt.failure = detail
        prompt.on(Event.BROKEN)
        self._free(prompt)
        self.note(prompt, "failed", {"detail": detail})
        self.send(prompt.gateway, failed(prompt))

    def end(self, prompt: Prompt) -> None:
        """The gateway wants no more of it."""
        if prompt.phase in (Phase.WAITING, Phase.FETCHING, Phase.RUNNING):
            self.note(prompt, "aborted", {"computed_tokens": prompt.done})
        self._retire(prompt, Event.ENDED)

    def _retire(self, prompt: Prompt, event: Event) -> None:
        """Whatever ended it: its pages and its lease come back here, and it is forgotten."""
        prompt.on(event)
        if prompt.ticket is not None:
            self._actions.append(Cancel(prompt.ticket))
        self._free(prompt)
        del self._live[prompt.transfer]
        self.queue.remove(prompt)

    def _free(self, prompt: Prompt) -> None:
        self._leases.end(prompt.key)
        self._compute.give_back(prompt)

    def check(self) -> None:
        """Raise InvariantBroken unless every hold on a page has a holder that is known here."""
        if set(map(id, self.queue)) != set(map(id, self._live.values())):
            raise InvariantBroken(f"{len(self.queue)} prompts in line, {len(self._live)} live")
        wanted = {h for p in self.queue if p.wants for h in p.hashes[: p.reusable]}
        if len(wanted) != self._compute.pool.n_wants:
            raise InvariantBroken(f"{len(wanted)} pages wanted, not {self._compute.pool.n_wants}")
        readable = (p for p in self.queue if p.accept is not None)
        self._leases.check({p.key: p.pages for p in readable})
        own = (page for prompt in self.queue for page in prompt.pages)
        self._compute.pool.check_holds([*own, *self._leases.held_pages()])
