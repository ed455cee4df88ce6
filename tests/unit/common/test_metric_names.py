"""Every name that vLLM's users know is there, `baton:` in place of `vllm:`, or is named here."""

from prometheus_client.parser import text_string_to_metric_families

from common.ids import InstanceId, Role
from common.messages import Metrics
from common.metrics import GatewayMetrics
from common.worker_metrics import WORKER_HISTOGRAMS, Tally
from tests.unit.common.test_metrics import HELLO, SNAPSHOT

GAUGES = {
    *("num_requests_running", "num_requests_waiting", "num_requests_waiting_by_reason"),
    *("kv_cache_usage_perc", "cache_config_info"),
}
COUNTERS = {
    *("prompt_tokens", "prompt_tokens_cached", "generation_tokens", "request_success"),
    *("num_preemptions", "prefix_cache_queries", "prefix_cache_hits"),
}
HISTOGRAMS = {
    *("time_to_first_token_seconds", "inter_token_latency_seconds"),
    *("request_time_per_output_token_seconds", "e2e_request_latency_seconds"),
    *("request_queue_time_seconds", "request_prefill_time_seconds", "request_decode_time_seconds"),
    *("request_prompt_tokens", "request_generation_tokens", "request_max_num_generation_tokens"),
    *("request_params_n", "request_params_max_tokens", "request_prefill_kv_computed_tokens"),
    "iteration_tokens_total",
}
NOT_HERE = {
    "request_inference_time_seconds": "its two parts are of two processes: prefill, decode",
    "external_prefix_cache_queries": "prefixes of peers count as prefix_cache_hits",
    "external_prefix_cache_hits": "the same",
    "engine_sleep_state": "workers do not sleep",
    "lora_requests_info": "adapters are not served",
    "mm_cache_queries": "text alone is served",
    "mm_cache_hits": "the same",
    "spec_decode_num_draft_tokens": "nothing is drafted",
    "spec_decode_num_accepted_tokens": "the same",
    "time_per_output_token_seconds": "deprecated: inter_token_latency_seconds",
}
D = InstanceId("d" * 32)


def exported(metrics: GatewayMetrics) -> dict[str, str]:
    """Name -> type."""
    families = text_string_to_metric_families(metrics.render().decode())
    return {family.name.removeprefix("baton:"): family.type for family in families}


def test_every_name_of_vllm_is_exported_or_has_a_reason() -> None:
    metrics = GatewayMetrics("m")
    metrics.metrics(Role.DECODE, D, Metrics(values=()))
    metrics.snapshot(Role.DECODE, D, SNAPSHOT)
    metrics.joined(HELLO)
    told = exported(metrics)
    for names, kind in ((GAUGES, "gauge"), (COUNTERS, "counter"), (HISTOGRAMS, "histogram")):
        assert {name: told.get(name) for name in names} == dict.fromkeys(names, kind)
    assert not NOT_HERE.keys() & told.keys()


def test_every_series_tells_its_model() -> None:
    """Dashboards choose by it."""
    metrics = GatewayMetrics("m")
    metrics.metrics(Role.DECODE, D, Metrics(values=()))
    metrics.snapshot(Role.DECODE, D, SNAPSHOT)
    for family in text_string_to_metric_families(metrics.render().decode()):
        for sample in family.samples:
            assert sample.labels["model_name"] == "m", sample


def test_a_workers_histogram_arrives_as_it_was_kept() -> None:
    tally = Tally("request_queue_time_seconds")
    for value in (0.001, 0.0011, 3.0, 1e6):
        tally.observe(value)
    told = tally.values()
    assert len(told) == 5  # sum, count, and the buckets that hold anything
    metrics = GatewayMetrics("m")
    metrics.metrics(Role.DECODE, D, Metrics(values=tuple(told.items())))
    families = text_string_to_metric_families(metrics.render().decode())
    (family,) = (one for one in families if one.name == "baton:request_queue_time_seconds")
    seen = {(one.name, one.labels.get("le")): one.value for one in family.samples}
    name = "baton:request_queue_time_seconds"
    assert seen[f"{name}_bucket", "0.001"] == 1  # bounds are inclusive
    assert seen[f"{name}_bucket", "0.005"] == seen[f"{name}_bucket", "2.5"] == 2
    assert seen[f"{name}_bucket", "5.0"] == seen[f"{name}_bucket", "2560.0"] == 3
    assert seen[f"{name}_bucket", "+Inf"] == seen[f"{name}_count", None] == 4
    assert seen[f"{name}_sum", None] == 0.001 + 0.0011 + 3.0 + 1e6


def test_bounds_ascend() -> None:
    for _, bounds in WORKER_HISTOGRAMS.values():
        assert sorted(set(bounds)) == list(bounds)


def test_every_way_to_end_is_counted_from_the_start() -> None:
    told = GatewayMetrics("m").totals()
    assert told.answers == {"stop": 0, "length": 0, "abort": 0}
