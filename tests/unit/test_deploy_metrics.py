"""The dashboard and the alerts against the page at /metrics: what is asked for is there."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from common.metrics import GatewayMetrics
from launch.gateway.auth import OPEN_PATHS

DEPLOY = Path(__file__).parents[2] / "deploy"
DASHBOARD = DEPLOY / "grafana" / "baton.json"
ALERTS = DEPLOY / "prometheus" / "alerts.yml"
SCRAPE = DEPLOY / "prometheus" / "prometheus.yml"
LABELS = {"model_name", "role", "instance", "finished_reason", "status", "slo", "result"} | {
    *("decision", "reason", "le", "job")
}
_NAME = re.compile(r"baton:\w+")
_SUFFIXES = {"counter": ("_total",), "gauge": ("",), "summary": ("_sum", "_count")}
_SUFFIXES["histogram"] = ("_bucket", "_sum", "_count")


def exported() -> set[str]:
    """Every name that a server's page may have."""
    families = text_string_to_metric_families(GatewayMetrics("m").render().decode())
    return {family.name + suffix for family in families for suffix in _SUFFIXES[family.type]}


def dashboard() -> dict[str, Any]:
    return json.loads(DASHBOARD.read_text())


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(ALERTS.read_text())["groups"]
    return group["rules"]


def expressions() -> Iterator[str]:
    for panel in dashboard()["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))
    yield from (variable["query"]["query"] for variable in dashboard()["templating"]["list"][1:])
    yield from (rule["expr"] for rule in rules())


def test_every_name_is_exported() -> None:
    text = DASHBOARD.read_text() + ALERTS.read_text()
    asked = set(_NAME.findall(text))
    assert len(asked) > 40
    assert asked <= exported()


def test_what_is_exported_is_shown() -> None:
    """But for what panels show in another way."""
    shown = set(_NAME.findall(DASHBOARD.read_text()))
    families = {re.sub(r"_(bucket|sum|count)$", "", name) for name in exported()}
    left_out = {
        *("request_params_n", "cache_config_info", "kv_served_bytes_total", "kv_spills_total"),
        *("kv_restores_total", "control_messages_sent_total", "control_messages_received_total"),
        *("request_max_num_generation_tokens", "request_prefill_kv_computed_tokens"),
        *("num_requests_waiting_by_reason", "iteration_tokens_total"),
    }
    hidden = {one for one in families if not any(name.startswith(one) for name in shown)}
    assert hidden <= {f"baton:{name}" for name in left_out}


@pytest.mark.parametrize("expression", sorted(set(expressions())))
def test_an_expression_reads_as_one(expression: str) -> None:
    """As far as that can be told without Prometheus: pairs that close, labels that are there."""
    plain = re.sub(r'"[^"]*"', '""', expression)
    for opens, closes in ("()", "{}", "[]"):
        assert plain.count(opens) == plain.count(closes)
    by = re.findall(r"by \(([^)]*)\)", plain)
    matched = re.findall(r"(\w+)(?:=~|!~|!=|=)", plain)
    labels = {label.strip() for group in by for label in group.split(",")} | set(matched)
    assert labels <= LABELS
    counters = re.findall(r"baton:\w+_(?:total|bucket|sum|count)\b", plain)
    rates = re.findall(r"rate\(baton:\w+", plain)
    variables = plain.startswith("label_values(")
    assert len(counters) == len(rates) or variables  # a counter is nothing by itself


def test_panels_have_a_place_each_and_none_lies_over_another() -> None:
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"])
                 for y in range(at["y"], at["y"] + at["h"])}  # fmt: skip
        assert at["x"] + at["w"] <= 24
        assert taken.isdisjoint(cells), panel["title"]
        taken |= cells


def test_alerts_say_what_they_mean() -> None:
    for rule in rules():
        assert re.fullmatch("Baton[A-Za-z]+", rule["alert"])
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"]["summary"].endswith(".")


def test_the_page_that_is_scraped_is_there_without_a_key() -> None:
    scrape = yaml.safe_load(SCRAPE.read_text())
    assert scrape["rule_files"] == [ALERTS.name]
    (job,) = scrape["scrape_configs"]
    assert job["honor_labels"]  # workers' `instance` is their own
    assert job.get("metrics_path", "/metrics") in OPEN_PATHS
