"""What a load's numbers look like: the console's block, the JSON, and the file that holds it.

Block and keys are those of `vllm bench serve`, so that results can be laid side by side; what ours
says more stands below the block. Imports nothing of the engine.
"""

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from bench import reasons
from bench.client import Outcome
from bench.measures import PERCENTILES

Result = Mapping[str, Any]

WIDTH = 50
TITLES = {
    "ttft": ("TTFT", "Time to First Token"),
    "ttst": ("TTST", "Time to Second Token"),
    "tpot": ("TPOT", "Time per Output Token (excl. 1st token)"),
    "itl": ("ITL", "Inter-token Latency"),
    "e2el": ("E2EL", "End-to-end Latency"),
    "client_queue_time": ("Client Queue Time", "Client-side Queueing"),
    "e2el_including_client_queue": (
        "E2EL incl. Client Queue",
        "Queue-inclusive End-to-end Latency",
    ),
    "client_lag": ("Client Lag", "Client Lag"),
}
_MORE = ("ttft", "ttst", "tpot", "itl", "e2el")


def block(result: Result, metrics: Sequence[str], percentiles: Sequence[float]) -> str:
    """vLLM's, in vLLM's order; without latencies where nobody was answered."""
    lines = [f"{' Serving Benchmark Result ':=^{WIDTH}}"]
    lines += [f"{label:<40} {result[key]:<10{spec}}" for label, key, spec in _rows(result)]
    for name in metrics if result["completed"] else ():
        short, title = TITLES[name]
        lines.append(f"{title:-^{WIDTH}}")
        keys = [("Mean", "mean"), ("Median", "median")]
        keys += [(f"P{p:g}", f"p{p:g}") for p in percentiles]
        for word, key in keys:
            label = f"{word} {short} (ms):"
            lines.append(f"{label:<40} {latency(result, key, name):<10}")
    return "\n".join([*lines, "=" * WIDTH])


def latency(result: Result, key: str, name: str, digits: int = 2) -> str:
    """Of a metric in ms: `key` is mean, median, p99 and so on; - where it has no values."""
    if name in result["metrics_without_values"]:
        return "-"
    return f"{result[f'{key}_{name}_ms']:.{digits}f}"


def _rows(result: Result) -> list[tuple[str, str, str]]:
    rows = [("Successful requests:", "completed", ""), ("Failed requests:", "failed", "")]
    if result["max_concurrency"] is not None:
        rows.append(("Maximum request concurrency:", "max_concurrency", ""))
    if result["request_rate"] != "inf":
        rows.append(("Request rate configured (RPS):", "request_rate", ".2f"))
    rows += [
        ("Benchmark duration (s):", "duration", ".2f"),
        ("Total input tokens:", "total_input_tokens", ""),
        ("Total generated tokens:", "total_output_tokens", ""),
        ("Request throughput (req/s):", "request_throughput", ".2f"),
    ]
    if result["request_goodput"] is not None:
        rows.append(("Request goodput (req/s):", "request_goodput", ".2f"))
    return [
        *rows,
        ("Output token throughput (tok/s):", "output_throughput", ".2f"),
        ("Peak output token throughput (tok/s):", "max_output_tokens_per_s", ".2f"),
        ("Peak concurrent requests:", "max_concurrent_requests", ".2f"),
        ("Total token throughput (tok/s):", "total_token_throughput", ".2f"),
    ]


def more(result: Result) -> str:
    """All metrics in one table, then what went wrong and how tokens were counted."""
    lines = _table(result) if result["completed"] else []
    if result["slo_attainment"] is not None:
        limits = ", ".join(f"{name} {limit:g} ms" for name, limit in result["slo"].items())
        lines.append(f"SLO attainment: {result['slo_attainment']:.1%} of requests ({limits})")
    if result["failed"]:
        lines.append(f"Failed requests by kind: {_counts(result['errors_by_kind'])}")
    if result["cancelled"]:
        lines.append(f"Cancelled by the client: {result['cancelled']}")
    if result["tokens_counted_by"]:
        lines.append(_counting(result))
    if result["interrupted"]:
        lines.append("Interrupted: this is what was measured until then")
    return "\n".join(lines)


def _table(result: Result) -> list[str]:
    """In a closed loop a request waits in the client for no reason but its turn: not shown."""
    keys = ["mean", "median", *(f"p{p:g}" for p in PERCENTILES), "max"]
    queue = () if result["closed_loop"] else ("client_queue_time",)
    lines = [f"{'ms':<18}" + "".join(f"{key:>11}" for key in keys)]
    for name in (*_MORE, *queue, "client_lag"):
        values = (latency(result, key, name) for key in keys)
        lines.append(f"{TITLES[name][0]:<18}" + "".join(f"{value:>11}" for value in values))
    return lines


def _counting(result: Result) -> str:
    ways = result["tokens_counted_by"]
    way = next(iter(ways)) if len(ways) == 1 else _counts(ways)
    n_chunks, n_tokens = result["token_chunks"], result["total_output_tokens"]
    said = f"Output tokens counted by: {way}"
    if n_chunks == n_tokens:
        return f"{said}; one in each chunk"
    return f"{said}; {n_tokens} in {n_chunks} chunks, ITL is between chunks"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items())


def heading(options: argparse.Namespace, model: str, n_requests: int) -> dict[str, Any]:
    """What was measured: the keys that go before the numbers."""
    rate = options.request_rate
    now = datetime.now().astimezone()
    return {
        "date": f"{now:%Y%m%d-%H%M%S}",
        "endpoint_type": options.backend,
        "backend": options.backend,
        "label": options.label,
        "model_id": model,
        "tokenizer_id": options.tokenizer or model,
        "num_prompts": n_requests,
        "dataset_name": options.dataset_name,
        "request_rate": "inf" if rate is None or math.isinf(rate) else rate,
        "burstiness": options.burstiness,
        **dict(options.metadata),
    }


def details(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """One entry a request, in order; seconds, since the load's begin where they are moments."""
    got = [bool(outcome.chunk_times_s) for outcome in outcomes]
    pairs = list(zip(outcomes, got, strict=True))
    return {
        "input_lens": [outcome.input_tokens for outcome in outcomes],
        "output_lens": [outcome.output_tokens for outcome in outcomes],
        "ttfts": [outcome.ttft_s if any_token else 0.0 for outcome, any_token in pairs],
        "itls": [outcome.gaps_s for outcome in outcomes],
        "latencies": [outcome.e2el_s if any_token else 0.0 for outcome, any_token in pairs],
        "start_times": [outcome.sent_s for outcome in outcomes],
        "queue_times": [outcome.queued_s for outcome in outcomes],
        "generated_texts": [outcome.text for outcome in outcomes],
        "errors": [_error(outcome) for outcome in outcomes],
        "cancelled_requests": [outcome.cancelled for outcome in outcomes],
        "chunk_tokens": [outcome.chunk_tokens for outcome in outcomes],
    }


def _error(outcome: Outcome) -> str:
    return f"{outcome.error}: {outcome.message}" if outcome.message else outcome.error


def must_be_savable(options: argparse.Namespace) -> None:
    """Before anything is measured. Raises ValueError."""
    folder = Path(options.result_dir)
    reasons.must_be_a_writable_folder("--result-dir", folder)
    if options.result_filename is not None:
        reasons.must_be_writable("--result-filename", folder / options.result_filename)


def save(options: argparse.Namespace, result: Result, *, append: bool) -> Path:
    """One JSON object; appended ones stand on lines of their own. Raises OSError."""
    path = Path(options.result_dir) / (options.result_filename or _file_name(options, result))
    path.parent.mkdir(parents=True, exist_ok=True)
    starts_anew = not append or not path.exists()
    with path.open("w" if starts_anew else "a", encoding="utf-8") as file:
        file.write(("" if starts_anew else "\n") + json.dumps(result))
    return path


def _file_name(options: argparse.Namespace, result: Result) -> str:
    label = result["label"] or options.backend
    model = result["model_id"].rsplit("/", 1)[-1]
    places = result["max_concurrency"]
    concurrency = "" if places is None else f"-concurrency{places}"
    rate = f"{result['request_rate']}qps"
    if options.ramp_up_strategy is not None:
        rate = (
            f"ramp-up-{options.ramp_up_strategy}-{options.ramp_up_start_rps:g}qps-"
            f"{options.ramp_up_end_rps:g}qps"
        )
    return f"{label}-{rate}{concurrency}-{model}-{result['date']}.json"
