"""What a scraper sees: the gateway's own instruments, and what its workers told it."""

from pathlib import Path

import pytest
from prometheus_client import values
from prometheus_client.multiprocess import mark_process_dead
from prometheus_client.parser import text_string_to_metric_families

from common.ids import HostId, InstanceId, Role
from common.messages import (
    PROTOCOL,
    Hello,
    Limits,
    Metrics,
    ModelIdentity,
    Peer,
    RegionKey,
    Snapshot,
)
from common.metrics import (
    SHARED_VARIABLE,
    GatewayMetrics,
    share_values,
)
from common.worker_metrics import WORKER_COUNTERS, WORKER_GAUGES

D, G = InstanceId("d" * 32), InstanceId("9" * 32)
SNAPSHOT = Snapshot(
    sequence=1,
    whole=True,
    n_pages=10,
    free_pages=4,
    cached_pages=1,
    running=3,
    waiting=2,
    queued_tokens=0,
    step_s=0.0,
    tokens_per_s=0.0,
)


HELLO = Hello(
    protocol=PROTOCOL,
    peer=Peer(instance=D, role=Role.DECODE, host=HostId("h"), endpoints=()),
    model=ModelIdentity(
        name="m", fingerprint="f", kv_dtype="bfloat16", page_layout="1", kernel_path=""
    ),
    limits=Limits(
        n_pages=10,
        page_tokens=16,
        max_model_len=100,
        max_num_seqs=64,
        max_num_batched_tokens=512,
        max_waiting=1,
    ),
    pool=RegionKey(owner=D, host=HostId("h"), region=0, n_pages=10, page_bytes=4096, doors={}),
)


def scraped(metrics: GatewayMetrics) -> dict[tuple[str, ...], float]:
    """Samples by name and label values (by label name)."""
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(metrics.render().decode())
        for sample in family.samples
    }


def test_a_request_is_counted_under_the_names_of_vllm() -> None:
    metrics = GatewayMetrics("m")
    metrics.time_to_first_token_seconds.observe(0.03)
    metrics.generation_tokens_total.inc(5)
    metrics.success("length")
    metrics.failure(429)
    metrics.slo("ttft", met=True)
    metrics.slo("tpot", met=False)
    metrics.slo("tpot", met=False)
    seen = scraped(metrics)
    assert seen["baton:time_to_first_token_seconds_count", "m"] == 1
    assert seen["baton:time_to_first_token_seconds_bucket", "0.02", "m"] == 0
    assert seen["baton:time_to_first_token_seconds_bucket", "0.04", "m"] == 1
    assert seen["baton:generation_tokens_total", "m"] == 5
    assert seen["baton:request_success_total", "length", "m"] == 1
    assert seen["baton:request_failure_total", "m", "429"] == 1
    assert seen["baton:request_slo_total", "m", "met", "ttft"] == 1
    assert seen["baton:request_slo_total", "m", "missed", "tpot"] == 2


def test_workers_are_told_apart_and_forgotten() -> None:
    metrics = GatewayMetrics("m")
    values = (("kv_pulls_total", 3.0), ("process_resident_memory_bytes", 2.0), ("unheard", 1.0))
    waits = (("request_queue_time_seconds_sum", 1.5), ("request_queue_time_seconds_count", 3.0))
    metrics.metrics(Role.DECODE, D, Metrics(values=values + waits))
    metrics.snapshot(Role.DECODE, D, SNAPSHOT)
    metrics.joined(HELLO)
    seen = scraped(metrics)
    assert seen["baton:kv_pulls_total", "d" * 8, "m", "decode"] == 3
    assert seen["baton:process_resident_memory_bytes", "d" * 8, "m", "decode"] == 2
    assert seen["baton:request_queue_time_seconds_sum", "d" * 8, "m", "decode"] == 1.5
    assert seen["baton:request_queue_time_seconds_count", "d" * 8, "m", "decode"] == 3
    assert seen["baton:request_prefill_time_seconds_count", "d" * 8, "m", "decode"] == 0
    assert seen["baton:num_requests_running", "d" * 8, "m", "decode"] == 3
    assert seen["baton:num_requests_waiting", "d" * 8, "m", "decode"] == 2
    assert seen["baton:kv_cache_usage_perc", "d" * 8, "m", "decode"] == 0.6
    config = ("4096", "16", "bfloat16", "d" * 8, "512", "64", "m", "10", "decode")
    assert seen["baton:cache_config_info", *config] == 1
    assert not [key for key in seen if "unheard" in key[0]]
    metrics.forget(D)
    assert not [key for key in scraped(metrics) if "d" * 8 in key]


def test_the_gateway_counts_its_control_messages_beside_its_workers() -> None:
    metrics = GatewayMetrics("m")
    counts = {"received": 7, "dropped_malformed": 1, "dropped_undecodable": 2, "stale": 4}
    metrics.gateway(G, lambda: counts)
    metrics.metrics(Role.DECODE, D, Metrics(values=(("control_messages_dropped_total", 5.0),)))
    seen = scraped(metrics)
    assert seen["baton:control_messages_dropped_total", "9" * 8, "m", "gateway"] == 3
    assert seen["baton:control_messages_stale_total", "9" * 8, "m", "gateway"] == 4
    assert seen["baton:control_messages_unsent_total", "9" * 8, "m", "gateway"] == 0
    assert seen["baton:control_messages_dropped_total", "d" * 8, "m", "decode"] == 5
    assert ("baton:engine_steps_total", "9" * 8, "m", "gateway") not in seen
    counts["dropped_malformed"] += 1
    assert scraped(metrics)["baton:control_messages_dropped_total", "9" * 8, "m", "gateway"] == 4


def test_every_name_ends_in_its_unit() -> None:
    for name in WORKER_COUNTERS:
        assert name.endswith("_total")
    for name in WORKER_GAUGES:
        assert name.endswith(("_bytes", "_pages"))


def test_attempts_are_counted_by_who_computes_the_prompt_and_why() -> None:
    metrics = GatewayMetrics("m")
    for decision, reason in (("local", "cost"), ("remote", "cost"), ("local", "cost")):
        metrics.routed(decision, reason)
    name = "baton:disaggregation_total"
    told = {labels: n for labels, n in scraped(metrics).items() if labels[0] == name}
    assert told == {(name, "local", "m", "cost"): 2.0, (name, "remote", "m", "cost"): 1.0}


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where several gateways count together, all of them played by this process."""
    monkeypatch.setenv(SHARED_VARIABLE, str(tmp_path))
    monkeypatch.setattr(values, "ValueClass", values.ValueClass)
    return tmp_path


def started(number: int, shared: Path) -> GatewayMetrics:
    """A gateway's, at the start of its life."""
    share_values(number)
    return GatewayMetrics("m", shared=shared)


def test_gateways_that_share_a_page_show_their_sums_on_each(shared: Path) -> None:
    first, second = started(0, shared), started(1, shared)
    first.generation_tokens_total.inc(2)
    second.generation_tokens_total.inc(3)
    first.inter_token_latency_seconds.observe(0.01)
    second.inter_token_latency_seconds.observe(0.03)
    second.requests_in_progress.set(4)
    second.metrics(Role.DECODE, D, Metrics(values=(("engine_steps_total", 7.0),)))
    seen = scraped(second)
    assert seen["baton:generation_tokens_total", "m"] == 5
    assert seen["baton:inter_token_latency_seconds_count", "m"] == 2
    assert seen["baton:inter_token_latency_seconds_sum", "m"] == pytest.approx(0.04)
    assert seen["baton:num_requests_in_progress", "m"] == 4
    assert seen["baton:engine_steps_total", D[:8], "m", "decode"] == 7
    assert scraped(first)["baton:generation_tokens_total", "m"] == 5


def test_what_a_gateway_counted_outlives_it_and_what_it_had_does_not(shared: Path) -> None:
    survivor, dead = started(0, shared), started(1, shared)
    dead.generation_tokens_total.inc(3)
    dead.requests_in_progress.set(4)
    mark_process_dead(1, str(shared))
    assert scraped(survivor)["baton:generation_tokens_total", "m"] == 3
    assert scraped(survivor)["baton:num_requests_in_progress", "m"] == 0
    started(1, shared).generation_tokens_total.inc(1)
    assert scraped(survivor)["baton:generation_tokens_total", "m"] == 4
