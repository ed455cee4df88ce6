"""What has happened here of late: to requests, to workers, to the counters. Bounded memory.

Written once a request's event, a worker's report or a second, never once a token. Must decide
nothing: losing it loses no request. `launch.gateway.summary` makes of it what is shown.
"""

import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, takewhile

from common.engine.events import Event, Note, PeerDown, PeerUp, Received
from common.ids import InstanceId, TransferId
from common.messages import Heartbeat, Hello, Marks, Metrics, Progress, Snapshot
from common.metrics import Totals
from common.moments import Moment
from common.worker_metrics import SHORT_INSTANCE
from launch.gateway.events import Admitted, Rejected
from launch.gateway.figures import sampled
from launch.gateway.parts import AskElsewhere, Slice, nobody_else
from launch.gateway.status import Load
from launch.gateway.transfers import Generate, RequestId, Slo
from launch.supervise import LocalWorker

WINDOW_S = 60.0  # that percentiles and rates are of
SHOWN = 200  # requests that have ended
_REMEMBERED = 1024  # the same, since workers tell of them later
_OUTCOMES = 16_384  # of the window: at more a second, it is shorter
_SAMPLES = 75  # of counters, one a second at most
_SAMPLE_EVERY_S = 0.9
_POINTS = 300  # of the series: minutes, as many as this is seconds
_POINT_S = 10.0  # that a point's percentiles are of
_POINT_VALUES = 100  # of each, where there are more
_RATE_S = 5.0  # and its rates
_NAMES = 512  # of workers, those that are gone included


@dataclass(slots=True, eq=False)
class Record:
    """Of one prompt. Times are seconds, the clock's; of its first transfer where it was split."""

    request: RequestId
    prompt_tokens: int
    max_tokens: int
    n: int
    slo: Slo
    arrived: float
    arrived_unix: float
    admitted: bool = False
    attempts: int = 0
    preemptions: int = 0
    decision: str = ""  # who computes the prompt, of the last attempt
    reason: str = ""
    prefill: InstanceId | None = None
    decode: InstanceId | None = None
    routed: float | None = None
    first_token: float | None = None
    ended: float | None = None
    ending: str = ""
    detail: str = ""
    output_tokens: int = 0
    longest_output: int = 0
    at_prefill: dict[Moment, float] = field(default_factory=dict[Moment, float])
    at_decode: dict[Moment, float] = field(default_factory=dict[Moment, float])

    @property
    def ttft_s(self) -> float | None:
        return None if self.first_token is None else self.first_token - self.arrived

    @property
    def e2e_s(self) -> float | None:
        return None if self.ended is None else self.ended - self.arrived

    @property
    def tpot_s(self) -> float | None:
        """Of its longest answer."""
        if self.first_token is None or self.ended is None or self.longest_output < 2:
            return None
        return (self.ended - self.first_token) / (self.longest_output - 1)

    @property
    def handoff_s(self) -> float | None:
        """From the first pull of its pages to the last."""
        begin = self.at_decode.get(Moment.MIGRATION_BEGIN)
        end = self.at_decode.get(Moment.MIGRATION_END)
        return None if begin is None or end is None else end - begin


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of a request that was answered whole."""

    ended: float
    ttft_s: float | None
    tpot_s: float | None
    e2e_s: float
    slo: Slo


@dataclass(slots=True, eq=False)
class WorkerRecord:
    """One life of a worker, since it has joined."""

    hello: Hello
    up_at: float
    heard_at: float
    progress: Progress | None = None
    snapshot: Snapshot | None = None
    told: deque[tuple[float, Mapping[str, float]]] = field(  # its counters, one a second
        default_factory=lambda: deque[tuple[float, Mapping[str, float]]](maxlen=_SAMPLES)
    )


@dataclass(frozen=True, slots=True)
class Sample:
    """The gateway's counters at one time."""

    at: float
    totals: Totals


class History:
    """Used by the gateway's event loop's thread."""

    def __init__(
        self,
        totals: Callable[[], Totals],
        clock: Callable[[], float] = time.monotonic,
        unix_clock: Callable[[], float] = time.time,
    ) -> None:
        """`totals`: the gateway's counters, asked for once a second."""
        self._totals = totals
        self._clock = clock
        self._unix_clock = unix_clock
        self.began = clock()
        self.local_workers: Callable[[], Sequence[LocalWorker]] = _none_here
        self.elsewhere: AskElsewhere = nobody_else
        self.live: OrderedDict[RequestId, Record] = OrderedDict()
        self._ended: deque[Record] = deque()
        self._by_transfer: dict[TransferId, Record] = {}
        self._transfers: dict[RequestId, TransferId] = {}
        self.outcomes: deque[Outcome] = deque(maxlen=_OUTCOMES)
        self.handoffs: deque[tuple[float, float]] = deque(maxlen=_OUTCOMES)  # (ended, seconds)
        self.samples: deque[Sample] = deque(maxlen=_SAMPLES)
        self.series: deque[Slice] = deque(maxlen=_POINTS)
        self.workers: dict[InstanceId, WorkerRecord] = {}
        self.names: OrderedDict[InstanceId, str] = OrderedDict()

    def ended(self) -> Iterator[Record]:
        """The last that have, the latest first."""
        return islice(reversed(self._ended), SHOWN)

    # --- requests ----------------------------------------------------------------------------

    def submitted(self, generate: Generate) -> None:
        self.live[generate.request] = Record(
            request=generate.request,
            prompt_tokens=len(generate.prompt),
            max_tokens=generate.params.max_tokens,
            n=generate.n,
            slo=generate.slo,
            arrived=self._clock(),
            arrived_unix=self._unix_clock(),
        )

    def answered(self, action: Admitted | Rejected) -> None:
        """Workers have taken it; or it was refused, or given up."""
        record = self.live.get(action.request)
        match action:
            case _ if record is None:
                pass
            case Admitted():
                record.admitted = True
            case Rejected(error=error):
                record.detail = str(error)
                self._end(record, "failed" if record.admitted else "refused")

    def note(self, note: Note) -> None:
        """What the core does with a transfer. Of those that a request is split into only the first
        is followed; the last that ends tells that the request has."""
        record = self._by_transfer.get(note.transfer)
        request = note.fields.get("request")
        if record is None and isinstance(request, str):
            record = self.live.get(RequestId(request))
        if record is None:
            return
        match note.name:
            case "received":
                self._by_transfer[note.transfer] = record
                self._transfers[record.request] = note.transfer
            case "routed":
                self._routed(record, note)
            case "first_token" if record.first_token is None:
                record.first_token = self._clock()
            case "finished" | "aborted" if record.ended is None:
                self._count(record, note)
                finish = str(note.fields.get("finish", note.name))
                self._end(record, finish if note.name == "finished" else note.name)
            case _:
                pass

    def _routed(self, record: Record, note: Note) -> None:
        """A new attempt: what workers told of the one before is over."""
        fields = note.fields
        prefill, decode = fields.get("prefill"), fields.get("decode")
        record.attempts += 1
        record.routed = self._clock()
        record.decision, record.reason = str(fields["decision"]), str(fields["reason"])
        record.prefill = InstanceId(prefill) if isinstance(prefill, str) else None
        record.decode = InstanceId(decode) if isinstance(decode, str) else None
        record.at_prefill.clear()
        record.at_decode.clear()

    @staticmethod
    def _count(record: Record, note: Note) -> None:
        n_tokens, longest = note.fields.get("tokens", 0), note.fields.get("longest", 0)
        assert isinstance(n_tokens, int)
        assert isinstance(longest, int)
        record.output_tokens, record.longest_output = n_tokens, longest

    def _end(self, record: Record, ending: str) -> None:
        record.ended, record.ending = self._clock(), ending
        self.live.pop(record.request, None)
        self._ended.append(record)
        if len(self._ended) > _REMEMBERED:
            transfer = self._transfers.pop(self._ended.popleft().request, None)
            if transfer is not None:
                del self._by_transfer[transfer]
        e2e_s = record.e2e_s
        if e2e_s is not None and ending in ("stop", "length"):
            self.outcomes.append(
                Outcome(record.ended, record.ttft_s, record.tpot_s, e2e_s, record.slo)
            )

    # --- workers -----------------------------------------------------------------------------

    def heard(self, event: Event) -> None:
        """What a worker tells of itself, and that it comes and goes."""
        match event:
            case Received(sender, Heartbeat() as heartbeat) if sender in self.workers:
                worker = self.workers[sender]
                worker.heard_at, worker.progress = self._clock(), heartbeat.progress
            case Received(sender, Snapshot() as snapshot) if sender in self.workers:
                self.workers[sender].snapshot = snapshot
            case Received(sender, Metrics(values=values)) if sender in self.workers:
                self.workers[sender].told.append((self._clock(), dict(values)))
                self.sample()
            case Received(sender, Marks() as told):
                self._marked(sender, told)
            case PeerUp(hello):
                now, instance = self._clock(), hello.peer.instance
                self.workers.setdefault(instance, WorkerRecord(hello, now, now))
                self._name(hello)
            case PeerDown(instance):
                self.workers.pop(instance, None)
            case _:
                pass

    def _name(self, hello: Hello) -> None:
        """Remembered when its worker is gone, for requests that it served."""
        instance = hello.peer.instance
        local = (one.name for one in self.local_workers() if one.instance == instance)
        self.names[instance] = next(local, f"{hello.peer.role}-{instance[:SHORT_INSTANCE]}")
        if len(self.names) > _NAMES:
            self.names.popitem(last=False)

    def _marked(self, sender: InstanceId, told: Marks) -> None:
        now = self._clock()
        for mark in told.marks:
            record = self._by_transfer.get(mark.transfer)
            if record is None or mark.attempt != record.attempts:
                continue
            if mark.moment is Moment.PREEMPTED:
                record.preemptions += 1
            at = record.at_prefill if sender == record.prefill else record.at_decode
            at.setdefault(mark.moment, now - mark.age_s)
            if mark.moment is Moment.MIGRATION_END and record.handoff_s is not None:
                self.handoffs.append((at[mark.moment], record.handoff_s))

    # --- counters ----------------------------------------------------------------------------

    def sample(self) -> None:
        """Write the counters down, unless that was done a moment ago."""
        now = self._clock()
        last = self.samples[-1] if self.samples else None
        if last is not None and now - last.at < _SAMPLE_EVERY_S:
            return
        sample = Sample(now, self._totals())
        if last is not None:
            first = next((one for one in self.samples if one.at >= now - _RATE_S), last)
            point = self._point(first, sample)
            while self.series and self.series[-1].unix_s > point.unix_s:
                self.series.pop()  # the clock was set back: who asks for what is later gets it
            self.series.append(point)
        self.samples.append(sample)

    def _point(self, first: Sample, sample: Sample) -> Slice:
        took_s, since = sample.at - first.at, sample.at - _POINT_S
        lately = list(takewhile(lambda one: one.ended >= since, reversed(self.outcomes)))
        prompts = sample.totals.prompt_tokens - first.totals.prompt_tokens
        outputs = sample.totals.generation_tokens - first.totals.generation_tokens
        return Slice(
            unix_s=self._unix_clock(),
            prompt_tokens_per_s=prompts / took_s,
            output_tokens_per_s=outputs / took_s,
            ttft_s=sampled((one.ttft_s for one in lately), _POINT_VALUES),
            tpot_s=sampled((one.tpot_s for one in lately), _POINT_VALUES),
            workers={
                self.names[instance]: _load(worker.snapshot)
                for instance, worker in self.workers.items()
                if worker.snapshot is not None and instance in self.names
            },
        )

    def window(self) -> tuple[Sample, Sample]:
        """The counters now, and those of as long ago as the window is; less where less is known."""
        last = Sample(self._clock(), self._totals())
        begin = last.at - WINDOW_S
        first = next((one for one in self.samples if one.at >= begin), last)
        return first, last


def _none_here() -> Sequence[LocalWorker]:
    return ()


def _load(told: Snapshot) -> Load:
    return Load(
        held=told.n_pages - told.free_pages,
        cached=told.cached_pages,
        total=told.n_pages,
        running=told.running,
        waiting=told.waiting,
    )
