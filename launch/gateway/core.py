"""The gateway's decisions: `GatewayCore.step(now, events) -> GatewayDecision`.

Routes requests, opens attempts (only the gateway does), merges what workers send into exactly one
stream of tokens a sample, acknowledges them, and ends attempts. A worker's failure costs the client
a pause: the next attempt carries the prompt and the outputs that the client already has.
"""

from collections import Counter
from collections.abc import Callable, Sequence

from common.engine.events import PeerDown, PeerUp, Received
from common.engine.refusal import DRAINING
from common.engine.reports import Peers
from common.errors import InvariantBroken, Overloaded, PeerError
from common.ids import InstanceId, Role, TransferId
from common.messages import (
    Accepted,
    AnyMessage,
    End,
    Failed,
    FailureKind,
    Gone,
    Heartbeat,
    Listed,
    PeerLost,
    Refused,
    Resync,
    Snapshot,
    TokenRun,
    Tokens,
)
from common.messages import Phase as WirePhase
from launch.gateway.acks import Acks
from launch.gateway.attempts import Attempts, GatewayOptions, Outbox
from launch.gateway.events import (
    Crashed,
    Delta,
    GatewayDecision,
    GatewayEvent,
    Quit,
    Rejected,
    StopSample,
    Submit,
)
from launch.gateway.fleet import Fleet
from launch.gateway.transfers import Generate, Phase, RequestId, Sample, Transfer


class GatewayCore:
    """Single owner of the gateway's requests. Deterministic: same events, same actions."""

    def __init__(self, options: GatewayOptions, new_id: Callable[[], TransferId]) -> None:
        self._options = options
        self.fleet = Fleet(options.disaggregate)
        self._out = Outbox()
        self._attempts = Attempts(options, self.fleet, self._out, new_id)
        self._requests = self._attempts.requests
        self._transfers = self._attempts.transfers
        self._peers = Peers(options.heartbeat_s)
        self._acks = Acks()
        self.stale_messages = 0

    @property
    def idle(self) -> bool:
        return not self._requests

    @property
    def n_requests(self) -> int:
        return len(self._requests)

    def step(self, now: float, events: Sequence[GatewayEvent]) -> GatewayDecision:
        """Take the events in; decide. Never raises for what a peer or a client sent."""
        for event in events:
            self._take(event, now)
        self._attempts.time_out(now)
        for transfer in list(self._attempts.unrouted.values()):
            if transfer.phase is Phase.UNROUTED:  # a sibling's end may have ended it
                self._attempts.route(transfer, now)
        for worker, acks in self._acks.take(now):
            self._out.send(worker, acks)
        for peer in self._peers.owed(now):
            lines = self._lines(peer)
            credit = self._options.credit_tokens
            self._out.send(peer, Heartbeat(transfers=lines, credit_tokens=credit))
            self._peers.beaten(peer, now, busy=bool(lines))
        return GatewayDecision(self._out.drain(), self._wake_at())

    def _take(self, event: GatewayEvent, now: float) -> None:
        match event:
            case Submit(generate):
                self._submit(generate, now)
            case StopSample(request, sample):
                self._stop(request, sample)
            case Quit(request):
                self._quit(request)
            case Received(sender, message):
                self._receive(sender, message, now)
            case Crashed(instance):
                self._attempts.blame(instance)
            case PeerUp(hello):
                self._peers.up(hello, now)
                self.fleet.up(hello)
                for transfer in self._attempts.unrouted.values():
                    transfer.retry_at = None
            case PeerDown(instance, left):
                self._peer_down(instance, now, left=left)
            case _:  # PeerBarred: the links log it; it is not in the fleet
                pass

    # --- clients -----------------------------------------------------------------------------

    def _submit(self, generate: Generate, now: float) -> None:
        if len(self._requests) >= self._options.max_requests and not generate.promised:
            limit = self._options.max_requests
            error = Overloaded(f"requests in flight: {limit} of {limit}", retry_after_s=1.0)
            self._out.add(Rejected(generate.request, error))
            return
        transfer = self._attempts.begin(generate, now)
        self._out.note(transfer, "received", {"request": generate.request})

    def _stop(self, request_id: RequestId, number: int) -> None:
        request = self._requests.get(request_id)
        for transfer in self._attempts.of(request):
            for sample in transfer.samples:
                sample.stopped = sample.stopped or sample.sample == number
            if transfer.over:
                self._attempts.close(transfer)

    def _quit(self, request_id: RequestId) -> None:
        for transfer in self._attempts.of(self._requests.get(request_id)):
            self._attempts.close(transfer, "aborted")

    # --- workers -----------------------------------------------------------------------------

    def _receive(self, sender: InstanceId, message: AnyMessage, now: float) -> None:
        match message:
            case Tokens(runs=runs):
                for run in runs:
                    self._tokens(sender, run, now)
            case Accepted(transfer=t, attempt=a):
                self._accepted(sender, self._current(t, a))
            case Refused():
                self._refused(sender, message, now)
            case Failed():
                self._failed(sender, message, now)
            case Gone(transfer=t, attempt=a):
                self._gone(sender, self._current(t, a), now)
            case Heartbeat():
                self._digest(sender, message, now)
            case Snapshot():
                if not self.fleet.snapshot(sender, message):
                    self._out.send(sender, Resync())
                self._attempts.learn(sender, message, now)
            case _:  # Metrics, which the shell has taken
                pass

    def _current(self, transfer_id: TransferId, attempt: int) -> Transfer | None:
        """The transfer, if that attempt is on; what concerns an older one is dropped."""
        transfer = self._transfers.get(transfer_id)
        if transfer is None or transfer.attempt != attempt or transfer.phase is Phase.UNROUTED:
            self.stale_messages += 1
            return None
        return transfer

    def _accepted(self, sender: InstanceId, transfer: Transfer | None) -> None:
        if transfer is None:
            return
        transfer.awaited.discard(sender)
        if not transfer.awaited and transfer.phase is Phase.SENT:
            transfer.phase = Phase.ADMITTED
            self._attempts.admit(transfer)

    def _refused(self, sender: InstanceId, refused: Refused, now: float) -> None:
        transfer = self._current(refused.transfer, refused.attempt)
        if transfer is None:
            return
        late = transfer.late(refused)
        if refused.retry_after_s is None and late is None:
            self._attempts.reject(transfer, transfer.misfit(refused, self.fleet.limits(sender)))
            return
        avoid = transfer.avoid | {sender}
        if self._requests[transfer.generate.request].promised or refused.reason == DRAINING.text:
            elsewhere = True
        elif late is not None:
            elsewhere = self._attempts.in_time_elsewhere(transfer, now, avoid)
        else:
            elsewhere = not self._has_refused(transfer, sender)
        if elsewhere:
            self._attempts.again(transfer, now, f"refused: {refused.reason}", avoid)
        else:
            full = Overloaded(refused.reason, retry_after_s=refused.retry_after_s)
            self._attempts.reject(transfer, late or full)

    def _has_refused(self, transfer: Transfer, worker: InstanceId) -> bool:
        """That worker, or another of its role: a new request is taken elsewhere once."""
        return self.fleet.role(worker) in map(self.fleet.role, transfer.avoid)

    def _failed(self, sender: InstanceId, failed: Failed, now: float) -> None:
        transfer = self._current(failed.transfer, failed.attempt)
        if transfer is None:
            return
        avoid: frozenset[InstanceId] = frozenset()
        if failed.kind is FailureKind.TRANSFER and failed.peer is not None:
            self.fleet.bar(failed.peer, sender, now)
        if failed.kind is FailureKind.COMPUTE:
            avoid = frozenset({sender})  # the request is to blame, or the worker
            if not (failed.alone and transfer.is_suspect):
                transfer.suspect()
            elif transfer.raised():
                error = PeerError(f"the model's pass failed: {failed.detail}")
                self._attempts.reject(transfer, error)
                return
        self._attempts.again(transfer, now, f"{failed.kind}: {failed.detail}", avoid)

    def _gone(self, sender: InstanceId, transfer: Transfer | None, now: float) -> None:
        """It does not have what we listed: it never had it, or it is done with it."""
        if transfer is None or sender not in transfer.workers:
            return
        if sender in transfer.awaited:
            self._attempts.offer(transfer, (sender,))
        elif not transfer.is_prefill(sender):
            self._attempts.again(transfer, now, "decode has forgotten it")
        elif self._awaits_scores(transfer):
            self._attempts.again(transfer, now, "the prompt's log-probabilities are lost")
        else:
            transfer.prefill_over = True  # decode has released it, or its digest will tell

    def _peer_down(self, instance: InstanceId, now: float, *, left: bool) -> None:
        """Whoever has left in good order was not driven out by what it computed."""
        self._peers.down(instance)
        self._acks.forget(instance)
        self._attempts.admission.forget(instance)
        if not self.fleet.down(instance):
            return
        for other in self.fleet.instances():
            self._out.send(other, PeerLost(instance=instance))
        for transfer in list(self._attempts.at(instance)):
            handed = transfer.is_prefill(instance) and transfer.phase is Phase.HANDED
            if handed and not self._awaits_scores(transfer):
                self._attempts.forget_prefill(transfer)  # decode pulls on from its memory, or
            else:  # will say that it failed
                if not left:
                    transfer.suspect()
                self._attempts.again(transfer, now, f"lost {instance}")
        self._attempts.leftovers.gone(instance)

    def _digest(self, sender: InstanceId, heartbeat: Heartbeat, now: float) -> None:
        self._attempts.leftovers.heard(sender, heartbeat)
        if self.fleet.has_missed(sender, heartbeat.snapshots):
            self._out.send(sender, Resync())
        for row in heartbeat.transfers:
            transfer = self._transfers.get(row.transfer)
            on = transfer is not None and transfer.attempt == row.attempt
            if transfer is None or not on or sender not in transfer.workers:
                self._out.send(sender, End(transfer=row.transfer, attempt=row.attempt))
                continue
            self._accepted(sender, transfer)  # whoever lists it has it
            if transfer.is_prefill(sender):
                continue
            if row.phase not in (WirePhase.WAITING, WirePhase.ACCEPTED):
                self._handed(transfer)
            elif transfer.prefill_over:
                self._attempts.again(transfer, now, "prefill has forgotten it")

    def _handed(self, transfer: Transfer) -> None:
        self.fleet.computed(transfer)
        if transfer.phase in (Phase.SENT, Phase.ADMITTED):
            transfer.phase = Phase.HANDED
            transfer.awaited.clear()
            self._attempts.admit(transfer)

    # --- tokens ------------------------------------------------------------------------------

    def _tokens(self, sender: InstanceId, run: TokenRun, now: float) -> None:
        """Take what is new of it, in order; whatever else is a repetition or out of date."""
        transfer = self._current(run.transfer, run.attempt)
        if transfer is None or sender not in transfer.workers:
            return
        sample = transfer.sample(run.sample)
        if sample is None:
            self.stale_messages += 1
            return
        self._accepted(sender, transfer)
        if transfer.is_prefill(sender):
            self.fleet.computed(transfer)
            self._attempts.admit(transfer)
        else:
            self._handed(transfer)
        if run.prompt_logprobs is None and self._awaits_scores(transfer):
            transfer.early[run.sample, run.index] = run  # bounded by what is not acknowledged
            return
        self._acks.had(sender, run, self._take_in(transfer, sample, run), now)
        early, decode = transfer.early, transfer.decode
        if sample.over and transfer.over:
            self._attempts.close(transfer)
        if early:
            assert decode is not None
            transfer.early = {}
            for one in early.values():
                self._tokens(decode.instance, one, now)

    def _take_in(self, transfer: Transfer, sample: Sample, run: TokenRun) -> int:
        """Returns the sample's next index."""
        n_had = sample.n_had
        fresh = run.tokens[n_had - run.index :] if run.index <= n_had else ()
        if fresh and sample.over:
            sample.n_unwanted += len(fresh)
        elif fresh:
            transfer.troubled_since, transfer.failures = None, 0
            transfer.well(len(fresh))
            self._deliver(transfer, sample, run, fresh)
        return n_had + len(fresh)

    def _awaits_scores(self, transfer: Transfer) -> bool:
        """The answer begins with the prompt's log-probabilities; only who computed it has them."""
        wanted = transfer.generate.params.prompt_logprobs is not None
        return wanted and not self._requests[transfer.generate.request].scored

    def _deliver(
        self, transfer: Transfer, sample: Sample, run: TokenRun, fresh: tuple[int, ...]
    ) -> None:
        request = self._requests[transfer.generate.request]
        request.scored = True
        index = len(sample.outputs)
        if request.cached_tokens is None and run.cached_tokens is not None:
            request.cached_tokens = run.cached_tokens
        sample.outputs.extend(fresh)
        sample.finish = run.finish
        first = index == 0
        self._out.add(
            Delta(
                transfer.generate.request,
                sample.sample,
                index,
                fresh,
                run.finish,
                run.logprobs[len(run.tokens) - len(fresh) :] if run.logprobs else (),
                request.cached_tokens if first else None,
                run.prompt_logprobs if first else None,
            )
        )
        if first:
            self._out.note(transfer, "first_token", {"sample": sample.sample})

    # --- what leaves -------------------------------------------------------------------------

    def _lines(self, worker: InstanceId) -> tuple[Listed, ...]:
        """The digest: everything of mine that I believe that worker has."""
        return tuple(
            Listed(
                t.transfer,
                t.attempt,
                WirePhase.HANDED if t.phase is Phase.HANDED else WirePhase.WAITING,
                tuple((s.sample, s.n_had) for s in t.samples),
            )
            for t in self._attempts.at(worker)
            if not (t.prefill_over and t.is_prefill(worker))
        )

    def _wake_at(self) -> float | None:
        times = [self._peers.next_due, self._acks.due, self._attempts.timeouts.next_at]
        times += [t.retry_at for t in self._attempts.unrouted.values()]
        return min((at for at in times if at is not None), default=None)

    def ready(self) -> dict[Role, int]:
        """Workers up, by role."""
        return {role: len(self.fleet.of(role)) for role in (Role.PREFILL, Role.DECODE)}

    def knows(self, worker: InstanceId, transfer_id: TransferId, attempt: int) -> bool:
        """Whether that worker is on that attempt, as far as is known here."""
        transfer = self._transfers.get(transfer_id)
        if transfer is None or transfer.attempt != attempt:
            return False
        return worker in transfer.workers

    def check(self) -> None:
        """Raise InvariantBroken unless what is counted and indexed is what there is: for tests."""
        self._attempts.check()
        loads: Counter[InstanceId] = Counter()
        for t in self._transfers.values():
            n_prompt, params = len(t.generate.prompt), t.generate.params
            computing = t.prefill or t.decode
            if t.prompt_queued and computing is not None and computing.instance in self.fleet:
                loads[computing.instance] += n_prompt
            if t.decode is not None:
                loads[t.decode.instance] += n_prompt + params.max_tokens * len(t.samples)
        if loads != self.fleet.loads():
            raise InvariantBroken(f"{self.fleet.loads()} tokens counted, {dict(loads)} there")
