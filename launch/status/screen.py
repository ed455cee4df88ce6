"""A status as lines of text. Pure: the document in, lines out; no terminal is known here."""

from collections.abc import Iterable, Sequence

from launch.gateway.status import (
    Pages,
    Percentiles,
    PoolStatus,
    RequestStatus,
    Status,
    WorkerStatus,
)

NONE = "-"
_GAP = "  "


def lines(status: Status, *, n_requests: int) -> list[str]:
    """All of it, with the last `n_requests`."""
    blocks = [
        [*_head(status), *_missing(status)],
        table(_pool_rows(status)),
        table(_latency_rows(status)),
        _rates(status),
        table(_worker_rows(status.workers)),
        [f"{one.name}: {one.trouble}" for one in status.workers if one.trouble],
        table(_request_rows(status.requests[:n_requests])) if n_requests else [],
    ]
    shown = [block for block in blocks if block]
    return [visible(line) for block in shown for line in (*block, "")][:-1]


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns as wide as their widest cell, the first to the left, the others to the right.

    Of a table that has nothing but its heading, nothing.
    """
    if len(rows) < 2:
        return []
    rows = [list(map(visible, row)) for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        _GAP.join(
            cell.rjust(width) if place else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def visible(text: str) -> str:
    """What others have named (a model, say) cannot steer a terminal."""
    return "".join(
        one if one.isprintable() else one.encode("unicode_escape").decode() for one in text
    )


def _head(status: Status) -> list[str]:
    state = "ready" if status.ready else "NOT READY"
    parts = (
        status.model,
        "draining" if status.draining else state,
        f"up {duration(status.uptime_s)}",
        f"baton {status.versions.get('baton', NONE)}",
        f"{status.in_progress} in progress",
        *([f"{status.gateways} gateways"] if status.gateways > 1 else []),
    )
    return [_GAP.join(parts)]


def _missing(status: Status) -> list[str]:
    return [
        f"{name} {why}; what it knows is in none of these figures"
        for name, why in status.gateways_missing.items()
    ]


def _pool_rows(status: Status) -> list[list[str]]:
    heading = [
        *("pool", "up", "running", "waiting", "queued tokens", "tokens/s"),
        *("pages held", "cached", "free", "restarts"),
    ]
    return [heading, *(_pool_row(name, pool) for name, pool in status.pools.items())]


def _pool_row(name: str, pool: PoolStatus) -> list[str]:
    return [
        name,
        f"{pool.up}/{pool.workers}",
        *map(count, (pool.running, pool.waiting, pool.queued_tokens, pool.tokens_per_s)),
        *_pages(pool.pages),
        count(pool.restarts),
    ]


def _latency_rows(status: Status) -> list[list[str]]:
    latency, slo, handoff = status.latency, status.slo, status.handoff
    return [
        [f"last {status.window_s:.0f} s", "p50", "p90", "p99", "answers", "target", "met"],
        ["TTFT", *_percentiles(latency.ttft_s), milliseconds(slo.ttft_s), share(slo.ttft_met)],
        ["TPOT", *_percentiles(latency.tpot_s), milliseconds(slo.tpot_s), share(slo.tpot_met)],
        ["ITL", *_percentiles(latency.itl_s), NONE, NONE],
        ["E2E", *_percentiles(latency.e2e_s), NONE, share(slo.met)],
        ["handoff", *_percentiles(handoff.seconds), NONE, NONE],
    ]


def _rates(status: Status) -> list[str]:
    rates = status.rates
    text = (
        f"{rate(rates.answers_per_s)} answers/s  {rate(status.handoff.per_s)} handoffs/s  "
        f"{count(rates.prompt_tokens_per_s)} prompt tokens/s  "
        f"{count(rates.output_tokens_per_s)} output tokens/s  "
        f"{rate(rates.failures_per_s)} failures/s"
    )
    kinds = ", ".join(f"{code}: {count(n)}" for code, n in sorted(status.failures.items()) if n)
    return [f"{text} ({kinds})" if kinds else text]


def _worker_rows(workers: Iterable[WorkerStatus]) -> list[list[str]]:
    heading = [
        *("worker", "state", "up", "heard", "running", "waiting", "tokens/s", "busy", "pass"),
        *("pages held", "cached", "free", "memory", "restarts"),
    ]
    return [heading, *map(_worker_row, workers)]


def _worker_row(worker: WorkerStatus) -> list[str]:
    return [
        worker.name,
        worker.state,
        NONE if worker.uptime_s is None else duration(worker.uptime_s),
        NONE if worker.heartbeat_age_s is None else f"{worker.heartbeat_age_s:.1f} s",
        *map(count, (worker.running, worker.waiting, worker.tokens_per_s)),
        share(worker.busy_share),
        milliseconds(worker.step_s),
        *_pages(worker.pages),
        NONE if worker.memory_bytes is None else f"{worker.memory_bytes / 1e6:,.0f} MB",
        count(worker.restarts),
    ]


def _request_rows(requests: Iterable[RequestStatus]) -> list[list[str]]:
    heading = ["request", "state", "prompt", "output", "prefill", "decode", "TTFT", "TPOT", "E2E"]
    return [heading, *map(_request_row, requests)]


def _request_row(request: RequestStatus) -> list[str]:
    return [
        request.id,
        request.state,
        count(request.prompt_tokens),
        count(request.output_tokens) if request.ended_s is not None else NONE,
        request.prefill or NONE,
        request.decode or NONE,
        *map(milliseconds, (request.first_token_s, request.tpot_s, request.ended_s)),
    ]


def _pages(pages: Pages | None) -> list[str]:
    if pages is None:
        return [NONE] * 3
    return [count(pages.held), count(pages.cached), count(pages.free)]


def _percentiles(values: Percentiles) -> list[str]:
    return [*map(milliseconds, (values.p50, values.p90, values.p99)), count(values.n)]


# --- numbers -----------------------------------------------------------------------------------


def count(n: float | None) -> str:
    return NONE if n is None else f"{n:,.0f}"


def rate(per_s: float) -> str:
    """Of what there are few a second."""
    return f"{per_s:,.1f}" if per_s else "0"


def share(value: float | None) -> str:
    return NONE if value is None else f"{100 * value:.0f} %"


def milliseconds(seconds: float | None) -> str:
    """Three digits of it, in ms up to ten seconds."""
    if seconds is None:
        return NONE
    if seconds >= 10:
        return f"{seconds:,.1f} s"
    return f"{1e3 * seconds:,.{0 if seconds >= 0.1 else 1}f} ms"


def duration(seconds: float) -> str:
    """The two largest units: "3 h 12 min", "45 s"."""
    minutes, s = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [(days, "d"), (hours, "h"), (minutes, "min"), (s, "s")]
    first = next((place for place, (n, _) in enumerate(parts) if n), len(parts) - 1)
    return " ".join(f"{n} {unit}" for n, unit in parts[first : first + 2])
