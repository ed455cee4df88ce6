"""The document that `GET /status` answers with.

Times are seconds; a share is 0 to 1. Never the text of a prompt or an answer, nor their tokens.
`launch.gateway.summary` makes it. Must hold declarations only.
"""

import msgspec


class Body(msgspec.Struct, frozen=True, kw_only=True):
    """Base of the document's parts."""


class Percentiles(Body, frozen=True):
    """Of `n` values; without any there is none."""

    n: int
    p50: float | None = None
    p90: float | None = None
    p99: float | None = None


class Pages(Body, frozen=True):
    """KV pages of one worker, or of a pool: total = held + cached + free."""

    total: int
    held: int
    cached: int
    free: int


class WorkerStatus(Body, frozen=True):
    """One worker: what its supervisor knows, where it is this host's, and what it tells itself."""

    name: str
    role: str
    state: str  # starting, up, lost (alive and not heard of), restarting
    instance: str | None  # None: its process was never started
    pid: int | None  # None: another host's, or not alive
    restarts: int | None  # None: nobody here restarts it
    trouble: str  # how its last process ended, until the next has joined
    uptime_s: float | None = None  # since it has joined
    heartbeat_age_s: float | None = None
    running: int = 0
    waiting: int = 0
    queued_tokens: int = 0  # of prompts, to be computed here
    pages: Pages | None = None
    page_tokens: int | None = None
    page_bytes: int | None = None
    step_s: float | None = None  # recent median of a pass
    step_age_s: float | None = None  # of the pass that runs; 0: none does
    tokens_per_s: float | None = None  # rows computed, prompts' and outputs', of late
    busy_share: float | None = None  # of the time, in passes, of late
    memory_bytes: int | None = None
    preemptions: int | None = None


class PoolStatus(Body, frozen=True):
    """Sums over the workers of a pool that are up."""

    up: int
    workers: int  # those that are not up included
    running: int
    waiting: int
    queued_tokens: int
    pages: Pages
    tokens_per_s: float
    restarts: int


class Latencies(Body, frozen=True):
    """Of answers that ended in the window. `itl_s` is interpolated in the metric's buckets."""

    ttft_s: Percentiles
    tpot_s: Percentiles
    itl_s: Percentiles
    e2e_s: Percentiles


class Attainment(Body, frozen=True):
    """SLOs that answers in the window were owed, and the share of them that were met."""

    ttft_s: float | None  # what is owed where a request states nothing itself
    tpot_s: float | None
    judged: int  # answers that were owed something
    met: float | None = None  # all that they were owed
    ttft_met: float | None = None
    tpot_met: float | None = None


class Handoffs(Body, frozen=True):
    """Pages from prefill to decode, in the window: from the first pull to the last."""

    per_s: float
    seconds: Percentiles


class Rates(Body, frozen=True):
    """In the window."""

    answers_per_s: float
    failures_per_s: float
    prompt_tokens_per_s: float
    output_tokens_per_s: float


class RequestStatus(Body, frozen=True):
    """One prompt's way through the pools. Times are seconds after its arrival, none later
    than its end; null: not (yet)."""

    id: str
    state: str  # queued, prefill, transfer, decode; how it ended: stop, length, aborted, ...
    arrived_unix_s: float
    prompt_tokens: int
    max_tokens: int
    n: int
    output_tokens: int  # once it has ended
    attempts: int
    preemptions: int
    decision: str
    reason: str
    prefill: str | None  # worker that computed the prompt, of the last attempt
    decode: str | None
    routed_s: float | None
    prefill_began_s: float | None
    first_token_s: float | None
    transfer_began_s: float | None
    transfer_ended_s: float | None
    decode_began_s: float | None
    ended_s: float | None
    tpot_s: float | None
    detail: str


class Load(Body, frozen=True, array_like=True):
    """One worker at one time; an array in the document."""

    held: int  # pages
    cached: int
    total: int
    running: int  # requests
    waiting: int


class Point(Body, frozen=True):
    """One second or so. Rates and percentiles are of the last seconds."""

    unix_s: float
    prompt_tokens_per_s: float
    output_tokens_per_s: float
    ttft_s: Percentiles
    tpot_s: Percentiles
    workers: dict[str, Load]  # by name


class Status(Body, frozen=True):
    """The whole document."""

    unix_s: float
    uptime_s: float
    window_s: float  # what "the window" is; shorter where less is known
    model: str
    ready: bool
    draining: bool
    versions: dict[str, str]
    in_progress: int  # HTTP requests
    workers: list[WorkerStatus]
    pools: dict[str, PoolStatus]
    slo: Attainment
    latency: Latencies
    handoff: Handoffs
    rates: Rates
    failures: dict[str, int]  # in the window, by HTTP status; refusals are 429 and 503
    failures_total: dict[str, int]
    requests: list[RequestStatus]  # the latest first
    series: list[Point]  # those that were asked for, in order
    gateways: int = 1  # that share the port; figures, series and requests are of all
    gateways_missing: dict[str, str] = {}  # but of these, by name, and why they do not tell
