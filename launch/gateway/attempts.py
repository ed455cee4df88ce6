"""A request's attempts: opened, routed, given up, closed. Only the gateway opens an attempt.

Owns the records of requests and transfers; what workers send is judged by `gateway.core`.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from common.engine.events import Note, Send
from common.engine.reports import HEARTBEAT_BUSY_S
from common.errors import BatonError, InvariantBroken, Overloaded, PeerError, TimedOut, TpotMissed
from common.ids import InstanceId, Role, TransferId
from common.messages import AnyMessage, End, Resume, Snapshot
from common.params import FinishReason
from common.values import AdmissionPolicy, Disaggregate
from launch.gateway.events import Admitted, GatewayAction, Rejected
from launch.gateway.fleet import Fleet
from launch.gateway.leftovers import Leftovers
from launch.gateway.overload import Admission, Candidate, Verdict
from launch.gateway.router import Route
from launch.gateway.timeouts import Timeouts
from launch.gateway.transfers import Generate, Phase, RequestId, Sample, Transfer
from launch.gateway.views import Demand

RETRY_S = (0.0, 0.05, 0.2, 0.5, 1.0)  # before the n-th attempt since the last progress
MOST_ASKED = 4  # decode workers, whether they have time for a request


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayOptions:
    """What the operator set."""

    max_requests: int = 4096  # prompts in flight; beyond: 429
    recovery_s: float = 60.0  # of trouble without progress before a started answer is given up
    # The same, taken by no worker yet: longer than those take to find a gateway that restarted.
    admission_s: float = 15.0
    credit_tokens: int = 65_536  # that one worker may have unacknowledged here
    disaggregate: Disaggregate = "auto"  # whether prefill workers compute a prompt
    heartbeat_s: float = HEARTBEAT_BUSY_S
    admission: AdmissionPolicy = "predicted"


@dataclass(slots=True, eq=False)
class Request:
    """A client's prompt, and the transfers that bear its samples."""

    generate: Generate
    arrived: float  # seconds, the core's clock
    transfers: set[TransferId] = field(default_factory=set[TransferId])
    admitted: bool = False  # every worker has accepted it
    cached_tokens: int | None = None  # of the first attempt that drew a token
    scored: bool = False  # the client has the log-probabilities of the prompt's tokens

    @property
    def promised(self) -> bool:
        """Its client counts on an answer: a worker's refusal costs time, no more."""
        return self.admitted or self.generate.promised

    @property
    def ends_at(self) -> float | None:
        """When the time is up that the request gave itself."""
        timeout_s = self.generate.timeout_s
        return None if timeout_s is None else self.arrived + timeout_s

    def due_in_s(self, now: float) -> float | None:
        """Until the first token is owed; None: no SLO says."""
        ttft_s = self.generate.slo.ttft_s
        return None if ttft_s is None else self.arrived + ttft_s - now


class Outbox:
    """Actions decided in this step, in order."""

    def __init__(self) -> None:
        self._actions: list[GatewayAction] = []

    def add(self, action: GatewayAction) -> None:
        self._actions.append(action)

    def send(self, peer: InstanceId, message: AnyMessage) -> None:
        self._actions.append(Send(peer, message))

    def note(self, t: Transfer, name: str, fields: dict[str, int | float | str]) -> None:
        self._actions.append(Note(t.transfer, t.attempt, name, fields))

    def drain(self) -> tuple[GatewayAction, ...]:
        actions, self._actions = tuple(self._actions), []
        return actions


class Attempts:
    """Every request in flight, the transfers that bear it, and where each is."""

    def __init__(
        self, options: GatewayOptions, fleet: Fleet, out: Outbox, new_id: Callable[[], TransferId]
    ) -> None:
        self._options = options
        self._fleet = fleet
        self._out = out
        self._new_id = new_id
        self.requests: dict[RequestId, Request] = {}
        self.transfers: dict[TransferId, Transfer] = {}
        self.unrouted: dict[TransferId, Transfer] = {}  # of these, in the order of their waiting
        self._at: dict[InstanceId, dict[TransferId, Transfer]] = {}  # by worker of the attempt
        self._wanted: dict[TransferId, frozenset[InstanceId]] = {}  # by who needs them for itself
        self.leftovers = Leftovers()
        self.timeouts = Timeouts()
        self.admission = Admission(options.admission)

    def begin(self, generate: Generate, now: float) -> Transfer:
        """A client's prompt: one transfer bears all its samples, until trouble splits them."""
        request = Request(generate, now - generate.waited_s)
        self.requests[generate.request] = request
        if request.ends_at is not None:
            self.timeouts.add(generate.request, request.ends_at)
        return self.open(request, [Sample(n) for n in range(generate.n)])

    def open(self, request: Request, samples: list[Sample]) -> Transfer:
        transfer = Transfer(self._new_id(), request.generate, samples)
        self.transfers[transfer.transfer] = self.unrouted[transfer.transfer] = transfer
        request.transfers.add(transfer.transfer)
        return transfer

    def at(self, worker: InstanceId) -> Collection[Transfer]:
        """Those whose current attempt that worker may hold something of."""
        return self._at.get(worker, {}).values()

    def of(self, request: Request | None) -> list[Transfer]:
        return [] if request is None else [self.transfers[t] for t in sorted(request.transfers)]

    def reject(self, transfer: Transfer, error: BatonError) -> None:
        """The whole request ends, however many transfers bear it."""
        request_id = transfer.generate.request
        self._out.add(Rejected(request_id, error))
        self._out.note(transfer, "failed", {"request": request_id, "detail": str(error)})
        for other in self.of(self.requests.get(request_id)):
            self.close(other, "")

    def time_out(self, now: float) -> None:
        """End the requests whose time is up."""
        for request_id in self.timeouts.passed(now):
            request = self.requests[request_id]
            timeout_s = request.generate.timeout_s
            assert timeout_s is not None
            self.reject(self.of(request)[0], TimedOut(timeout_s))

    def close(self, transfer: Transfer, ending: str = "finished") -> None:
        """The one exit: workers free what they hold; the request goes with its last transfer, and
        the note `ending` then tells of it."""
        self._end_attempt(transfer)
        self.admission.ended(transfer)
        transfer.phase = Phase.DONE
        del self.transfers[transfer.transfer]
        self.unrouted.pop(transfer.transfer, None)
        request = self.requests[transfer.generate.request]
        request.transfers.discard(transfer.transfer)
        if not request.transfers:
            del self.requests[transfer.generate.request]
            if request.ends_at is not None:
                self.timeouts.drop(transfer.generate.request, request.ends_at)
            if ending:
                self._out.note(transfer, ending, _answered(transfer))

    def admit(self, transfer: Transfer) -> None:
        request = self.requests[transfer.generate.request]
        if not request.admitted:
            request.admitted = True
            transfer.troubled_since = None
            self._out.add(Admitted(transfer.generate.request))

    def route(self, transfer: Transfer, now: float) -> None:
        """Open the next attempt, if there are workers for it."""
        is_early = transfer.retry_at is not None and transfer.retry_at > now
        if is_early or self._given_up(transfer, now):
            return
        demand = self._demand(transfer, now)
        chosen = self._choose(transfer, demand, now)
        if isinstance(chosen, TpotMissed):
            self.reject(transfer, chosen)
            return
        if chosen is None or self._must_wait(transfer, chosen):
            transfer.retry_at = now + RETRY_S[-1 if chosen is None else 1]
            if transfer.troubled_since is None:
                transfer.troubled_since = now
            return
        hello = self._fleet.hello
        del self.unrouted[transfer.transfer]
        transfer.attempt += 1
        transfer.prefill = None if chosen.prefill is None else hello(chosen.prefill).peer
        transfer.decode = hello(chosen.decode).peer
        transfer.decode_cached_tokens = chosen.decode_cached_tokens
        transfer.deadline_s = demand.ttft_s
        transfer.refuse_if_late = self._may_refuse(transfer)
        transfer.recovering = self.requests[transfer.generate.request].admitted
        transfer.handed_by = now + chosen.ttft_s
        transfer.awaited = set(transfer.workers)
        transfer.resumes = tuple(Resume(s.sample, tuple(s.outputs)) for s in transfer.live())
        transfer.prefill_over = False
        transfer.phase = Phase.SENT
        self._fleet.assign(transfer)
        self._out.note(transfer, "routed", {"request": transfer.generate.request, **_told(chosen)})
        for worker in transfer.workers:
            self._at.setdefault(worker, {})[transfer.transfer] = transfer
        self.offer(transfer, transfer.workers)

    def _choose(self, transfer: Transfer, demand: Demand, now: float) -> Route | TpotMissed | None:
        """The cheapest route whose decode worker keeps what is owed; the error of the cheapest of
        all if some have no time for it (they are the least loaded); None: there are no workers."""
        avoid = transfer.avoid | self._kept_from(transfer)
        chosen = cheapest = self._fleet.route(demand, now, avoid)
        slow: dict[InstanceId, Verdict] = {}
        while chosen is not None and chosen.decode not in slow and len(slow) < MOST_ASKED:
            verdict = self._verdict(transfer, demand, chosen, now)
            if verdict is None:
                return chosen
            slow[chosen.decode] = verdict
            chosen = self._fleet.route(demand, now, avoid | slow.keys())
        if cheapest is None or demand.tpot_s is None:
            return None
        of = next((one for one in slow.values() if one.retry_after_s), slow[cheapest.decode])
        return of.error(demand.tpot_s)

    def _may_refuse(self, transfer: Transfer) -> bool:
        """Nobody was promised an answer yet."""
        promised = self.requests[transfer.generate.request].promised
        return not promised and self._options.admission != "none"

    def _verdict(
        self, transfer: Transfer, demand: Demand, chosen: Route, now: float
    ) -> Verdict | None:
        limits = self._fleet.hello(chosen.decode).limits
        if demand.tpot_s is None or limits is None or not self._may_refuse(transfer):
            return None
        new = Candidate(transfer, chosen.decode, limits.max_num_seqs, demand.tpot_s, chosen.ttft_s)
        return self.admission.verdict(new, self.at(chosen.decode), now)

    def learn(self, worker: InstanceId, snapshot: Snapshot, now: float) -> None:
        """What decode workers' passes take."""
        if self._fleet.role(worker) is Role.DECODE:
            self.admission.learn(worker, self.at(worker), snapshot.step_s, now)

    def _demand(self, transfer: Transfer, now: float) -> Demand:
        generate = transfer.generate
        outputs = len(transfer.live()[0].outputs)
        return Demand(
            n_tokens=len(generate.prompt) + outputs,
            max_tokens=generate.params.max_tokens - outputs,
            hashes=generate.hashes,
            ttft_s=self.requests[generate.request].due_in_s(now),
            tpot_s=generate.slo.tpot_s,
            now=now,
        )

    def in_time_elsewhere(
        self, transfer: Transfer, now: float, avoid: frozenset[InstanceId]
    ) -> bool:
        """Another worker than those is predicted to compute the first token by when it is owed."""
        chosen = self._fleet.route(self._demand(transfer, now), now, avoid)
        return chosen is not None and chosen.in_time and chosen.computing not in avoid

    def _given_up(self, transfer: Transfer, now: float) -> bool:
        since = transfer.troubled_since
        promised = self.requests[transfer.generate.request].promised
        limit_s = self._options.recovery_s if promised else self._options.admission_s
        if since is None or now - since < limit_s:
            return False
        error = Overloaded(
            f"no worker could take the request in {limit_s:g} s: {transfer.trouble}",
            retry_after_s=1.0,
            status=503,
        )
        self.reject(transfer, error)
        return True

    def _must_wait(self, transfer: Transfer, chosen: Route) -> bool:
        """One that workers crashed with has its workers for itself: then it is known who was to
        blame. Whoever comes later goes elsewhere, or waits too: it would never be its turn."""
        there = frozenset((chosen.decode, chosen.computing))
        waits = not there.isdisjoint(self._kept_from(transfer))
        if transfer.needs_own_workers:
            waits = waits or any(self._computed_at(worker) for worker in there)
            self._wanted[transfer.transfer] = there
        return waits

    def _kept_from(self, transfer: Transfer) -> frozenset[InstanceId]:
        """Workers that another one has for itself, or waits for, and has waited longer."""
        earlier = takewhile(lambda wanted: wanted != transfer.transfer, self._wanted)
        alone = (one for one in earlier if self.transfers[one].needs_own_workers)
        return frozenset[InstanceId]().union(*(self._wanted[one] for one in alone))

    def blame(self, worker: InstanceId) -> None:
        """It has crashed: by a suspect, if nobody else was there, or may have been."""
        for transfer in (there := self._computed_at(worker)):
            transfer.crashes += 1
        alone = len(there) == 1 and not self.leftovers.beside(worker, there[0].transfer)
        if alone and there[0].is_suspect:
            error = PeerError("the worker that computed it crashed, as others had before")
            self.reject(there[0], error)

    def _computed_at(self, worker: InstanceId) -> list[Transfer]:
        """A prefill worker has done its part of what it has handed over."""
        return [t for t in self.at(worker) if t.phase is not Phase.HANDED or t.decodes_at(worker)]

    def offer(self, transfer: Transfer, workers: Sequence[InstanceId]) -> None:
        for worker in workers:
            if transfer.is_prefill(worker):
                self._out.send(worker, transfer.prefill_message())
            else:
                self._out.send(worker, transfer.expect_message())

    def forget_prefill(self, transfer: Transfer) -> None:
        """Its prefill worker is gone, and had handed over: the attempt goes on without it."""
        if transfer.prefill is not None:
            self._leave(transfer, transfer.prefill.instance)
            transfer.prefill = None

    def _end_attempt(self, transfer: Transfer) -> None:
        for worker in transfer.workers:
            self._out.send(worker, End(transfer=transfer.transfer, attempt=transfer.attempt))
            self._leave(transfer, worker)
        if transfer.phase is not Phase.UNROUTED:
            self._fleet.unassign(transfer)
        self._wanted.pop(transfer.transfer, None)
        transfer.prefill = transfer.decode = None
        transfer.awaited.clear()
        transfer.early.clear()

    def _leave(self, transfer: Transfer, worker: InstanceId) -> None:
        self.leftovers.ended(worker, (transfer.transfer, transfer.attempt))
        there = self._at[worker]
        del there[transfer.transfer]
        if not there:
            del self._at[worker]

    def again(
        self, transfer: Transfer, now: float, why: str, avoid: frozenset[InstanceId] = frozenset()
    ) -> None:
        """This attempt is void; the next one follows, sooner or later."""
        self._out.note(transfer, "failed", {"detail": why})
        self._end_attempt(transfer)
        transfer.phase = Phase.UNROUTED
        self.unrouted[transfer.transfer] = transfer
        transfer.trouble = why
        transfer.avoid = avoid
        if transfer.troubled_since is None:
            transfer.troubled_since = now
        transfer.retry_at = now + RETRY_S[min(transfer.failures, len(RETRY_S) - 1)]
        transfer.failures += 1
        live = transfer.live()
        if len(live) > 1 and any(sample.outputs for sample in live):
            self._split(transfer, live)

    def _split(self, transfer: Transfer, live: list[Sample]) -> None:
        """Samples with outputs of their own share no further pages: each goes on by itself."""
        request = self.requests[transfer.generate.request]
        transfer.samples = live[:1]
        for sample in live[1:]:
            other = self.open(request, [sample])
            other.attempt = transfer.attempt  # recovering, not new
            other.troubled_since, other.retry_at = transfer.troubled_since, transfer.retry_at
            other.failures, other.trouble = transfer.failures, transfer.trouble
            other.suspicions, other.crashes = transfer.suspicions, transfer.crashes
            other.raised_alone, other.avoid = transfer.raised_alone, transfer.avoid

    def check(self) -> None:
        """Raise InvariantBroken unless the indexes say what the transfers say."""
        for transfer in self.transfers.values():
            unrouted = transfer.phase is Phase.UNROUTED
            at = {w for w, there in self._at.items() if transfer.transfer in there}
            indexed = unrouted is (transfer.transfer in self.unrouted)
            if not indexed or at != set(transfer.workers) or not transfer.awaited <= at:
                raise InvariantBroken(f"{transfer.transfer}: {transfer.phase}, at {sorted(at)}")
            if unrouted is (transfer.decode is not None):
                raise InvariantBroken(f"{transfer.transfer}: {transfer.phase} without decode")
        known = {t for request in self.requests.values() for t in request.transfers}
        there = {t for at in self._at.values() for t in at}
        timed = sum(request.ends_at is not None for request in self.requests.values())
        if timed != len(self.timeouts):
            raise InvariantBroken(f"{len(self.timeouts)} timeouts of {timed} requests")
        if not self._wanted.keys() <= self.transfers.keys():
            raise InvariantBroken("workers are kept for who is not there")
        if known != self.transfers.keys() or not there | self.unrouted.keys() <= known:
            raise InvariantBroken("transfers of no request, or requests of no transfer")


def _answered(transfer: Transfer) -> dict[str, int | float | str]:
    """What its client was given."""
    lengths = [len(sample.outputs) for sample in transfer.samples]
    finish = transfer.samples[0].finish or FinishReason.STOP  # what is stopped here is told none
    fields = {"tokens": sum(lengths), "longest": max(lengths), "finish": str(finish)}
    return {"request": transfer.generate.request, **fields}


def _told(chosen: Route) -> dict[str, int | float | str]:
    """Of a route: why, and to whom."""
    fields: dict[str, int | float | str] = {"decision": chosen.decision, "reason": chosen.reason}
    if chosen.prefill is not None:
        fields["prefill"] = chosen.prefill
    return {**fields, "decode": chosen.decode}
