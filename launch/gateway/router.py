"""Which workers serve a request: least predicted cost. Pure: views in, a route out.

The cost of a pair is the predicted time to the second token: the prefill queue before the prompt,
the tokens that no cache holds, the pages to be moved, and the decode side's load. Prefix affinity
needs no rule of its own: a prefix that a worker holds is work that is not done there. Where a
request states SLOs, pairs that are predicted to meet them come before those that are not.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median

from common.ids import InstanceId, PageHash
from common.kv.layout import pages_for
from common.messages import Hello, Snapshot

DEFAULT_TOKENS_PER_S = 2000.0  # of prefill, until some worker has measured its own
DEFAULT_STEP_S = 0.02  # the same, of decode
MOVE_S_PER_PAGE = 50e-6  # a page of a small model through shared memory, measured: 17 us and up


@dataclass(slots=True, eq=False)
class WorkerView:
    """What this gateway knows of one worker: its last snapshot, and its own requests there."""

    hello: Hello
    snapshot: Snapshot | None = None
    prefixes: set[PageHash] = field(default_factory=set[PageHash])
    own_requests: int = 0  # of this gateway, not over yet
    own_tokens: int = 0  # prefill: prompt tokens of those; decode: prompt + output tokens

    @property
    def instance(self) -> InstanceId:
        return self.hello.peer.instance

    def take(self, snapshot: Snapshot) -> bool:
        """Take a snapshot in. False if one was missed before it: ask for a whole one."""
        last = self.snapshot
        if not snapshot.whole and (last is None or snapshot.sequence != last.sequence + 1):
            return last is not None and snapshot.sequence <= last.sequence
        if snapshot.whole:
            self.prefixes = set(snapshot.stored)
        else:
            self.prefixes.update(snapshot.stored)
            self.prefixes.difference_update(snapshot.removed)
        self.snapshot = snapshot
        return True

    def cached_pages(self, hashes: Sequence[PageHash]) -> int:
        """How many leading pages it holds, as far as its snapshots tell."""
        n = 0
        for page_hash in hashes:
            if page_hash not in self.prefixes:
                break
            n += 1
        return n


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What a request needs, as far as routing is concerned."""

    n_tokens: int  # to have KV before the first new token
    max_tokens: int
    hashes: tuple[PageHash, ...]  # of the full pages of those tokens
    ttft_s: float | None = None  # from now to when the first is owed; None: no SLO says
    tpot_s: float | None = None  # a token after it, in the mean; None: the same


@dataclass(frozen=True, slots=True)
class Route:
    """The chosen pair. `prefill` None: the decode worker computes the prompt itself."""

    prefill: InstanceId | None
    decode: InstanceId
    decode_cached_tokens: int
    in_time: bool = True  # its predicted TTFT is what is owed, or less
    ttft_s: float = field(default=0.0, compare=False)  # that prediction

    @property
    def computing(self) -> InstanceId:
        """Who computes the prompt."""
        return self.decode if self.prefill is None else self.prefill


def route(
    demand: Demand,
    prefills: Collection[WorkerView],
    decodes: Collection[WorkerView],
    barred: Collection[tuple[InstanceId, InstanceId]],
) -> Route | None:
    """The cheapest of the pairs that miss the fewest SLOs, ties by instance id; None: no pairs."""
    costs = _Costs(demand, prefills, decodes)
    priced = [
        (costs.missed(d, p), costs.seconds(d, p), d.instance, "" if p is None else p.instance)
        for d, p in _pairs(prefills, decodes, barred)
    ]
    if not priced:
        return None
    _, _, decode, prefill = min(priced)
    views = {view.instance: view for view in (*prefills, *decodes)}
    pair = views[decode], views.get(InstanceId(prefill))
    return Route(
        prefill=InstanceId(prefill) if prefill else None,
        decode=decode,
        decode_cached_tokens=costs.cached[decode] * _page_tokens(views[decode]),
        in_time=not costs.is_late(*pair),
        ttft_s=costs.ttft_s(*pair),
    )


def _pairs(
    prefills: Collection[WorkerView],
    decodes: Collection[WorkerView],
    barred: Collection[tuple[InstanceId, InstanceId]],
) -> Iterable[tuple[WorkerView, WorkerView | None]]:
    for decode in decodes:
        usable = [p for p in prefills if (p.instance, decode.instance) not in barred]
        yield from ((decode, prefill) for prefill in usable)
        if not usable:
            yield decode, None


def _page_tokens(view: WorkerView) -> int:
    return view.hello.limits.page_tokens if view.hello.limits is not None else 1


def _typical(measured: Iterable[float], default: float) -> float:
    """Of the workers that have measured something: what one that has not is taken for."""
    known = [one for one in measured if one > 0]
    return median(known) if known else default


class _Costs:
    """Predictions for one demand. `prefill` None: the decode worker computes the prompt."""

    def __init__(
        self, demand: Demand, prefills: Collection[WorkerView], decodes: Collection[WorkerView]
    ) -> None:
        self._demand = demand
        self.cached = {v.instance: v.cached_pages(demand.hashes) for v in (*prefills, *decodes)}
        snapshots = [v.snapshot for v in decodes if v.snapshot is not None]
        self._step_s = _typical((s.step_s for s in snapshots), DEFAULT_STEP_S)
        snapshots = [v.snapshot for v in prefills or decodes if v.snapshot is not None]
        self._tokens_per_s = _typical((s.tokens_per_s for s in snapshots), DEFAULT_TOKENS_PER_S)

    def seconds(self, decode: WorkerView, prefill: WorkerView | None) -> float:
        return (
            self.ttft_s(decode, prefill) + self._move_s(decode, prefill) + self._decode_s(decode)
        )

    def is_late(self, decode: WorkerView, prefill: WorkerView | None) -> bool:
        owed_s = self._demand.ttft_s
        return owed_s is not None and self.ttft_s(decode, prefill) > owed_s

    def missed(self, decode: WorkerView, prefill: WorkerView | None) -> int:
        """How many of the stated SLOs."""
        owed_s = self._demand.tpot_s
        slow = owed_s is not None and self._tpot_s(decode) > owed_s
        return self.is_late(decode, prefill) + slow

    def ttft_s(self, decode: WorkerView, prefill: WorkerView | None) -> float:
        """Until the prompt is computed, behind all that is queued there."""
        worker = decode if prefill is None else prefill
        n_cached = max(self.cached[decode.instance], self.cached[worker.instance])
        n_tokens = max(1, self._demand.n_tokens - n_cached * _page_tokens(decode))
        snapshot = worker.snapshot
        rate = (snapshot.tokens_per_s if snapshot is not None else 0.0) or self._tokens_per_s
        queued = snapshot.queued_tokens if snapshot is not None else 0
        if prefill is not None:
            queued = max(queued, prefill.own_tokens)
        return (queued + n_tokens) / rate

    def _move_s(self, decode: WorkerView, prefill: WorkerView | None) -> float:
        """Until its pages are on the decode side."""
        if prefill is None:
            return 0.0
        n_pages = pages_for(self._demand.n_tokens, _page_tokens(decode))
        return (n_pages - self.cached[decode.instance]) * MOVE_S_PER_PAGE

    def _decode_s(self, decode: WorkerView) -> float:
        """How much later, and how much slower, tokens come for what is there already."""
        demand, snapshot, limits = self._demand, decode.snapshot, decode.hello.limits
        if limits is None:
            return float("inf")
        pages = pages_for(demand.n_tokens + demand.max_tokens, limits.page_tokens)
        pages -= self.cached[decode.instance]
        free = snapshot.free_pages if snapshot is not None else limits.n_pages
        free = min(free, limits.n_pages - pages_for(decode.own_tokens, limits.page_tokens))
        short = max(0, pages - free) / limits.n_pages
        step_s, busy = self._pass_s(decode), _busy(decode)
        turns = busy / limits.max_num_seqs
        return step_s * (1 + busy) * (1 + turns) + short * step_s * demand.max_tokens

    def _tpot_s(self, decode: WorkerView) -> float:
        """A sequence has a token a pass, or every so many passes where not all fit in one."""
        limits = decode.hello.limits
        turns = 1.0 if limits is None else (_busy(decode) + 1) / limits.max_num_seqs
        return self._pass_s(decode) * max(1.0, turns)

    def _pass_s(self, decode: WorkerView) -> float:
        measured_s = decode.snapshot.step_s if decode.snapshot is not None else 0.0
        return measured_s or self._step_s


def _busy(decode: WorkerView) -> int:
    """Sequences there, as its snapshot tells or as this gateway knows better."""
    snapshot = decode.snapshot
    busy = snapshot.running + snapshot.waiting if snapshot is not None else 0
    return max(busy, decode.own_requests)
