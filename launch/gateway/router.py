"""Which workers serve a request: least predicted cost. Pure: views in, a route out.

The cost of a pair is the predicted time to the second token: the prefill queue before the prompt,
the tokens that no cache holds, the pages to be moved, and the decode side's load. Prefix affinity
needs no rule of its own: a prefix that a worker holds is work that is not done there.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from common.ids import InstanceId, PageHash
from common.kv.layout import pages_for
from common.messages import Hello, Snapshot

DEFAULT_TOKENS_PER_S = 2000.0  # of prefill, until a worker has measured its own
DEFAULT_STEP_S = 0.02
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


@dataclass(frozen=True, slots=True)
class Route:
    """The chosen pair. `prefill` None: the decode worker computes the prompt itself."""

    prefill: InstanceId | None
    decode: InstanceId
    decode_cached_tokens: int


def route(
    demand: Demand,
    prefills: Collection[WorkerView],
    decodes: Collection[WorkerView],
    barred: Collection[tuple[InstanceId, InstanceId]],
) -> Route | None:
    """The cheapest pair, ties by instance id; None if there is no worker to take it."""
    cached = {v.instance: v.cached_pages(demand.hashes) for v in (*prefills, *decodes)}
    priced = (
        (_cost_s(demand, p, d, cached), d.instance, None if p is None else p.instance)
        for d, p in _pairs(prefills, decodes, barred)
    )
    best = min(priced, key=lambda pair: (pair[0], pair[1], pair[2] or ""), default=None)
    if best is None:
        return None
    _, decode, prefill = best
    page_tokens = next(_page_tokens(view) for view in decodes if view.instance == decode)
    return Route(prefill, decode, cached[decode] * page_tokens)


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


def _cost_s(
    demand: Demand,
    prefill: WorkerView | None,
    decode: WorkerView,
    cached: Mapping[InstanceId, int],
) -> float:
    return _prefill_s(demand, prefill, decode, cached) + _decode_s(
        demand, decode, cached[decode.instance]
    )


def _prefill_s(
    demand: Demand,
    prefill: WorkerView | None,
    decode: WorkerView,
    cached: Mapping[InstanceId, int],
) -> float:
    """Until the prompt is computed and moved."""
    page_tokens = _page_tokens(decode)
    on_decode = cached[decode.instance]
    worker = decode if prefill is None else prefill
    n_cached = max(on_decode, cached[worker.instance]) * page_tokens
    snapshot = worker.snapshot
    rate = (snapshot.tokens_per_s if snapshot is not None else 0.0) or DEFAULT_TOKENS_PER_S
    queued = snapshot.queued_tokens if snapshot is not None else 0
    if prefill is not None:
        queued = max(queued, prefill.own_tokens)
    move = 0 if prefill is None else pages_for(demand.n_tokens, page_tokens) - on_decode
    return (queued + max(1, demand.n_tokens - n_cached)) / rate + move * MOVE_S_PER_PAGE


def _decode_s(demand: Demand, decode: WorkerView, n_cached: int) -> float:
    """How much later, and how much slower, tokens come for what is there already."""
    snapshot, limits = decode.snapshot, decode.hello.limits
    if limits is None:
        return float("inf")
    step_s = (snapshot.step_s if snapshot is not None else 0.0) or DEFAULT_STEP_S
    busy = snapshot.running + snapshot.waiting if snapshot is not None else 0
    busy = max(busy, decode.own_requests)
    pages = pages_for(demand.n_tokens + demand.max_tokens, limits.page_tokens) - n_cached
    free = snapshot.free_pages if snapshot is not None else limits.n_pages
    free = min(free, limits.n_pages - pages_for(decode.own_tokens, limits.page_tokens))
    short = max(0, pages - free) / limits.n_pages
    turns = busy / limits.max_num_seqs
    return step_s * (1 + busy) * (1 + turns) + short * step_s * demand.max_tokens
