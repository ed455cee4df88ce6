"""The prefill worker's decisions: `PrefillCore.step(now, events) -> Decision`.

Takes prompts from gateways, computes them in chunks batched with others, announces finished pages
to the decode side that has accepted, draws the first token, and hands over. It never opens an
attempt, never changes path on its own, and says nothing to decode before its Accept.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from common.engine.events import (
    Action,
    Cancel,
    Decision,
    Drain,
    Event,
    Note,
    PeerDown,
    PeerUp,
    Received,
    Send,
    StepDone,
    StepFailed,
    TicketFinal,
)
from common.engine.reports import Load, Peers, Pulse, Snapshots
from common.ids import InstanceId, Role, TicketId, TransferId
from common.kv.pages import PagePool
from common.messages import (
    Accept,
    Accepted,
    AnyMessage,
    End,
    Gone,
    Heartbeat,
    Limits,
    Listed,
    Prefill,
    Refused,
    Release,
    Resync,
)
from common.messages import Phase as WirePhase
from prefill.compute import Compute, check_holds
from prefill.handoff import Key, Leases
from prefill.outgoing import failed, first_tokens, handoff, line, pages_ready
from prefill.passes import Passes
from prefill.scheduler import Refusal, due_at, refusal
from prefill.state import Event as Moved
from prefill.state import Phase, Prompt

DRAIN_RETRY_S = 1.0
EARLY_ACCEPTS = 1024  # Accepts that overtook their Prefill; their senders repeat them anyway


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillOptions:
    """What the operator set for this worker, beside its limits."""

    fingerprint: str  # of the model: the root of every page's name
    chunk_tokens: int
    enable_prefix_caching: bool = True


class PrefillCore:
    """Single owner of a prefill worker's state. Deterministic: same events, same actions."""

    def __init__(self, limits: Limits, pool: PagePool, options: PrefillOptions) -> None:
        self._limits = limits
        self._pool = pool
        self._compute = Compute(
            pool,
            page_tokens=limits.page_tokens,
            max_model_len=limits.max_model_len,
            fingerprint=options.fingerprint,
            cache=options.enable_prefix_caching,
        )
        self._leases = Leases(pool)
        self._prompts: dict[TransferId, Prompt] = {}
        self._early: OrderedDict[tuple[Key, InstanceId], Accept] = OrderedDict()
        self._peers = Peers()
        self._draining = False
        self._pulse = Pulse()
        self._passes = Passes(
            self._compute, limits, self._peers, self._pulse, chunk_tokens=options.chunk_tokens
        )
        self._snapshots = Snapshots(pool, self._pulse)
        self._actions: list[Action] = []
        self.stale_messages = 0

    @property
    def idle(self) -> bool:
        """Nothing is owed to anybody: a draining process may exit."""
        return not self._prompts and self._passes.idle

    def step(self, now: float, events: Sequence[Event]) -> Decision:
        """Take the events in; decide. Never raises for what a peer sent."""
        for event in events:
            self._take(event, now)
        self._launch(now)
        if events:
            self._snapshots.touch(now)
        self._report(now)
        actions, self._actions = tuple(self._actions), []
        return Decision(actions, self._wake_at(now))

    # --- events ------------------------------------------------------------------------------

    def _take(self, event: Event, now: float) -> None:
        match event:
            case Received(sender, message):
                self._receive(sender, message, now)
            case StepDone() | StepFailed():
                self._step_final(event, now)
            case TicketFinal(ticket, ok, _):
                self._ticket_final(ticket, ok=ok)
            case PeerUp(hello):
                self._peers.up(hello, now)
                if hello.peer.role is Role.GATEWAY:
                    self._snapshots.add(hello.peer.instance, now)
            case PeerDown(instance):
                self._peer_down(instance)
            case Drain():
                self._draining = True
            case _:  # PeerBarred: decode reports it, it is the side that knocks
                pass

    def _receive(self, sender: InstanceId, message: AnyMessage, now: float) -> None:
        match message:
            case Prefill():
                self._prefill(sender, message, now)
            case Accept():
                self._accept(sender, message)
            case Release(transfer=transfer, attempt=attempt):
                self._release((transfer, attempt), sender)
            case End(transfer=transfer, attempt=attempt):
                prompt = self._prompts.get(transfer)
                if prompt is not None and prompt.attempt <= attempt:
                    self._end(prompt)
            case Heartbeat():
                self._digest(sender, message)
            case Resync():
                self._snapshots.add(sender, now)
            case _:  # Gone: what decode has forgotten it releases; acks: decode keeps the tokens
                pass

    def _prefill(self, gateway: InstanceId, request: Prefill, now: float) -> None:
        known = self._prompts.get(request.transfer)
        if known is not None and known.attempt > request.attempt:
            self.stale_messages += 1
            return
        if known is not None and known.attempt < request.attempt:
            self._end(known)
            known = None
        answer = Accepted(transfer=request.transfer, attempt=request.attempt)
        if known is None:
            outputs = request.samples[0].outputs
            tokens = (*request.prompt, *outputs)
            waiting = [p.remaining for p in self._prompts.values() if p.phase is Phase.WAITING]
            reason = refusal(len(tokens), waiting, self._limits, self._pulse.tokens_per_s)
            if reason is None and self._draining:
                reason = Refusal("draining", DRAIN_RETRY_S)
            if reason is not None:
                self._send(
                    gateway,
                    Refused(
                        transfer=request.transfer,
                        attempt=request.attempt,
                        reason=reason.text,
                        retry_after_s=reason.retry_after_s,
                    ),
                )
                return
            hashes, reusable = self._compute.names(request, tokens)
            prompt = Prompt(
                request=request,
                gateway=gateway,
                arrived=now,
                due=due_at(now, len(tokens), request.deadline_s),
                tokens=tokens,
                hashes=hashes,
                reusable=reusable,
            )
            self._prompts[request.transfer] = prompt
            self._note(prompt, "queued", {"prompt_tokens": len(tokens)})
            accept = self._early.pop((prompt.key, request.decode), None)
            if accept is not None:
                self._accept(request.decode, accept)
        self._send(gateway, answer)

    def _accept(self, sender: InstanceId, accept: Accept) -> None:
        key = (accept.transfer, accept.attempt)
        prompt = self._prompts.get(accept.transfer)
        if prompt is None or prompt.attempt < accept.attempt:  # it has overtaken its Prefill
            self._early[(key, sender)] = accept
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
        self._announce(prompt, answer=True)

    def _release(self, key: Key, sender: InstanceId) -> None:
        prompt = self._prompts.get(key[0])
        lease = self._leases.get(key)
        if lease is not None and lease.reader == sender:
            self._leases.end(key)
        for early in [e for e in self._early if e == (key, sender)]:
            del self._early[early]
        if prompt is None or prompt.key != key or prompt.request.decode != sender:
            return
        prompt.accept = None
        if prompt.phase is Phase.COMPUTED:
            self._retire(prompt, Moved.RELEASED)

    def _peer_down(self, instance: InstanceId) -> None:
        self._peers.down(instance)
        self._snapshots.drop(instance)
        for early in [e for e in self._early if e[1] == instance]:
            del self._early[early]
        for key in self._leases.end_reader(instance):
            self._prompts[key[0]].accept = None
        for prompt in [p for p in self._prompts.values() if p.gateway == instance]:
            self._end(prompt)

    def _digest(self, sender: InstanceId, heartbeat: Heartbeat) -> None:
        """What the peer lists, against what is here: every difference is resolved by rule."""
        if sender not in self._peers:
            return
        listed = {(row.transfer, row.attempt): row for row in heartbeat.transfers}
        if self._peers.is_gateway(sender):
            self._digest_of_gateway(sender, listed)
        else:
            self._digest_of_decode(sender, listed)
        for transfer, attempt in listed:
            known = transfer in self._prompts or ((transfer, attempt), sender) in self._early
            if not known:
                self._send(sender, Gone(transfer=transfer, attempt=attempt))

    def _digest_of_gateway(self, sender: InstanceId, listed: dict[Key, Listed]) -> None:
        for prompt in [p for p in self._prompts.values() if p.gateway == sender]:
            row = listed.get(prompt.key)
            if row is None:
                self._end(prompt)
            elif prompt.phase is Phase.FAILED:
                self._send(sender, failed(prompt))
            elif prompt.handed:
                had = dict(row.next_index)
                behind = any(had.get(r.sample, 0) <= len(r.outputs) for r in prompt.request.samples)
                if behind and prompt.seen_behind:  # twice: it was not merely on its way
                    self._send(sender, first_tokens(prompt))
                prompt.seen_behind = behind

    def _digest_of_decode(self, sender: InstanceId, listed: dict[Key, Listed]) -> None:
        for key in self._leases.end_unlisted(sender, set(listed)):
            self._release(key, sender)
        for key, row in listed.items():
            if row.phase is WirePhase.ACCEPTED and self._leases.reader(key) == sender:
                self._hand_over(self._prompts[key[0]])

    # --- passes ------------------------------------------------------------------------------

    def _launch(self, now: float) -> None:
        started, actions = self._passes.launch(self._prompts.values(), now)
        self._actions += actions
        for prompt in started:
            self._note(prompt, "context_begin", {"cached_tokens": prompt.cached})
            self._announce(prompt, answer=False)

    def _ticket_final(self, ticket: TicketId, *, ok: bool) -> None:
        prompt = self._passes.ticket_final(ticket, ok=ok)
        if prompt is not None:
            self._announce(prompt, answer=False)

    def _step_final(self, event: StepDone | StepFailed, now: float) -> None:
        for prompt in self._passes.step_final(event, now):
            if isinstance(event, StepDone):
                self._advance(prompt)
            else:
                self._fail(prompt, event.detail)

    def _advance(self, prompt: Prompt) -> None:
        """A chunk is done: announce its pages; after the last one hand over."""
        if not prompt.handed:
            self._announce(prompt, answer=False)
            return
        self._note(prompt, "context_end", {"cached_tokens": prompt.cached})
        if all(token.finish is not None for token in prompt.handed):
            prompt.on(Moved.ANSWERED)
            self._free(prompt)
        else:
            prompt.on(Moved.COMPUTED)
        self._send(prompt.gateway, first_tokens(prompt))
        if prompt.phase is Phase.COMPUTED and prompt.accept is not None:
            self._announce(prompt, answer=False)
            self._hand_over(prompt)

    def _fail(self, prompt: Prompt, detail: str) -> None:
        prompt.failure = detail
        prompt.on(Moved.BROKEN)
        self._free(prompt)
        self._note(prompt, "failed", {"detail": detail})
        self._send(prompt.gateway, failed(prompt))

    # --- what leaves -------------------------------------------------------------------------

    def _announce(self, prompt: Prompt, *, answer: bool) -> None:
        """Tell decode of pages that are final. `answer`: say so even if there is no news."""
        lease = self._leases.get(prompt.key)
        if lease is None:
            return
        if prompt.phase is Phase.COMPUTED:
            n_final = len(prompt.pages)
        else:
            n_final = prompt.done // self._limits.page_tokens
        news = self._leases.announce(prompt.key, prompt.pages, n_final)
        if news:
            self._note(prompt, "pages_ready", {"pages": n_final, "tokens": prompt.done})
        if prompt.phase is Phase.COMPUTED and answer:
            self._hand_over(prompt)
        elif answer or (news and prompt.phase is not Phase.COMPUTED):
            self._send(lease.reader, pages_ready(prompt, lease))

    def _hand_over(self, prompt: Prompt) -> None:
        lease = self._leases.get(prompt.key)
        if lease is not None and prompt.phase is Phase.COMPUTED:
            self._send(lease.reader, handoff(prompt, lease))

    def _send(self, peer: InstanceId, message: AnyMessage) -> None:
        self._actions.append(Send(peer, message))

    def _note(self, prompt: Prompt, name: str, fields: dict[str, int | float | str]) -> None:
        self._actions.append(Note(prompt.transfer, prompt.attempt, name, fields))

    # --- the exits ---------------------------------------------------------------------------

    def _end(self, prompt: Prompt) -> None:
        if prompt.phase in (Phase.WAITING, Phase.FETCHING, Phase.RUNNING):
            self._note(prompt, "aborted", {"computed_tokens": prompt.done})
        self._retire(prompt, Moved.ENDED)

    def _retire(self, prompt: Prompt, moved: Moved) -> None:
        """Whatever ended it: its pages and its lease come back here, and it is forgotten."""
        prompt.on(moved)
        if prompt.ticket is not None:
            self._actions.append(Cancel(prompt.ticket))
        self._free(prompt)
        del self._prompts[prompt.transfer]

    def _free(self, prompt: Prompt) -> None:
        self._leases.end(prompt.key)
        self._compute.give_back(prompt)

    # --- the timer ---------------------------------------------------------------------------

    def _report(self, now: float) -> None:
        for peer in self._peers.owed(now):
            lines = self._lines(peer)
            self._send(peer, Heartbeat(transfers=lines, progress=self._pulse.progress(now)))
            self._peers.beaten(peer, now, busy=bool(lines))
        due = self._snapshots.due
        if due is not None and now >= due:
            for gateway, snapshot in self._snapshots.take(now, self._load()):
                self._send(gateway, snapshot)

    def _load(self) -> Load:
        prompts = self._prompts.values()
        waiting = [p for p in prompts if p.phase is Phase.WAITING]
        computing = [p for p in prompts if p.phase in (Phase.FETCHING, Phase.RUNNING)]
        return Load(
            running=len(computing),
            waiting=len(waiting),
            queued_tokens=sum(p.remaining for p in (*waiting, *computing)),
        )

    def _lines(self, peer: InstanceId) -> tuple[Listed, ...]:
        """The digest of what is shared with that peer."""
        if self._peers.is_gateway(peer):
            return tuple(line(p) for p in self._prompts.values() if p.gateway == peer)
        read = (p for p in self._prompts.values() if self._leases.reader(p.key) == peer)
        return tuple(line(p) for p in read)

    def _wake_at(self, now: float) -> float | None:
        wait = self._passes.wake_at(self._prompts.values(), now)
        times = (self._peers.next_due, self._snapshots.due, wait)
        return min((at for at in times if at is not None), default=None)

    def check(self) -> None:
        """Raise InvariantBroken unless every held page has a holder that this core knows."""
        own = (page for prompt in self._prompts.values() for page in prompt.pages)
        check_holds(self._pool, [*own, *self._leases.held_pages()])
