"""The gateway's decisions: `GatewayCore.step(now, events) -> GatewayDecision`.

Routes requests, opens attempts (only the gateway does), merges what workers send into exactly one
stream of tokens a sample, acknowledges them, and ends attempts. A worker's failure costs the client
a pause: the next attempt carries the prompt and the outputs that the client already has.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence

from common.engine.events import PeerDown, PeerUp, Received
from common.engine.reports import Peers
from common.errors import ClientError, Overloaded, PeerError
from common.ids import InstanceId, Role, TransferId
from common.messages import (
    Accepted,
    Ack,
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
    TokensAck,
)
from common.messages import Phase as WirePhase
from launch.gateway.attempts import Attempts, GatewayOptions, Outbox, Request
from launch.gateway.events import (
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

CREDIT_TOKENS = 65_536  # that one worker may have unacknowledged here
ACK_EVERY_S = 0.05
MAX_COMPUTE_FAILURES = 3


class GatewayCore:
    """Single owner of the gateway's requests. Deterministic: same events, same actions."""

    def __init__(self, options: GatewayOptions, new_id: Callable[[], TransferId]) -> None:
        self._options = options
        self.fleet = Fleet()
        self._out = Outbox()
        self._attempts = Attempts(options, self.fleet, self._out, new_id)
        self._requests = self._attempts.requests
        self._transfers = self._attempts.transfers
        self._peers = Peers()
        self._acks: dict[InstanceId, dict[tuple[TransferId, int], Ack]] = defaultdict(dict)
        self._ack_due: float | None = None
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
        for transfer in [t for t in self._transfers.values() if t.phase is Phase.UNROUTED]:
            self._attempts.route(transfer, now)
        self._send_acks(now)
        for peer in self._peers.owed(now):
            lines = self._lines(peer)
            self._out.send(peer, Heartbeat(transfers=lines, credit_tokens=CREDIT_TOKENS))
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
            case PeerUp(hello):
                self._peers.up(hello, now)
                self.fleet.up(hello)
                for transfer in self._transfers.values():
                    transfer.retry_at = None
            case PeerDown(instance):
                self._peer_down(instance, now)
            case _:  # PeerBarred: the links log it; it is not in the fleet
                pass

    # --- clients -----------------------------------------------------------------------------

    def _submit(self, generate: Generate, now: float) -> None:
        if len(self._requests) >= self._options.max_requests:
            limit = self._options.max_requests
            error = Overloaded(f"{limit} requests of {limit} are in flight", retry_after_s=1.0)
            self._out.add(Rejected(generate.request, error))
            return
        request = self._requests[generate.request] = Request(generate)
        transfer = self._attempts.open(request, [Sample(n) for n in range(generate.n)])
        transfer.troubled_since = now  # until it is accepted
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
            self._attempts.close(transfer)

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
                self._digest(sender, message)
            case Snapshot():
                if not self.fleet.snapshot(sender, message):
                    self._out.send(sender, Resync())
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
        request = self._requests[transfer.generate.request]
        if refused.retry_after_s is None:
            self._attempts.reject(
                transfer, ClientError(f"The request does not fit: {refused.reason}.")
            )
        elif request.admitted or transfer.failures == 0:  # once elsewhere; recoveries always
            self._attempts.again(transfer, now, f"refused: {refused.reason}", avoid=sender)
        else:
            after_s = refused.retry_after_s
            self._attempts.reject(transfer, Overloaded(refused.reason, retry_after_s=after_s))

    def _failed(self, sender: InstanceId, failed: Failed, now: float) -> None:
        transfer = self._current(failed.transfer, failed.attempt)
        if transfer is None:
            return
        if failed.kind is FailureKind.TRANSFER and failed.peer is not None:
            self.fleet.bar(failed.peer, sender, now)
        if failed.kind is FailureKind.COMPUTE and transfer.failures + 1 >= MAX_COMPUTE_FAILURES:
            self._attempts.reject(transfer, PeerError(f"the model's pass failed: {failed.detail}"))
            return
        self._attempts.again(transfer, now, f"{failed.kind}: {failed.detail}", avoid=None)

    def _gone(self, sender: InstanceId, transfer: Transfer | None, now: float) -> None:
        """It does not have what we listed: it never had it, or it is done with it."""
        if transfer is None or sender not in transfer.workers:
            return
        if sender in transfer.awaited:
            self._attempts.offer(transfer, (sender,))
        elif transfer.is_prefill(sender):
            transfer.prefill_over = True  # decode has released it, or will say that it failed
        else:
            self._attempts.again(transfer, now, "decode has forgotten it", avoid=None)

    def _peer_down(self, instance: InstanceId, now: float) -> None:
        self._peers.down(instance)
        self._acks.pop(instance, None)
        if not self.fleet.down(instance):
            return
        for other in self.fleet.instances():
            self._out.send(other, PeerLost(instance=instance))
        for transfer in list(self._transfers.values()):
            if instance not in transfer.workers:
                continue
            if transfer.is_prefill(instance) and transfer.phase is Phase.HANDED:
                transfer.prefill = None  # decode pulls on from its memory, or will say it failed
            else:
                self._attempts.again(transfer, now, f"lost {instance}", avoid=None)

    def _digest(self, sender: InstanceId, heartbeat: Heartbeat) -> None:
        for row in heartbeat.transfers:
            transfer = self._transfers.get(row.transfer)
            on = transfer is not None and transfer.attempt == row.attempt
            if transfer is None or not on or sender not in transfer.workers:
                self._out.send(sender, End(transfer=row.transfer, attempt=row.attempt))
                continue
            self._accepted(sender, transfer)  # whoever lists it has it
            if not transfer.is_prefill(sender) and row.phase in (
                WirePhase.HANDED,
                WirePhase.DECODING,
                WirePhase.DONE,
            ):
                self._handed(transfer)

    def _handed(self, transfer: Transfer) -> None:
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
        sample = next((s for s in transfer.samples if s.sample == run.sample), None)
        if sample is None:
            self.stale_messages += 1
            return
        self._accepted(sender, transfer)
        if transfer.is_prefill(sender):
            self._attempts.admit(transfer)
        else:
            self._handed(transfer)
        have = len(sample.outputs)
        fresh = run.tokens[have - run.index :] if run.index <= have else ()
        if fresh and not sample.over:
            transfer.troubled_since, transfer.failures = None, 0
            self._deliver(transfer, sample, run, fresh)
        self._acks[sender][run.transfer, run.sample] = Ack(
            run.transfer, run.attempt, run.sample, len(sample.outputs)
        )
        if self._ack_due is None:
            self._ack_due = now + ACK_EVERY_S
        if transfer.over:
            self._attempts.close(transfer)

    def _deliver(
        self, transfer: Transfer, sample: Sample, run: TokenRun, fresh: tuple[int, ...]
    ) -> None:
        request = self._requests[transfer.generate.request]
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

    def _send_acks(self, now: float) -> None:
        if self._ack_due is None or now < self._ack_due:
            return
        self._ack_due = None
        for worker, acks in self._acks.items():
            if acks:
                self._out.send(worker, TokensAck(acks=tuple(acks.values())))
        self._acks.clear()

    # --- what leaves -------------------------------------------------------------------------

    def _lines(self, worker: InstanceId) -> tuple[Listed, ...]:
        """The digest: everything of mine that I believe that worker has."""
        return tuple(
            Listed(
                t.transfer,
                t.attempt,
                WirePhase.HANDED if t.phase is Phase.HANDED else WirePhase.WAITING,
                tuple((s.sample, len(s.outputs)) for s in t.samples),
            )
            for t in self._transfers.values()
            if worker in t.workers and not (t.prefill_over and t.is_prefill(worker))
        )

    def _is_prefill(self, transfer: Transfer, worker: InstanceId) -> bool:
        return transfer.prefill is not None and transfer.prefill.instance == worker

    def _wake_at(self) -> float | None:
        times = [self._peers.next_due, self._ack_due]
        times += [t.retry_at for t in self._transfers.values() if t.phase is Phase.UNROUTED]
        return min((at for at in times if at is not None), default=None)

    def ready(self) -> dict[Role, int]:
        """Workers up, by role."""
        return {role: len(self.fleet.of(role)) for role in (Role.PREFILL, Role.DECODE)}
