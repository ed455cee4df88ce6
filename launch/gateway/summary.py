"""From what a server's gateways know to what `GET /status` tells. Pure: a document comes out."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from common.ids import InstanceId, Role
from common.messages import Snapshot
from common.metrics import Totals
from launch.gateway.figures import bucket_percentiles, percentiles
from launch.gateway.history import SHOWN, History, WorkerRecord
from launch.gateway.parts import BESIDE_S, Elsewhere, Judged, Part, Slice
from launch.gateway.status import (
    Attainment,
    Handoffs,
    Latencies,
    Pages,
    Point,
    PoolStatus,
    Rates,
    RequestStatus,
    Status,
    WorkerStatus,
)
from launch.gateway.transfers import Slo
from launch.gateway.views import WorkerView
from launch.supervise import LocalWorker

RATE_S = 10.0  # that a worker's rates are of
POOLS = (Role.PREFILL, Role.DECODE)
_NOBODY = InstanceId("")
_SHORTEST_S = 1e-9  # of a window, to be divided by


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """What is known of the server without any history."""

    unix_s: float
    model: str
    ready: bool
    draining: bool
    versions: dict[str, str]
    slo: Slo
    gateways: int = 1


def status(
    server: Server, workers: list[WorkerStatus], own: Part, elsewhere: Elsewhere, after: float
) -> Status:
    """The document of all gateways. `workers`: as the one that answers knows them, whose part is
    `own`; `after`: Unix time, of points to be told."""
    parts = [own, *elsewhere.parts]
    first, last = summed([part.first for part in parts]), summed([part.last for part in parts])
    window_s = max(part.window_s for part in parts)
    handoffs = percentiles(part.handoff_s for part in parts)
    return Status(
        unix_s=server.unix_s,
        uptime_s=max(part.uptime_s for part in parts),
        window_s=window_s,
        model=server.model,
        ready=server.ready,
        draining=server.draining,
        versions=server.versions,
        in_progress=sum(part.in_progress for part in parts),
        gateways=server.gateways,
        gateways_missing=elsewhere.missing,
        workers=workers,
        pools={role: pool_status(role, workers) for role in POOLS},
        slo=attainment(parts, server.slo),
        latency=Latencies(
            ttft_s=percentiles(part.ttft_s for part in parts),
            tpot_s=percentiles(part.tpot_s for part in parts),
            itl_s=bucket_percentiles(first.inter_token, last.inter_token),
            e2e_s=percentiles(part.e2e_s for part in parts),
        ),
        handoff=Handoffs(per_s=handoffs.n / max(window_s, _SHORTEST_S), seconds=handoffs),
        rates=_rates(first, last, max(window_s, _SHORTEST_S)),
        failures=_difference(first.failures, last.failures),
        failures_total=dict(last.failures),
        requests=_requests(parts),
        series=_series([part.series for part in parts], after),
    )


# --- gateways' parts ---------------------------------------------------------------------------


def summed(totals: Sequence[Totals]) -> Totals:
    """Counters of several gateways, whose buckets have the same bounds."""
    answers, failures, buckets = Counter[str](), Counter[str](), Counter[float]()
    for one in totals:
        answers.update(one.answers)
        failures.update(one.failures)
        buckets.update(dict(one.inter_token))
    return Totals(
        prompt_tokens=sum(one.prompt_tokens for one in totals),
        generation_tokens=sum(one.generation_tokens for one in totals),
        answers=answers,
        failures=failures,
        inter_token=tuple(sorted(buckets.items())),
    )


def attainment(parts: Iterable[Part], owed: Slo) -> Attainment:
    """`owed`: where a request states nothing itself."""
    told = [(part.slo, part.slo_ttft, part.slo_tpot) for part in parts]
    both, ttft, tpot = (
        Judged(sum(one.n for one in each), sum(one.met for one in each))
        for each in zip(*told, strict=True)
    )
    return Attainment(
        ttft_s=owed.ttft_s,
        tpot_s=owed.tpot_s,
        judged=both.n,
        met=_share(both),
        ttft_met=_share(ttft),
        tpot_met=_share(tpot),
    )


def _share(judged: Judged) -> float | None:
    return judged.met / judged.n if judged.n else None


def _requests(parts: Iterable[Part]) -> list[RequestStatus]:
    """Those in progress by when they came, then the last that ended by when they did."""
    told = [request for part in parts for request in part.requests]
    live = [one for one in told if one.ended_s is None]
    ended = [(one.arrived_unix_s + one.ended_s, one) for one in told if one.ended_s is not None]
    live.sort(key=lambda one: one.arrived_unix_s, reverse=True)
    ended.sort(key=lambda timed: timed[0], reverse=True)
    return [*live, *(one for _, one in ended[:SHOWN])]


def _series(told: Sequence[Sequence[Slice]], after: float) -> list[Point]:
    """Points at the times of whoever has most of them (another gateway may be new). Beside each
    come the others' of the same second or so."""
    grid = max(told, key=lambda slices: sum(one.unix_s > after for one in slices))
    others = [slices for slices in told if slices is not grid]
    places = [0] * len(others)
    points: list[Point] = []
    for one in grid:
        beside: list[Slice] = []
        for i, slices in enumerate(others):
            while places[i] < len(slices) and slices[places[i]].unix_s <= one.unix_s:
                places[i] += 1
            latest = slices[places[i] - 1] if places[i] else None
            if latest is not None and latest.unix_s > one.unix_s - BESIDE_S:
                beside.append(latest)
        if one.unix_s > after:
            points.append(_point(one, beside))
    return points


def _point(one: Slice, beside: Sequence[Slice]) -> Point:
    slices = (one, *beside)
    return Point(
        unix_s=one.unix_s,
        prompt_tokens_per_s=sum(each.prompt_tokens_per_s for each in slices),
        output_tokens_per_s=sum(each.output_tokens_per_s for each in slices),
        ttft_s=percentiles(each.ttft_s for each in slices),
        tpot_s=percentiles(each.tpot_s for each in slices),
        workers=one.workers,
    )


def _rates(a: Totals, b: Totals, window_s: float) -> Rates:
    return Rates(
        answers_per_s=(sum(b.answers.values()) - sum(a.answers.values())) / window_s,
        failures_per_s=(sum(b.failures.values()) - sum(a.failures.values())) / window_s,
        prompt_tokens_per_s=(b.prompt_tokens - a.prompt_tokens) / window_s,
        output_tokens_per_s=(b.generation_tokens - a.generation_tokens) / window_s,
    )


def _difference(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """What has grown."""
    grown = {key: count - before.get(key, 0) for key, count in after.items()}
    return {key: count for key, count in grown.items() if count}


# --- workers -----------------------------------------------------------------------------------


def worker_statuses(
    views: Sequence[WorkerView], history: History, now: float
) -> list[WorkerStatus]:
    """Those of this host in their order, then those that joined by themselves, by name. `now`: by
    the history's clock."""
    local = history.local_workers()
    told = {view.instance: _told(view, history, now) for view in views}
    here = [_of_this_host(one, told.pop(one.instance or _NOBODY, None)) for one in local]
    return [*here, *sorted(told.values(), key=lambda worker: (worker.role, worker.name))]


def _of_this_host(worker: LocalWorker, told: WorkerStatus | None) -> WorkerStatus:
    if told is not None:
        return msgspec.structs.replace(told, pid=worker.pid, restarts=worker.restarts)
    if worker.pid is None:
        state = "restarting" if worker.instance else "starting"
    else:
        state = "lost" if worker.joined else "starting"
    return WorkerStatus(
        name=worker.name,
        role=worker.role,
        state=state,
        instance=worker.instance,
        pid=worker.pid,
        restarts=worker.restarts,
        trouble=worker.trouble,
    )


def _told(view: WorkerView, history: History, now: float) -> WorkerStatus:
    """A worker that is up, as it tells of itself."""
    hello, snapshot = view.hello, view.snapshot
    worker = WorkerStatus(
        name=history.names.get(view.instance, view.instance),
        role=hello.peer.role,
        state="up",
        instance=view.instance,
        pid=None,
        restarts=None,
        trouble="",
        page_tokens=None if hello.limits is None else hello.limits.page_tokens,
        page_bytes=None if hello.pool is None else hello.pool.page_bytes,
    )
    if snapshot is not None:
        worker = msgspec.structs.replace(
            worker,
            running=snapshot.running,
            waiting=snapshot.waiting,
            queued_tokens=snapshot.queued_tokens,
            pages=_pages(snapshot),
            step_s=snapshot.step_s or None,
        )
    record = history.workers.get(view.instance)
    return worker if record is None else _with_record(worker, record, now)


def _with_record(worker: WorkerStatus, record: WorkerRecord, now: float) -> WorkerStatus:
    tokens_per_s, busy_share = work_rates(record.told, now)
    last: Mapping[str, float] = record.told[-1][1] if record.told else {}
    memory = last.get("process_resident_memory_bytes")
    return msgspec.structs.replace(
        worker,
        uptime_s=now - record.up_at,
        heartbeat_age_s=now - record.heard_at,
        step_age_s=None if record.progress is None else record.progress.step_age_s,
        tokens_per_s=tokens_per_s,
        busy_share=busy_share,
        memory_bytes=None if memory is None else int(memory),
        preemptions=int(last.get("num_preemptions_total", 0)) if last else None,
    )


def work_rates(
    told: Sequence[tuple[float, Mapping[str, float]]], now: float
) -> tuple[float | None, float | None]:
    """Rows a second and the share of the time in passes, over the last `RATE_S` seconds.

    `told`: (when, counters), in order; None where it has not told twice in that time.
    """
    lately = [one for one in told if one[0] >= now - RATE_S]
    if len(lately) < 2:
        return None, None
    (first_at, first), (last_at, last) = lately[0], lately[-1]

    def rate(name: str) -> float:
        return (last.get(name, 0.0) - first.get(name, 0.0)) / (last_at - first_at)

    return rate("engine_step_tokens_total"), min(1.0, rate("engine_step_seconds_total"))


def _pages(snapshot: Snapshot) -> Pages:
    return Pages(
        total=snapshot.n_pages,
        held=snapshot.n_pages - snapshot.free_pages,
        cached=snapshot.cached_pages,
        free=snapshot.free_pages - snapshot.cached_pages,
    )


def pool_status(role: Role, workers: Iterable[WorkerStatus]) -> PoolStatus:
    """Sums over the workers of that role."""
    own = [worker for worker in workers if worker.role == role]
    pages = [worker.pages for worker in own if worker.pages is not None]
    return PoolStatus(
        up=sum(worker.state == "up" for worker in own),
        workers=len(own),
        running=sum(worker.running for worker in own),
        waiting=sum(worker.waiting for worker in own),
        queued_tokens=sum(worker.queued_tokens for worker in own),
        pages=Pages(
            total=sum(one.total for one in pages),
            held=sum(one.held for one in pages),
            cached=sum(one.cached for one in pages),
            free=sum(one.free for one in pages),
        ),
        tokens_per_s=sum(worker.tokens_per_s or 0.0 for worker in own),
        restarts=sum(worker.restarts or 0 for worker in own),
    )
