"""Prometheus instruments: what a worker counts, and what a gateway exposes of itself and of them.

Names are vLLM's, prefixed `baton:`, where vLLM has one; each ends in its unit. Workers have no
HTTP: their counters travel in `Metrics` messages. Must not import what only one side has.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
)
from prometheus_client import (
    values as prometheus_values,
)
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.exposition import generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from common.ids import InstanceId, Role
from common.messages import Hello, Metrics, Snapshot

SHARED_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
"""Of the environment of gateways that count together: the directory of their files."""

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SHORT_INSTANCE = 8

WORKER_COUNTERS = {
    "engine_steps_total": "Passes of the model that were computed",
    "engine_step_failures_total": "Passes that raised",
    "engine_step_seconds_total": "Time spent in passes",
    "engine_step_tokens_total": "Rows computed in passes: prompt and output tokens",
    "num_preemptions_total": "Sequences whose pages were taken to let others go on",
    "prefix_cache_queries_total": "Prompt tokens that were looked up in the prefix cache",
    "prefix_cache_hits_total": "Prompt tokens whose pages were found there",
    "kv_pulls_total": "Pulls of pages that were copied and validated",
    "kv_pull_failures_total": "Pulls that failed or were cancelled",
    "kv_pull_seconds_total": "Time of pulls done, from asked for to final, summed",
    "kv_pull_bytes_total": "Bytes of pages pulled",
    "kv_served_bytes_total": "Bytes of pages sent to peers (memory that they map is not counted)",
    "kv_bad_frames_total": "Frames at page sockets, and pages, that were no message, or corrupt",
    "kv_spills_total": "Sequences whose pages were copied to host memory",
    "kv_spill_bytes_total": "Bytes of pages copied to host memory",
    "kv_restores_total": "Sequences whose pages were copied back from host memory",
    "kv_restore_bytes_total": "Bytes of pages copied back from host memory",
    "kv_host_pull_failures_total": "Copies to or from host memory that failed or were cancelled",
    "control_messages_sent_total": "Control messages sent",
    "control_messages_received_total": "Control messages received and understood",
    "control_messages_unsent_total": "Control messages not sent: no link, a full or a cut one",
    "control_messages_dropped_total": "Frames received and dropped: garbage, strangers'",
    "control_messages_stale_total": "Messages of attempts that are over, dropped",
    "request_log_lines_lost_total": "Lines of the request log that could not be written",
    "process_cpu_seconds_total": "CPU time, user and system",
}
WORKER_SUMMARIES = {  # each travels as NAME_sum and NAME_count
    "request_queue_time_seconds": "Prompts' waiting where they are computed, to their first pass",
    "request_prefill_time_seconds": "From a prompt's first pass to its first token",
    "request_handoff_time_seconds": "From the first pull of a prompt's pages to the last",
}
WORKER_GAUGES = {
    "process_resident_memory_bytes": "Resident memory, shared pages included",
    "kv_host_held_pages": "Pages of host memory that preempted sequences hold",
}

CONTROL_COUNTERS = tuple(name for name in WORKER_COUNTERS if name.startswith("control_"))
"""Those that a gateway has, too."""

_TOLD = frozenset(
    (
        *WORKER_COUNTERS,
        *WORKER_GAUGES,
        *(f"{name}_{part}" for name in WORKER_SUMMARIES for part in ("sum", "count")),
    )
)
_SECONDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
_LONG_SECONDS = (*_SECONDS, 20, 40, 80, 160, 640, 2560)
_TOKEN_SECONDS = (0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1)
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)
_SAMPLES = (1, 2, 5, 10, 20, 50, 100, 128)
_WORKER_LABELS = ("role", "instance")
_CONFIG_LABELS = (
    *("block_size", "num_gpu_blocks", "block_bytes", "cache_dtype"),
    *("max_num_seqs", "max_num_batched_tokens"),
)


def control_counters(counts: Mapping[str, int]) -> dict[str, float]:
    """A mailbox's counts, and whatever else is counted in that form, by metric's name."""
    values: dict[str, float] = {}
    for reason, count in counts.items():  # dropped_malformed, dropped_undecodable, ...
        name = f"control_messages_{reason.partition('_')[0]}_total"
        values[name] = values.get(name, 0) + count
    return values


def share_values(number: int) -> None:
    """What this process counts lies in files of that number, where its next life goes on.

    Before any instrument is made, SHARED_VARIABLE being set since the process began.
    """
    made = prometheus_values.MultiProcessValue(lambda: number)  # pyright: ignore[reportUnknownMemberType]
    prometheus_values.ValueClass = made


class _Worker(NamedTuple):
    role: Role
    instance: InstanceId

    @property
    def labels(self) -> tuple[str, str]:
        return (self.role.value, self.instance[:SHORT_INSTANCE])


class _WorkerCollector(Collector):
    """The last that each worker told. A worker's own counters restart with it."""

    def __init__(self) -> None:
        self.values: dict[_Worker, dict[str, float]] = {}
        self.snapshots: dict[_Worker, Snapshot] = {}
        self.configs: dict[_Worker, tuple[str, ...]] = {}  # values of `_CONFIG_LABELS`
        self.gateway: tuple[_Worker, Callable[[], Mapping[str, int]]] | None = None

    def collect(self) -> Iterator[Metric]:
        for name, help_text in WORKER_COUNTERS.items():
            counter = CounterMetricFamily(f"baton:{name}", help_text, labels=_WORKER_LABELS)
            for worker, values in self.values.items():  # what has not happened yet is 0
                counter.add_metric(worker.labels, values.get(name, 0))
            if self.gateway is not None and name in CONTROL_COUNTERS:
                gateway, counts = self.gateway
                counter.add_metric(gateway.labels, control_counters(counts()).get(name, 0))
            yield counter
        for name, help_text in WORKER_SUMMARIES.items():
            summary = SummaryMetricFamily(f"baton:{name}", help_text, labels=_WORKER_LABELS)
            for worker, values in self.values.items():
                n, total = values.get(f"{name}_count", 0), values.get(f"{name}_sum", 0.0)
                summary.add_metric(worker.labels, int(n), total)
            yield summary
        for name, help_text in WORKER_GAUGES.items():
            gauge = GaugeMetricFamily(f"baton:{name}", help_text, labels=_WORKER_LABELS)
            for labels, value in self._told(name):
                gauge.add_metric(labels, value)
            yield gauge
        yield from self._loads()
        config = GaugeMetricFamily(
            "baton:cache_config_info",
            "What a worker's pages and passes are",
            labels=(*_WORKER_LABELS, *_CONFIG_LABELS),
        )
        for worker, values in self.configs.items():
            config.add_metric((*worker.labels, *values), 1)
        yield config

    def _told(self, name: str) -> Iterator[tuple[tuple[str, str], float]]:
        for worker, values in self.values.items():
            if name in values:
                yield worker.labels, values[name]

    def _loads(self) -> Iterator[Metric]:
        running = GaugeMetricFamily(
            "baton:num_requests_running", "Sequences in passes", labels=_WORKER_LABELS
        )
        waiting = GaugeMetricFamily(
            "baton:num_requests_waiting", "Sequences queued at a worker", labels=_WORKER_LABELS
        )
        usage = GaugeMetricFamily(
            "baton:kv_cache_usage_perc", "Share of pages held, 0 to 1", labels=_WORKER_LABELS
        )
        for worker, snapshot in self.snapshots.items():
            running.add_metric(worker.labels, snapshot.running)
            waiting.add_metric(worker.labels, snapshot.waiting)
            held = snapshot.n_pages - snapshot.free_pages
            usage.add_metric(worker.labels, held / max(1, snapshot.n_pages))
        yield from (running, waiting, usage)


class Totals(NamedTuple):
    """What a gateway has counted since its start, and buckets of its histogram of ITLs."""

    prompt_tokens: int
    generation_tokens: int
    answers: Mapping[str, int]  # by the reason they ended
    failures: Mapping[str, int]  # by HTTP status
    inter_token: tuple[tuple[float, int], ...]  # (upper bound in seconds, how many up to it)


class GatewayMetrics:
    """Everything at `/metrics`. One a gateway; used by its event loop's thread.

    The HTTP side observes requests on the public instruments; `snapshot`, `metrics` and `forget`
    take in what workers tell.
    """

    def __init__(self, model_name: str, *, shared: Path | None = None) -> None:
        """`shared`: the directory where several gateways count (see `share_values`): the page of
        each shows the sums."""
        disable_created_metrics()  # pyright: ignore[reportUnknownMemberType] one line a series
        self._page = CollectorRegistry()
        self._registry = self._page if shared is None else None  # of the instruments
        if shared is not None:
            MultiProcessCollector(self._page, str(shared))
        self._model = model_name
        self._workers = _WorkerCollector()
        self._page.register(self._workers)
        self.time_to_first_token_seconds = self._histogram(
            "time_to_first_token_seconds", "From arrival to the first token", _LONG_SECONDS
        )
        self.inter_token_latency_seconds = self._histogram(
            "inter_token_latency_seconds", "Between two tokens of a sample", _TOKEN_SECONDS
        )
        self.request_time_per_output_token_seconds = self._histogram(
            "request_time_per_output_token_seconds",
            "Mean time a token after a request's first",
            _TOKEN_SECONDS,
        )
        self.request_decode_time_seconds = self._histogram(
            "request_decode_time_seconds", "From the first token to the last", _LONG_SECONDS
        )
        self.e2e_request_latency_seconds = self._histogram(
            "e2e_request_latency_seconds", "From arrival to the end of the answer", _LONG_SECONDS
        )
        self.request_prompt_tokens = self._histogram(
            "request_prompt_tokens", "Prompt tokens of a request", _TOKENS
        )
        self.request_generation_tokens = self._histogram(
            "request_generation_tokens", "Output tokens of a request", _TOKENS
        )
        self.request_params_max_tokens = self._histogram(
            "request_params_max_tokens", "max_tokens of a request", _TOKENS
        )
        self.request_params_n = self._histogram("request_params_n", "n of a request", _SAMPLES)
        self.prompt_tokens_total = self._counter("prompt_tokens_total", "Prompt tokens served")
        self.cached_prompt_tokens_total = self._counter(
            "cached_prompt_tokens_total", "Prompt tokens that were not computed anew"
        )
        self.generation_tokens_total = self._counter(
            "generation_tokens_total", "Output tokens sent to clients"
        )
        self._success = Counter(
            "baton:request_success_total",
            "Requests answered whole, by the reason they ended",
            ("model_name", "finished_reason"),
            registry=self._registry,
        )
        self._failure = Counter(
            "baton:request_failure_total",
            "Requests that were refused or failed, by HTTP status",
            ("model_name", "status"),
            registry=self._registry,
        )
        self.request_slo_refused_total = self._counter(
            "request_slo_refused_total",
            "Requests refused before any work: their TTFT would miss the SLO that they state",
        )
        self._slo = Counter(
            "baton:request_slo_total",
            "Answers under a stated SLO, by which (ttft, tpot) and result (met, missed)",
            ("model_name", "slo", "result"),
            registry=self._registry,
        )
        self._attempts = Counter(
            "baton:attempts_total",
            "Attempts at a request's handoff, the first ones included",
            ("model_name",),
            registry=self._registry,
        )
        self._routed = Counter(
            "baton:disaggregation_total",
            "Attempts by who computes the prompt (remote: a prefill worker; local: the decode "
            "worker itself), and by why",
            ("model_name", "decision", "reason"),
            registry=self._registry,
        )
        self.slow_readers_total = self._counter(
            "slow_readers_total", "Clients that were cut off since they did not read"
        )
        self.requests_in_progress = Gauge(
            "baton:num_requests_in_progress",
            "HTTP requests that are being answered",
            ("model_name",),
            registry=self._registry,
            multiprocess_mode="livesum",
        ).labels(model_name)
        self.requests_in_progress.set(0)

    def success(self, finished_reason: str) -> None:
        """A request was answered whole: "stop", "length" or "abort"."""
        self._success.labels(self._model, finished_reason).inc()

    def failure(self, status: int) -> None:
        """A request was answered with an error."""
        self._failure.labels(self._model, str(status)).inc()

    def slo(self, name: str, *, met: bool) -> None:
        """An answer had a stated SLO: "ttft" or "tpot"."""
        self._slo.labels(self._model, name, "met" if met else "missed").inc()

    def attempt(self) -> None:
        self._attempts.labels(self._model).inc()

    def routed(self, decision: str, reason: str) -> None:
        """An attempt has workers: as its note `routed` tells."""
        self._routed.labels(self._model, decision, reason).inc()

    def gateway(self, instance: InstanceId, counts: Callable[[], Mapping[str, int]]) -> None:
        """Whose page this is; `counts` of its control messages (see `control_counters`), asked at
        each scrape."""
        self._workers.gateway = _Worker(Role.GATEWAY, instance), counts

    def totals(self) -> Totals:
        """For whoever looks at the last minute."""
        return Totals(
            prompt_tokens=int(_value(self.prompt_tokens_total)),
            generation_tokens=int(_value(self.generation_tokens_total)),
            answers=_by_label(self._success, "finished_reason"),
            failures=_by_label(self._failure, "status"),
            inter_token=tuple(
                (float(sample.labels["le"]), int(sample.value))
                for sample in _samples(self.inter_token_latency_seconds)
                if sample.name.endswith("_bucket")
            ),
        )

    # --- workers -----------------------------------------------------------------------------

    def joined(self, hello: Hello) -> None:
        """A worker is there: what it said of itself."""
        limits, model, pool = hello.limits, hello.model, hello.pool
        if limits is None or model is None or pool is None:
            return
        self._workers.configs[_Worker(hello.peer.role, hello.peer.instance)] = (
            *(str(limits.page_tokens), str(limits.n_pages), str(pool.page_bytes), model.kv_dtype),
            *(str(limits.max_num_seqs), str(limits.max_num_batched_tokens)),
        )

    def snapshot(self, role: Role, instance: InstanceId, snapshot: Snapshot) -> None:
        """A worker told its load."""
        self._workers.snapshots[_Worker(role, instance)] = snapshot

    def metrics(self, role: Role, instance: InstanceId, metrics: Metrics) -> None:
        """A worker told its counters. Names that are not known here are left out."""
        self._workers.values[_Worker(role, instance)] = {
            name: value for name, value in metrics.values if name in _TOLD
        }

    def forget(self, instance: InstanceId) -> None:
        """A worker is gone. Idempotent."""
        workers = self._workers
        for table in (workers.values, workers.snapshots, workers.configs):
            for worker in [w for w in table if w.instance == instance]:
                del table[worker]

    def render(self) -> bytes:
        """The page at `/metrics`, of `CONTENT_TYPE`."""
        return generate_latest(self._page)

    def _histogram(self, name: str, help_text: str, buckets: Iterable[float]) -> Histogram:
        return Histogram(
            f"baton:{name}",
            help_text,
            ("model_name",),
            buckets=tuple(buckets),
            registry=self._registry,
        ).labels(self._model)

    def _counter(self, name: str, help_text: str) -> Counter:
        return Counter(f"baton:{name}", help_text, ("model_name",), registry=self._registry).labels(
            self._model
        )


def _samples(instrument: Counter | Histogram) -> list[Sample]:
    return [sample for family in instrument.collect() for sample in family.samples]


def _value(counter: Counter) -> float:
    return next(one.value for one in _samples(counter) if one.name.endswith("_total"))


def _by_label(counter: Counter, label: str) -> dict[str, int]:
    return {
        one.labels[label]: int(one.value)
        for one in _samples(counter)
        if one.name.endswith("_total")
    }
