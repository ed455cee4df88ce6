"""The prefill worker's decisions: `PrefillCore.step(now, events) -> Decision`.

Takes prompts from gateways, computes them in chunks batched with others, announces finished pages
to the decode side that has accepted, draws the first token, and hands over. It never opens an
attempt, never changes path on its own, and says nothing to decode before its Accept.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from common.engine.events import (
    Decision,
    Drain,
    Event,
    PeerDown,
    PeerUp,
    Received,
    StepDone,
    StepFailed,
    TicketFinal,
)
from common.engine.misjudged import Misjudged
from common.engine.priority import is_full
from common.engine.refusal import DRAINING, Refusal
from common.engine.reports import HEARTBEAT_BUSY_S, Load, Peers, Pulse, Snapshots
from common.errors import InvariantBroken
from common.ids import InstanceId, Role, TicketId
from common.kv.pages import PagePool
from common.messages import (
    Accept,
    Accepted,
    AnyMessage,
    End,
    Heartbeat,
    Limits,
    Listed,
    Prefill,
    Release,
    ResetPrefixCache,
    Resync,
)
from prefill.admission import predicted, refusal, too_late, ttft_s
from prefill.compute import Compute
from prefill.handoff import Key
from prefill.outgoing import failed, first_tokens, line
from prefill.passes import Passes
from prefill.scheduler import due_at
from prefill.state import Phase, Prompt
from prefill.transfers import Transfers


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillOptions:
    """What the operator set for this worker, beside its limits."""

    fingerprint: str  # of the model: the root of every page's name
    chunk_tokens: int
    enable_prefix_caching: bool = True
    plan_ahead: bool = False  # the next pass, while one is computed
    heartbeat_s: float = HEARTBEAT_BUSY_S


class PrefillCore:
    """Single owner of a prefill worker's state. Deterministic: same events, same actions."""

    def __init__(self, limits: Limits, pool: PagePool, options: PrefillOptions) -> None:
        self._limits = limits
        self._compute = Compute(
            pool,
            page_tokens=limits.page_tokens,
            max_model_len=limits.max_model_len,
            fingerprint=options.fingerprint,
            cache=options.enable_prefix_caching,
        )
        self._transfers = Transfers(self._compute)
        self._peers = Peers(options.heartbeat_s)
        self._draining = False
        self._pulse = Pulse()
        self._passes = Passes(
            self._compute,
            limits,
            self._peers,
            self._pulse,
            chunk_tokens=options.chunk_tokens,
            plan_ahead=options.plan_ahead,
        )
        self._snapshots = Snapshots(pool, self._pulse)
        self._misjudged = Misjudged()

    @property
    def idle(self) -> bool:
        """Nothing is owed to anybody: a draining process may exit."""
        return not self._transfers and self._passes.idle

    @property
    def stale_messages(self) -> int:
        """Of older attempts, and dropped."""
        return self._transfers.stale_messages

    def step(self, now: float, events: Sequence[Event]) -> Decision:
        """Take the events in; decide. Never raises for what a peer sent."""
        for event in events:
            self._take(event, now)
        self._launch(now)
        if events:
            self._snapshots.touch(now)
        self._report(now)
        return Decision(self._transfers.drain(), self._wake_at(now))

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
                self._transfers.accept(sender, message)
            case Release(transfer=transfer, attempt=attempt):
                self._transfers.release((transfer, attempt), sender)
            case End(transfer=transfer, attempt=attempt):
                prompt = self._transfers.get(transfer)
                if prompt is not None and prompt.attempt <= attempt:
                    self._transfers.end(prompt)
            case Heartbeat():
                self._digest(sender, message)
            case Resync():
                self._snapshots.add(sender, now)
            case ResetPrefixCache():
                self._transfers.send(sender, self._snapshots.reset(message))
            case _:  # Gone: what decode has forgotten it releases; acks: decode keeps the tokens
                pass

    def _prefill(self, gateway: InstanceId, request: Prefill, now: float) -> None:
        known = self._transfers.get(request.transfer)
        if known is not None and known.attempt > request.attempt:
            self._transfers.stale_messages += 1
            return
        if known is not None and known.attempt < request.attempt:
            self._transfers.end(known)
            known = None
        if known is None:
            tokens = (*request.prompt, *request.samples[0].outputs)
            refused = self._refusal(len(tokens), request)
            if refused is not None:
                self._refuse(gateway, request, refused)
                return
            prompt = self._prompt(gateway, request, tokens, now)
            late = self._too_late(prompt, now)
            if late is not None:
                self._refuse(gateway, request, late)
                return
            if request.refuse_if_late and request.deadline_s is not None:
                self._passes.pace.heed(request.deadline_s, now)
            self._transfers.add(prompt)
        answer = Accepted(transfer=request.transfer, attempt=request.attempt)
        self._transfers.send(gateway, answer)

    def _refusal(self, n_tokens: int, request: Prefill) -> Refusal | None:
        queued = [p for p in self._transfers.all if p.phase is Phase.WAITING]
        full = is_full(
            request.priority,
            [p.request.priority for p in queued],
            self._limits.max_waiting,
            recovering=request.recovering,
        )
        waiting, rate = [p.remaining for p in queued], self._pulse.tokens_per_s
        reason = refusal(n_tokens, waiting, self._limits, rate, full=full)
        if reason is None and self._draining:
            return DRAINING
        return reason

    def _refuse(self, gateway: InstanceId, request: Prefill, reason: Refusal) -> None:
        self._transfers.send(gateway, reason.message(request.transfer, request.attempt))

    def _prompt(
        self, gateway: InstanceId, request: Prefill, tokens: tuple[int, ...], now: float
    ) -> Prompt:
        hashes, reusable = self._compute.names(request, tokens)
        return Prompt(
            request=request,
            gateway=gateway,
            arrived=now,
            due=due_at(now, len(tokens), request.deadline_s, request.priority),
            tokens=tokens,
            hashes=hashes,
            reusable=reusable,
        )

    def _too_late(self, prompt: Prompt, now: float) -> Refusal | None:
        """Whoever was promised an answer is served, however late."""
        deadline_s = prompt.request.deadline_s
        if deadline_s is None or not prompt.request.refuse_if_late:
            return None
        page_tokens, pace = self._limits.page_tokens, self._passes.pace
        cached_pages = min(prompt.request.decode_cached_tokens // page_tokens, prompt.reusable)
        n_cached = page_tokens * max(cached_pages, len(self._compute.found(prompt)))
        n_tokens = len(prompt.tokens) - n_cached
        limit = pace.limit(now, deadline_s)
        if limit is None:
            return None
        in_a_pass = min(n_tokens, self._passes.chunk_tokens)
        if not pace.is_known(in_a_pass, limit.cost.tokens(0, limit.pass_s)):
            return None
        if limit.pass_s + 2 * limit.cost.seconds(n_cached, n_tokens) <= deadline_s:
            pace.heed(deadline_s, now)  # if it is late, then for a pass that was too long
        prediction = predicted(self._transfers.all, prompt.due, n_cached, n_tokens, limit.cost)
        prompt.predicted_s = ttft_s(prediction, pace.rest_s(now), limit.pass_s)
        within_s = self._misjudged.within(deadline_s, now)
        return too_late(prediction, prompt.predicted_s, deadline_s, within_s)

    def _first_token(self, prompt: Prompt, now: float) -> None:
        deadline_s = prompt.request.deadline_s
        if prompt.predicted_s is not None and deadline_s:
            took_s = now - prompt.arrived
            self._misjudged.learn(
                predicted_s=prompt.predicted_s, took_s=took_s, owed_s=deadline_s, now=now
            )

    def _peer_down(self, instance: InstanceId) -> None:
        self._peers.down(instance)
        self._snapshots.drop(instance)
        self._transfers.peer_down(instance)

    # --- digests -----------------------------------------------------------------------------

    def _digest(self, sender: InstanceId, heartbeat: Heartbeat) -> None:
        """What the peer lists, against what is here: every difference is resolved by rule."""
        if sender not in self._peers:
            return
        listed = {(row.transfer, row.attempt): row for row in heartbeat.transfers}
        if self._peers.is_gateway(sender):
            self._digest_of_gateway(sender, listed)
        else:
            self._transfers.listed(sender, listed)

    def _digest_of_gateway(self, sender: InstanceId, listed: dict[Key, Listed]) -> None:
        for prompt in self._transfers.of_gateway(sender):
            row = listed.get(prompt.key)
            if row is None:
                self._transfers.end(prompt)
            elif prompt.phase is Phase.FAILED:
                self._transfers.send(sender, failed(prompt))
            elif prompt.handed:
                self._tell_again(prompt, dict(row.next_index))
        for key in listed:
            if self._transfers.get(key[0]) is None:
                self._transfers.gone(sender, key)

    def _tell_again(self, prompt: Prompt, had: dict[int, int]) -> None:
        """The first tokens, if the gateway lists twice in a row that it has not got them."""
        behind = any(had.get(r.sample, 0) <= len(r.outputs) for r in prompt.request.samples)
        if behind and prompt.seen_behind:  # it was not merely on its way
            self._transfers.send(prompt.gateway, first_tokens(prompt))
        prompt.seen_behind = behind

    # --- passes ------------------------------------------------------------------------------

    def _launch(self, now: float) -> None:
        started, actions = self._passes.launch(self._transfers.queue, now)
        self._transfers.act(actions)
        for prompt in started:
            self._transfers.note(prompt, "context_begin", {"cached_tokens": prompt.cached})
            self._transfers.announce(prompt)

    def _ticket_final(self, ticket: TicketId, *, ok: bool) -> None:
        prompt = self._passes.ticket_final(ticket, ok=ok)
        if prompt is not None:
            self._transfers.announce(prompt)

    def _step_final(self, event: StepDone | StepFailed, now: float) -> None:
        for prompt in self._passes.step_final(event, now):
            if isinstance(event, StepDone):
                if prompt.handed:
                    self._first_token(prompt, now)
                self._transfers.advance(prompt)
            else:
                self._transfers.fail(prompt, event.detail)

    # --- the timer ---------------------------------------------------------------------------

    def _report(self, now: float) -> None:
        for peer in self._peers.owed(now):
            beat = self._snapshots.beat(peer, self._lines(peer), now)
            self._transfers.send(peer, beat)
            self._peers.beaten(peer, now, busy=bool(beat.transfers))
        due = self._snapshots.due
        if due is not None and now >= due:
            for gateway, snapshot in self._snapshots.take(now, self._load()):
                self._transfers.send(gateway, snapshot)

    def _load(self) -> Load:
        prompts = self._transfers.all
        waiting = [p for p in prompts if p.phase is Phase.WAITING]
        computing = [p for p in prompts if p.phase in (Phase.FETCHING, Phase.RUNNING)]
        unplanned = sum(p.remaining for p in (*waiting, *computing))
        return Load(
            running=len(computing),
            waiting=len(waiting),
            queued_tokens=unplanned + self._passes.tokens_behind,
        )

    def _lines(self, peer: InstanceId) -> tuple[Listed, ...]:
        """The digest of what is shared with that peer."""
        if self._peers.is_gateway(peer):
            return tuple(line(p) for p in self._transfers.of_gateway(peer))
        return tuple(line(p) for p in self._transfers.read_by(peer))

    def _wake_at(self, now: float) -> float | None:
        wait = self._passes.wake_at(self._transfers.queue, now)
        times = (self._peers.next_due, self._snapshots.due, wait)
        return min((at for at in times if at is not None), default=None)

    def held(self) -> Iterator[tuple[Key, InstanceId]]:
        """What is here, and for whom: prompts of gateways, leases of readers."""
        return self._transfers.held()

    def check(self) -> None:
        """Raise InvariantBroken unless every held page has a holder that this core knows, and
        everything is held for somebody who is up."""
        self._transfers.check()
        for key, owner in self._transfers.held():
            if owner not in self._peers:
                raise InvariantBroken(f"{key} is held for {owner}, who is gone")
