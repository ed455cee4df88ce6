"""Prometheus instruments of a gateway, and the page that shows them beside what workers told it.

Names are vLLM's, prefixed `baton:`, where vLLM has one; each ends in its unit. Must not import
what only one side has.
"""

from collections.abc import Callable, Iterable, Mapping
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
from prometheus_client.exposition import generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.samples import Sample

from common.ids import InstanceId, Role
from common.messages import Hello, Metrics, Snapshot
from common.tally import Tally
from common.worker_metrics import LONG_SECONDS, TOKEN_SECONDS, TOKENS, TOLD, Worker, WorkerCollector

SHARED_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
"""Of the environment of gateways that count together: the directory of their files."""

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SAMPLES = (1, 2, 5, 10, 20, 50, 100, 128)


def share_values(number: int) -> None:
    """What this process counts lies in files of that number, where its next life goes on.

    Before any instrument is made, SHARED_VARIABLE being set since the process began.
    """
    made = prometheus_values.MultiProcessValue(lambda: number)  # pyright: ignore[reportUnknownMemberType]
    prometheus_values.ValueClass = made


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
        self._workers = WorkerCollector(model_name)
        self._page.register(self._workers)
        self.time_to_first_token_seconds = self._histogram(
            "time_to_first_token_seconds", "From arrival to the first token", LONG_SECONDS
        )
        self.inter_token_latency_seconds = self._histogram(
            "inter_token_latency_seconds", "Between two tokens of a sample", TOKEN_SECONDS
        )
        self.request_time_per_output_token_seconds = self._histogram(
            "request_time_per_output_token_seconds",
            "Mean time a token after a request's first",
            TOKEN_SECONDS,
        )
        self.request_decode_time_seconds = self._histogram(
            "request_decode_time_seconds", "From the first token to the last", LONG_SECONDS
        )
        self.e2e_request_latency_seconds = self._histogram(
            "e2e_request_latency_seconds", "From arrival to the end of the answer", LONG_SECONDS
        )
        self.request_prompt_tokens = self._histogram(
            "request_prompt_tokens", "Prompt tokens of a request", TOKENS
        )
        self.request_generation_tokens = self._histogram(
            "request_generation_tokens", "Output tokens of a request", TOKENS
        )
        self.request_max_num_generation_tokens = self._histogram(
            "request_max_num_generation_tokens", "Output tokens of its longest sample", TOKENS
        )
        self.request_prefill_kv_computed_tokens = self._histogram(
            "request_prefill_kv_computed_tokens", "Prompt tokens that were computed anew", TOKENS
        )
        self.request_params_max_tokens = self._histogram(
            "request_params_max_tokens", "max_tokens of a request", TOKENS
        )
        self.request_params_n = self._histogram("request_params_n", "n of a request", _SAMPLES)
        self.prompt_tokens_total = self._counter("prompt_tokens_total", "Prompt tokens served")
        self.prompt_tokens_cached_total = self._counter(
            "prompt_tokens_cached_total", "Prompt tokens that were not computed anew"
        )
        self.generation_tokens_total = self._counter(
            "generation_tokens_total", "Output tokens sent to clients"
        )
        self.tally = Tally(
            self.generation_tokens_total, self.inter_token_latency_seconds, TOKEN_SECONDS
        )
        self._success = Counter(
            "baton:request_success_total",
            "Requests answered whole, by the reason they ended",
            ("model_name", "finished_reason"),
            registry=self._registry,
        )
        for reason in ("stop", "length", "abort"):  # there from the start: a first one is a change
            self._success.labels(model_name, reason)
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
        self.tally.flush()
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
        self._workers.gateway = Worker(Role.GATEWAY, instance), counts

    def totals(self) -> Totals:
        """For whoever looks at the last minute."""
        self.tally.flush()
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
        self._workers.configs[Worker(hello.peer.role, hello.peer.instance)] = (
            *(str(limits.page_tokens), str(limits.n_pages), str(pool.page_bytes), model.kv_dtype),
            *(str(limits.max_num_seqs), str(limits.max_num_batched_tokens)),
        )

    def snapshot(self, role: Role, instance: InstanceId, snapshot: Snapshot) -> None:
        """A worker told its load."""
        self._workers.snapshots[Worker(role, instance)] = snapshot

    def metrics(self, role: Role, instance: InstanceId, metrics: Metrics) -> None:
        """A worker told its counters. Names that are not known here are left out."""
        self._workers.values[Worker(role, instance)] = {
            name: value for name, value in metrics.values if name in TOLD
        }

    def forget(self, instance: InstanceId) -> None:
        """A worker is gone. Idempotent."""
        workers = self._workers
        for table in (workers.values, workers.snapshots, workers.configs):
            for worker in [w for w in table if w.instance == instance]:
                del table[worker]

    def render(self) -> bytes:
        """The page at `/metrics`, of `CONTENT_TYPE`."""
        self.tally.flush()
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
