"""What workers count, by name, and how a gateway shows what they told it.

Names are vLLM's where vLLM has one; each ends in its unit. Workers have no HTTP: what they count
travels in `Metrics` messages. Must not decide anything by it.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from common.ids import InstanceId, Role
from common.messages import Snapshot

SHORT_INSTANCE = 8

SECONDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
LONG_SECONDS = (*SECONDS, 20, 40, 80, 160, 640, 2560)
TOKEN_SECONDS = (0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1)
TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)

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
WORKER_HISTOGRAMS = {  # see `Tally`
    "request_queue_time_seconds": (
        "Prompts' waiting where they are computed, to their first pass",
        LONG_SECONDS,
    ),
    "request_prefill_time_seconds": (
        "From a prompt's first pass to its first token",
        LONG_SECONDS,
    ),
    "request_handoff_time_seconds": (
        "From the first pull of a prompt's pages to the last",
        LONG_SECONDS,
    ),
    "iteration_tokens_total": ("Rows of a pass: prompt and output tokens", TOKENS),
}
WORKER_GAUGES = {
    "process_resident_memory_bytes": "Resident memory, shared pages included",
    "kv_host_held_pages": "Pages of host memory that preempted sequences hold",
}

CONTROL_COUNTERS = tuple(name for name in WORKER_COUNTERS if name.startswith("control_"))
"""Those that a gateway has, too."""

TOLD = frozenset(
    (
        *WORKER_COUNTERS,
        *WORKER_GAUGES,
        *(f"{name}_{part}" for name in WORKER_HISTOGRAMS for part in ("sum", "count")),
        *(
            f"{name}_bucket_{n}"
            for name, (_, bounds) in WORKER_HISTOGRAMS.items()
            for n in range(len(bounds))
        ),
    )
)
_WORKER_LABELS = ("model_name", "role", "instance")
CONFIG_LABELS = (
    *("block_size", "num_gpu_blocks", "block_bytes", "cache_dtype"),
    *("max_num_seqs", "max_num_batched_tokens"),
)


class Tally:
    """A histogram that a worker keeps. It travels as NAME_sum, NAME_count and, of those of its
    buckets that hold anything, NAME_bucket_0, ...: how many are in that one alone."""

    def __init__(self, name: str) -> None:
        """`name`: one of WORKER_HISTOGRAMS."""
        self._name = name
        self._bounds: Sequence[float] = WORKER_HISTOGRAMS[name][1]
        self._inside = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._inside[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def values(self) -> dict[str, float]:
        """By the names that they travel as."""
        told = {f"{self._name}_sum": self._sum, f"{self._name}_count": sum(self._inside)}
        for n, count in enumerate(self._inside[:-1]):
            if count:
                told[f"{self._name}_bucket_{n}"] = count
        return told


def control_counters(counts: Mapping[str, int]) -> dict[str, float]:
    """A mailbox's counts, and whatever else is counted in that form, by metric's name."""
    values: dict[str, float] = {}
    for reason, count in counts.items():  # dropped_malformed, dropped_undecodable, ...
        name = f"control_messages_{reason.partition('_')[0]}_total"
        values[name] = values.get(name, 0) + count
    return values


class Worker(NamedTuple):
    role: Role
    instance: InstanceId

    def labels(self, model_name: str) -> tuple[str, str, str]:
        return (model_name, self.role.value, self.instance[:SHORT_INSTANCE])


class WorkerCollector(Collector):
    """The last that each worker told. A worker's own counters restart with it."""

    def __init__(self, model_name: str) -> None:
        self._model = model_name
        self.values: dict[Worker, dict[str, float]] = {}
        self.snapshots: dict[Worker, Snapshot] = {}
        self.configs: dict[Worker, tuple[str, ...]] = {}  # values of `CONFIG_LABELS`
        self.gateway: tuple[Worker, Callable[[], Mapping[str, int]]] | None = None

    def collect(self) -> Iterator[Metric]:
        for name, help_text in WORKER_COUNTERS.items():
            counter = CounterMetricFamily(f"baton:{name}", help_text, labels=_WORKER_LABELS)
            for worker, values in self.values.items():  # what has not happened yet is 0
                counter.add_metric(worker.labels(self._model), values.get(name, 0))
            if self.gateway is not None and name in CONTROL_COUNTERS:
                gateway, counts = self.gateway
                counter.add_metric(
                    gateway.labels(self._model), control_counters(counts()).get(name, 0)
                )
            yield counter
        yield from self._histograms()
        for name, help_text in WORKER_GAUGES.items():
            gauge = GaugeMetricFamily(f"baton:{name}", help_text, labels=_WORKER_LABELS)
            for labels, value in self._told(name):
                gauge.add_metric(labels, value)
            yield gauge
        yield from self._loads()
        config = GaugeMetricFamily(
            "baton:cache_config_info",
            "What a worker's pages and passes are",
            labels=(*_WORKER_LABELS, *CONFIG_LABELS),
        )
        for worker, values in self.configs.items():
            config.add_metric((*worker.labels(self._model), *values), 1)
        yield config

    def _histograms(self) -> Iterator[Metric]:
        for name, (help_text, bounds) in WORKER_HISTOGRAMS.items():
            family = HistogramMetricFamily(f"baton:{name}", help_text, labels=_WORKER_LABELS)
            for worker, values in self.values.items():
                inside = (values.get(f"{name}_bucket_{n}", 0) for n in range(len(bounds)))
                rows = [*zip(map(str, map(float, bounds)), accumulate(inside), strict=True)]
                rows.append(("+Inf", values.get(f"{name}_count", 0)))
                total = values.get(f"{name}_sum", 0.0)
                family.add_metric(worker.labels(self._model), rows, total)
            yield family

    def _told(self, name: str) -> Iterator[tuple[tuple[str, str, str], float]]:
        for worker, values in self.values.items():
            if name in values:
                yield worker.labels(self._model), values[name]

    def _loads(self) -> Iterator[Metric]:
        running = GaugeMetricFamily(
            "baton:num_requests_running", "Sequences in passes", labels=_WORKER_LABELS
        )
        waiting = GaugeMetricFamily(
            "baton:num_requests_waiting", "Sequences queued at a worker", labels=_WORKER_LABELS
        )
        why = GaugeMetricFamily(
            "baton:num_requests_waiting_by_reason",
            "The same by why: for room (capacity)",
            labels=(*_WORKER_LABELS, "reason"),
        )
        usage = GaugeMetricFamily(
            "baton:kv_cache_usage_perc", "Share of pages held, 0 to 1", labels=_WORKER_LABELS
        )
        for worker, snapshot in self.snapshots.items():
            running.add_metric(worker.labels(self._model), snapshot.running)
            waiting.add_metric(worker.labels(self._model), snapshot.waiting)
            why.add_metric((*worker.labels(self._model), "capacity"), snapshot.waiting)
            held = snapshot.n_pages - snapshot.free_pages
            usage.add_metric(worker.labels(self._model), held / max(1, snapshot.n_pages))
        yield from (running, waiting, why, usage)
