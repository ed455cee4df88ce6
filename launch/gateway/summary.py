"""From what is known to what `GET /status` tells. Pure: records in, a document out."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import msgspec

from common.ids import InstanceId, Role
from common.messages import Snapshot
from common.moments import Moment
from launch.gateway.figures import bucket_percentiles, percentiles
from launch.gateway.history import WINDOW_S, History, Outcome, Record, Sample, WorkerRecord
from launch.gateway.status import (
    Attainment,
    Handoffs,
    Latencies,
    Pages,
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """What is known of the gateway without its history."""

    unix_s: float
    model: str
    ready: bool
    draining: bool
    versions: dict[str, str]
    in_progress: int
    slo: Slo
    gateways: int = 1


def status(
    server: Server, views: Sequence[WorkerView], history: History, now: float, after: float
) -> Status:
    """The document. `now`: by the history's clock; `after`: Unix time, of points to be told."""
    first, last = history.window()
    window_s = max(last.at - first.at, 1e-9)
    since = now - WINDOW_S
    outcomes = [one for one in history.outcomes if one.ended >= since]
    handoffs = [seconds for at, seconds in history.handoffs if at >= since]
    workers = worker_statuses(history.local_workers(), views, history, now)
    return Status(
        unix_s=server.unix_s,
        uptime_s=now - history.began,
        window_s=last.at - first.at,
        model=server.model,
        ready=server.ready,
        draining=server.draining,
        versions=server.versions,
        in_progress=server.in_progress,
        gateways=server.gateways,
        workers=workers,
        pools={role: pool_status(role, workers) for role in POOLS},
        slo=attainment(outcomes, server.slo),
        latency=_latencies(outcomes, first, last),
        handoff=Handoffs(per_s=len(handoffs) / window_s, seconds=percentiles(handoffs)),
        rates=_rates(first, last, window_s),
        failures=_difference(first.totals.failures, last.totals.failures),
        failures_total=dict(last.totals.failures),
        requests=[
            request_status(record, history.names)
            for record in chain(reversed(history.live.values()), history.ended())
        ],
        series=[point for point in history.series if point.unix_s > after],
    )


# --- the window -------------------------------------------------------------------------------


def attainment(outcomes: Iterable[Outcome], owed: Slo) -> Attainment:
    """`owed`: where a request states nothing itself."""
    both: list[bool] = []
    ttfts: list[bool] = []
    tpots: list[bool] = []
    for one in outcomes:
        ttft, tpot = _met(one.ttft_s, one.slo.ttft_s), _met(one.tpot_s, one.slo.tpot_s)
        stated = [met for met in (ttft, tpot) if met is not None]
        ttfts += [] if ttft is None else [ttft]
        tpots += [] if tpot is None else [tpot]
        both += [all(stated)] if stated else []
    return Attainment(
        ttft_s=owed.ttft_s,
        tpot_s=owed.tpot_s,
        judged=len(both),
        met=_share(both),
        ttft_met=_share(ttfts),
        tpot_met=_share(tpots),
    )


def _met(took_s: float | None, owed_s: float | None) -> bool | None:
    """None: nothing was owed, or there was nothing to judge (one token has no TPOT)."""
    return None if took_s is None or owed_s is None else took_s <= owed_s


def _share(met: Sequence[bool]) -> float | None:
    return sum(met) / len(met) if met else None


def _latencies(outcomes: Sequence[Outcome], first: Sample, last: Sample) -> Latencies:
    return Latencies(
        ttft_s=percentiles(one.ttft_s for one in outcomes),
        tpot_s=percentiles(one.tpot_s for one in outcomes),
        itl_s=bucket_percentiles(first.totals.inter_token, last.totals.inter_token),
        e2e_s=percentiles(one.e2e_s for one in outcomes),
    )


def _rates(first: Sample, last: Sample, window_s: float) -> Rates:
    a, b = first.totals, last.totals
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
    local: Sequence[LocalWorker], views: Sequence[WorkerView], history: History, now: float
) -> list[WorkerStatus]:
    """Those of this host in their order, then those that joined by themselves, by name."""
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


# --- requests ----------------------------------------------------------------------------------


def request_status(record: Record, names: Mapping[InstanceId, str]) -> RequestStatus:
    """`names`: of workers, those that are gone included."""

    def after(at: float | None) -> float | None:
        if at is None:
            return None
        if record.ended is not None:  # before a worker, whose clock is its own, had told
            at = min(at, record.ended)
        return max(0.0, at - record.arrived)

    computing = record.decode if record.prefill is None else record.prefill
    at_computing = record.at_decode if record.prefill is None else record.at_prefill
    return RequestStatus(
        id=record.request,
        state=record.ending or stage_of(record),
        arrived_unix_s=record.arrived_unix,
        prompt_tokens=record.prompt_tokens,
        max_tokens=record.max_tokens,
        n=record.n,
        output_tokens=record.output_tokens,
        attempts=record.attempts,
        preemptions=record.preemptions,
        decision=record.decision,
        reason=record.reason,
        prefill=_name(computing, names),
        decode=_name(record.decode, names),
        routed_s=after(record.routed),
        prefill_began_s=after(at_computing.get(Moment.CONTEXT_BEGIN)),
        first_token_s=after(record.first_token),
        transfer_began_s=after(record.at_decode.get(Moment.MIGRATION_BEGIN)),
        transfer_ended_s=after(record.at_decode.get(Moment.MIGRATION_END)),
        decode_began_s=after(record.at_decode.get(Moment.DECODING_BEGIN)),
        ended_s=after(record.ended),
        tpot_s=record.tpot_s,
        detail=record.detail,
    )


def _name(worker: InstanceId | None, names: Mapping[InstanceId, str]) -> str | None:
    return None if worker is None else names.get(worker, worker)


def stage_of(record: Record) -> str:
    """Where a request is that has not ended, as far as workers have told."""
    if Moment.DECODING_BEGIN in record.at_decode:
        return "decode"
    if record.first_token is not None:
        return "decode" if record.prefill is None else "transfer"
    computing = record.at_decode if record.prefill is None else record.at_prefill
    return "prefill" if Moment.CONTEXT_BEGIN in computing else "queued"
