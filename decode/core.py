"""The decode worker's decisions: `DecodeCore.step(now, events) -> Decision`.

Takes transfers from gateways, sets room aside, pulls their pages while prefill still computes,
batches all sequences into one pass a step, and sends tokens straight to the gateways, which it
keeps until they are acknowledged. It can compute prompts itself. It never opens an attempt and
never changes path on its own.
"""

from collections.abc import Iterator, Sequence

from common.engine.events import (
    Decision,
    Drain,
    Event,
    Launch,
    PeerBarred,
    PeerDown,
    PeerUp,
    Received,
    StepDone,
    StepFailed,
    TicketFinal,
)
from common.engine.lengths import Lengths
from common.engine.refusal import DRAINING, Refusal
from common.engine.reports import Load, Peers, Pulse, Snapshots
from common.errors import InvariantBroken
from common.ids import InstanceId, Role, TicketId
from common.kv.host import HostMemory
from common.kv.pages import PagePool
from common.messages import (
    AnyMessage,
    End,
    Expect,
    FailureKind,
    Gone,
    Handoff,
    Heartbeat,
    Limits,
    Listed,
    PagesReady,
    Release,
    ResetPrefixCache,
    Resync,
    TokensAck,
)
from decode.compute import Compute, DecodeOptions
from decode.forecast import Foresight
from decode.holds import Holds
from decode.intake import Intake
from decode.outgoing import Outgoing, line
from decode.scheduler import refusal
from decode.state import ARRIVING, Key, Phase, Sample, step_fence
from decode.steps import Steps
from decode.transfers import Transfers


class DecodeCore:
    """Single owner of a decode worker's state. Deterministic: same events, same actions."""

    def __init__(
        self,
        limits: Limits,
        pool: PagePool,
        options: DecodeOptions,
        foresight: Foresight | None = None,
        host: HostMemory | None = None,
    ) -> None:
        """`foresight`: of output lengths; None: they are learnt as they end. `host`: where pages
        of sequences that give way may be kept."""
        self._limits = limits
        self._pool = pool
        self._peers = Peers(options.heartbeat_s)
        self._outgoing = Outgoing()
        foresight = foresight or Lengths()
        fingerprint = options.fingerprint if options.enable_prefix_caching else None
        self._holds = Holds(limits, pool, foresight, host, fingerprint)
        self._compute = Compute(limits, self._holds, options, foresight)
        self._intake = Intake(
            self._compute, self._outgoing, self._peers, page_tokens=limits.page_tokens
        )
        self._transfers = Transfers(self._compute, self._intake, self._outgoing)
        self._draining = False
        self._pulse = Pulse()
        self._steps = Steps(self._pulse, plan_ahead=options.plan_ahead)
        self._snapshots = Snapshots(pool, self._pulse)
        self._was_idle = True
        self.stale_messages = 0

    @property
    def idle(self) -> bool:
        """Nothing is owed to anybody: a draining process may exit."""
        moving = not (self._intake.idle and self._holds.spills.idle)
        return not self._transfers and self._steps.idle and not moving

    @property
    def batch_changes(self) -> bool:
        """Whoever repeats a pass (`PassPlan.repeats`) should let the running one be the last."""
        return self._compute.batch_changes

    def step(self, now: float, events: Sequence[Event]) -> Decision:
        """Take the events in; decide. Never raises for what a peer sent."""
        self._holds.spills.now = now
        for event in events:
            self._take(event, now)
        self._intake.admit(now)
        self._intake.fetch_waiting()
        self._intake.knock(now)
        while self._may_plan(now) and self._launch(now):
            pass
        if events:
            self._snapshots.touch(now)
        self._report(now)
        for action in self._holds.spills.drain():
            self._outgoing.act(action)
        return Decision(self._outgoing.drain(), self._wake_at())

    # --- events ------------------------------------------------------------------------------

    def _take(self, event: Event, now: float) -> None:
        match event:
            case Received(sender, message):
                self._receive(sender, message, now)
            case StepDone() | StepFailed():
                self._step_final(event, now)
            case TicketFinal(ticket, ok, detail):
                self._ticket_final(ticket, detail, ok=ok)
            case PeerUp():
                self._peer_up(event, now)
            case PeerDown(instance):
                self._peer_down(instance)
            case PeerBarred(instance, detail):
                self._cut_off(instance, detail)
            case Drain():
                self._draining = True

    def _receive(self, sender: InstanceId, message: AnyMessage, now: float) -> None:
        match message:
            case Expect():
                self._expect(sender, message, now)
            case End():
                self._ended(message)
            case TokensAck():
                self._acknowledged(sender, message)
            case PagesReady() | Handoff():
                self._from_prefill(sender, message)
            case Gone():
                self._gone(sender, message)
            case Heartbeat():
                self._digest(sender, message)
            case Resync():
                self._snapshots.add(sender, now)
            case ResetPrefixCache():
                self._outgoing.send(sender, self._snapshots.reset(message))
            case _:  # who lives is the shell's to know; the rest is not said to decode
                pass

    def _ticket_final(self, ticket: TicketId, detail: str, *, ok: bool) -> None:
        if self._holds.spills.knows(ticket):
            resumed = self._holds.copied(ticket, ok=ok)
            if resumed is not None:
                self._outgoing.note(resumed.transfer, "resumed", sample=resumed.number)
            return
        broken = self._intake.ticket_final(ticket, ok=ok)
        if broken is not None:
            self._transfers.fail(broken, FailureKind.TRANSFER, detail)

    def _expect(self, gateway: InstanceId, request: Expect, now: float) -> None:
        known = self._transfers.get(request.transfer)
        if known is not None and known.request.attempt > request.attempt:
            self.stale_messages += 1
            return
        if known is not None and known.request.attempt < request.attempt:
            self._transfers.end(known)
            known = None
        if known is None:
            queued = tuple(self._intake.queued.values())
            reason = refusal(request, queued, self._limits, self._pulse.step_s)
            if self._draining and (reason is None or reason.retry_after_s is not None):
                reason = DRAINING
            reason = reason or self._compute.first_tokens.refusal(request, queued, now)
            if reason is not None:
                self._refuse(gateway, request, reason)
                return
            known = self._transfers.queue(gateway, request)
        self._outgoing.accepted(known)
        self._outgoing.failed(known)

    def _refuse(self, gateway: InstanceId, request: Expect, reason: Refusal) -> None:
        self._outgoing.send(gateway, reason.message(request.transfer, request.attempt))

    def _ended(self, message: End) -> None:
        transfer = self._transfers.get(message.transfer)
        if transfer is not None and transfer.request.attempt <= message.attempt:
            self._compute.no_longer_wanted(transfer)
            self._transfers.end(transfer)

    def _acknowledged(self, sender: InstanceId, message: TokensAck) -> None:
        for ack in message.acks:
            transfer = self._transfers.asked_by(sender, (ack.transfer, ack.attempt))
            if transfer is None:
                continue
            for sample in transfer.samples:
                if sample.number == ack.sample:
                    self._outgoing.acknowledge(sample, ack.next_index)

    def _from_prefill(self, sender: InstanceId, message: PagesReady | Handoff) -> None:
        """Prefill speaks only of what was accepted: what is not known here was forgotten."""
        transfer = self._transfers.read_from(sender, (message.transfer, message.attempt))
        if transfer is None or transfer.phase not in ARRIVING:
            self.stale_messages += 1
            release = Release(transfer=message.transfer, attempt=message.attempt)
            self._outgoing.send(sender, release)
        elif isinstance(message, PagesReady):
            self._intake.pages_ready(transfer, message)
        elif transfer.phase is not Phase.HANDED:
            wrong = self._intake.handoff(transfer, message)
            if wrong is not None:
                self._transfers.fail(transfer, FailureKind.TRANSFER, wrong)
            else:
                self._transfers.finish_if_said(transfer)

    def _gone(self, sender: InstanceId, message: Gone) -> None:
        key = (message.transfer, message.attempt)
        known = self._transfers.asked_by(sender, key)
        if known is not None:
            self._transfers.end(known)
            return
        transfer = self._transfers.read_from(sender, key)
        if transfer is not None and transfer.phase is Phase.PULLING:
            self._transfers.fail(
                transfer, FailureKind.PREFILL_LOST, "the prefill side has forgotten it"
            )

    def _peer_up(self, event: PeerUp, now: float) -> None:
        instance = event.hello.peer.instance
        self._peers.up(event.hello, now)
        if self._peers.is_gateway(instance):
            self._snapshots.add(instance, now)
        self._intake.peer_up(instance, now)

    def _cut_off(self, prefill: InstanceId, detail: str) -> None:
        for transfer in self._intake.cut_off(prefill):
            self._transfers.fail(transfer, FailureKind.TRANSFER, detail)

    def _peer_down(self, instance: InstanceId) -> None:
        """The gateway is told: for it, a prefill side that is only silent here is alive."""
        self._peers.down(instance)
        self._snapshots.drop(instance)
        self._cut_off(instance, f"{instance} is silent")
        for transfer in self._transfers.of_gateway(instance):
            self._transfers.end(transfer)
        self._outgoing.drop(instance)

    # --- digests -----------------------------------------------------------------------------

    def _digest(self, sender: InstanceId, heartbeat: Heartbeat) -> None:
        """What the peer lists, against what is here: every difference is resolved by rule."""
        listed = {(row.transfer, row.attempt): row for row in heartbeat.transfers}
        hello = self._peers.get(sender)
        if hello is None:
            return
        if hello.peer.role is Role.GATEWAY:
            self._outgoing.credit(sender, heartbeat.credit_tokens)
            self._digest_of_gateway(sender, listed)
        else:
            self._digest_of_prefill(sender, listed)

    def _digest_of_gateway(self, gateway: InstanceId, listed: dict[Key, Listed]) -> None:
        for transfer in self._transfers.of_gateway(gateway):
            row = listed.pop(transfer.key, None)
            if row is None:
                self._transfers.end(transfer)
                continue
            self._outgoing.failed(transfer)
            had = dict(row.next_index)
            for sample in transfer.samples:
                if sample.number in had:
                    self._outgoing.listed(sample, had[sample.number])
        for transfer, attempt in listed:
            self._outgoing.send(gateway, Gone(transfer=transfer, attempt=attempt))

    def _digest_of_prefill(self, prefill: InstanceId, listed: dict[Key, Listed]) -> None:
        for key in listed:
            transfer = self._transfers.read_from(prefill, key)
            if transfer is None:
                self._outgoing.send(prefill, Release(transfer=key[0], attempt=key[1]))
            elif transfer.released:
                self._outgoing.release(transfer, again=True)

    # --- passes ------------------------------------------------------------------------------

    def _may_plan(self, now: float) -> bool:
        steps = self._steps
        return steps.idle or (steps.may_plan(now) and not self._compute.short)

    def _launch(self, now: float) -> bool:
        """Plan the next pass. False: nothing can run, not yet at least."""
        credit = self._outgoing.credit_left(self._steps.unread())
        work = self._compute.compose(credit, self._steps.next, ahead=not self._steps.idle)
        for gave in self._holds.take_preempted():
            fields = {"sample": gave.sample.number, "how": gave.how, "pages": gave.n_pages}
            self._outgoing.note(gave.sample.transfer, "preempted", **fields)
        self._steps.launched(work, now)
        if work is not None:
            self._outgoing.act(Launch(work.step, work.plan))
        return work is not None

    def _step_final(self, event: StepDone | StepFailed, now: float) -> None:
        work = self._steps.final(event, now)
        if isinstance(event, StepDone):
            self._holds.spills.computed(work.plan.n_rows, event.result.seconds)
            for sample in self._compute.commit(work, event.result):
                self._say(sample, now)
        else:  # what it wrote was not published, and is not going to be
            self._transfers.fail_pass(work, event.detail)
        self._pool.fence_final(step_fence(event.step))

    def _say(self, sample: Sample, now: float) -> None:
        transfer = sample.transfer
        if transfer.request.prefill is None and sample.sent == sample.first_index:
            self._compute.first_tokens.came(transfer, now)
            self._outgoing.note(transfer, "context_end", cached_tokens=transfer.cached or 0)
            self._outgoing.note(transfer, "decoding_begin", sample=sample.number)
        self._outgoing.deliver(sample)
        if sample.finish is not None:
            self._transfers.finish_if_said(transfer)

    # --- the timer ---------------------------------------------------------------------------

    def _report(self, now: float) -> None:
        for peer in self._peers.owed(now):
            beat = self._snapshots.beat(peer, self._lines(peer), now)
            self._outgoing.send(peer, beat)
            self._peers.beaten(peer, now, busy=bool(beat.transfers))
        is_idle = not (self._holds.active or self._holds.claims.arriving)
        if self._was_idle and not is_idle:
            self._snapshots.due = now
        self._was_idle = is_idle
        if self._snapshots.due is not None and now >= self._snapshots.due:
            for gateway, snapshot in self._snapshots.take(now, self._load()):
                self._outgoing.send(gateway, snapshot)

    def _lines(self, peer: InstanceId) -> tuple[Listed, ...]:
        """The digest of what is shared with that peer; to a prefill side it renews the leases."""
        if self._peers.is_gateway(peer):
            return tuple(line(t, to_gateway=True) for t in self._transfers.of_gateway(peer))
        reads = (t for t in self._transfers.all if self.reads(peer, t.key))
        return tuple(line(t, to_gateway=False) for t in reads)

    def _load(self) -> Load:
        holds = self._holds
        local = [t for t in self._intake.queued.values() if t.request.prefill is None]
        to_compute = sum(t.n_tokens for t in local)
        to_compute += sum(
            s.n_tokens - s.table.n_kv - 1
            for s in (*holds.active, *holds.waiting)
            if s.spilled is None
        )
        return Load(
            running=holds.claims.room().n_seqs,
            waiting=len(self._intake.queued) + len(holds.waiting),
            queued_tokens=to_compute,
        )

    def _wake_at(self) -> float | None:
        plan_at = None if self._compute.short else self._steps.wake_at
        times = (self._peers.next_due, self._snapshots.due, self._intake.wake_at, plan_at)
        return min((at for at in times if at is not None), default=None)

    def held(self) -> Iterator[tuple[Key, InstanceId]]:
        """What is here, and for which gateway."""
        return ((t.key, t.gateway) for t in self._transfers.all)

    def reads(self, prefill: InstanceId, key: Key) -> bool:
        """Whether it still wants its lease there."""
        transfer = self._transfers.read_from(prefill, key)
        return transfer is not None and not transfer.released

    def check(self) -> None:
        """Raise InvariantBroken unless the laws hold. O(pages + samples): for tests."""
        transfers = self._transfers.all
        if any(t.gateway not in self._peers for t in transfers):
            raise InvariantBroken("something is held for a gateway that is gone")
        samples = [sample for transfer in transfers for sample in transfer.samples]
        pages = [page for transfer in transfers for page in transfer.pages]
        pages += [page for sample in samples for page in sample.table.pages]
        self._pool.check_holds(pages)
        self._holds.check()
        self._intake.check()
        self._holds.spills.check(samples)
        self._steps.check(samples)
        self._outgoing.check(transfers)
