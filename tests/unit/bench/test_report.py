import argparse
import json
from pathlib import Path
from typing import Any

from bench import report, serve_flags
from bench.client import Outcome
from bench.measures import Goodput, summarise

ANSWERED = Outcome(
    index=0,
    scheduled_s=0.0,
    sent_s=0.25,
    ended_s=1.0,
    chunk_times_s=[0.5, 0.75],
    input_tokens=100,
    output_tokens=2,
    counted_by="usage",
    text="ab",
    client_lag_s=0.002,
)
REFUSED = Outcome(
    index=1, scheduled_s=0.0, sent_s=0.0, ended_s=0.5, error="http_429", message="full"
)
OUTCOMES = [ANSWERED, REFUSED]

# As vLLM prints it, trailing spaces included.
BLOCK = """\
============ Serving Benchmark Result ============
Successful requests:                     1         
Failed requests:                         1         
Maximum request concurrency:             8         
Request rate configured (RPS):           4.00      
Benchmark duration (s):                  2.00      
Total input tokens:                      100       
Total generated tokens:                  2         
Request throughput (req/s):              0.50      
Request goodput (req/s):                 0.50      
Output token throughput (tok/s):         1.00      
Peak output token throughput (tok/s):    2.00      
Peak concurrent requests:                1.00      
Total token throughput (tok/s):          51.00     
---------------Time to First Token----------------
Mean TTFT (ms):                          250.00    
Median TTFT (ms):                        250.00    
P99 TTFT (ms):                           250.00    
-----Time per Output Token (excl. 1st token)------
Mean TPOT (ms):                          250.00    
Median TPOT (ms):                        250.00    
P99 TPOT (ms):                           250.00    
---------------Inter-token Latency----------------
Mean ITL (ms):                           250.00    
Median ITL (ms):                         250.00    
P99 ITL (ms):                            250.00    
----------------End-to-end Latency----------------
Mean E2EL (ms):                          500.00    
Median E2EL (ms):                        500.00    
P99 E2EL (ms):                           500.00    
=================================================="""  # noqa: W291


def result(*argv: str, concurrency: int | None = 8) -> tuple[argparse.Namespace, dict[str, Any]]:
    options = serve_flags.parse([*argv, "--request-rate", "4", "--goodput", "ttft:300"])
    return options, {
        **report.heading(options, "org/model", 2),
        "max_concurrency": concurrency,
        "closed_loop": False,
        "slo": dict(options.goodput),
        "interrupted": False,
        **summarise(OUTCOMES, Goodput(ttft_ms=300), 2.0),
    }


def test_the_block_is_vllms() -> None:
    options, made = result()
    assert report.block(made, options.percentile_metrics, options.metric_percentiles) == BLOCK


def test_where_nobody_was_answered_there_are_no_latencies() -> None:
    _, made = result()
    made |= summarise([REFUSED], None, 2.0)
    shown = report.block(made, ["ttft", "tpot"], [99])
    assert "Failed requests:                         1" in shown
    assert "TTFT" not in shown
    assert "nan" not in shown


def test_what_has_no_value_is_no_zero() -> None:
    _, made = result()
    single = Outcome(
        index=0, scheduled_s=0, sent_s=0, ended_s=1, chunk_times_s=[0.5], output_tokens=1
    )
    made |= summarise([single], None, 2.0)
    assert made["metrics_without_values"] == ["ttst", "tpot", "itl"]
    shown = report.block(made, ["ttft", "tpot"], [99])
    assert "Mean TTFT (ms):                          500.00" in shown
    assert "P99 TPOT (ms):                           -" in shown
    table = report.more(made).splitlines()
    assert table[3] == f"{'TPOT':<18}" + f"{'-':>11}" * 6


def test_no_concurrency_no_line_of_it() -> None:
    _, made = result(concurrency=None)
    assert "Maximum request concurrency" not in report.block(made, [], [])


def test_more_is_said_below() -> None:
    _, made = result()
    assert report.more(made).splitlines() == [
        "ms                       mean     median        p90        p95        p99        max",
        "TTFT                   250.00     250.00     250.00     250.00     250.00     250.00",
        "TTST                   250.00     250.00     250.00     250.00     250.00     250.00",
        "TPOT                   250.00     250.00     250.00     250.00     250.00     250.00",
        "ITL                    250.00     250.00     250.00     250.00     250.00     250.00",
        "E2EL                   500.00     500.00     500.00     500.00     500.00     500.00",
        "Client Queue Time      250.00     250.00     250.00     250.00     250.00     250.00",
        "Client Lag               2.00       2.00       2.00       2.00       2.00       2.00",
        "SLO attainment: 50.0% of requests (ttft 300 ms)",
        "Failed requests by kind: http_429 1",
        "Output tokens counted by: usage; one in each chunk",
    ]


def test_it_says_how_tokens_were_counted_where_chunks_are_not_tokens() -> None:
    _, made = result()
    made |= {"token_chunks": 1, "tokens_counted_by": {"usage": 3, "tokenizer": 1}}
    assert report.more(made).splitlines()[-1] == (
        "Output tokens counted by: usage 3, tokenizer 1; 2 in 1 chunks, ITL is between chunks"
    )


def test_the_json_has_vllms_keys() -> None:
    _, made = result("--metadata", "gpu=none", "--label", "x")
    keys = [
        *("date", "endpoint_type", "backend", "label", "model_id", "tokenizer_id", "num_prompts"),
        *("request_rate", "burstiness", "max_concurrency", "duration", "completed", "failed"),
        *("total_input_tokens", "total_output_tokens", "request_throughput", "request_goodput"),
        *("output_throughput", "total_token_throughput", "max_output_tokens_per_s"),
        *("max_concurrent_requests", "gpu"),
    ]
    for key in ("mean", "median", "std", "p99"):
        keys += [f"{key}_{name}_ms" for name in serve_flags.SHOWN_METRICS]
    assert set(keys) <= set(made)
    assert (made["request_rate"], made["gpu"], made["label"]) == (4.0, "none", "x")
    assert set(made) == set(json.loads(json.dumps(made)))


def test_details_are_one_entry_a_request() -> None:
    made = report.details(OUTCOMES)
    assert made["ttfts"] == [0.25, 0.0]
    assert made["itls"] == [[0.25], []]
    assert made["latencies"] == [0.5, 0.0]
    assert made["start_times"] == [0.25, 0.0]
    assert made["queue_times"] == [0.25, 0.0]
    assert made["input_lens"] == [100, 0]
    assert made["output_lens"] == [2, 0]
    assert made["generated_texts"] == ["ab", ""]
    assert made["errors"] == ["", "http_429: full"]


def test_a_file_is_named_by_what_it_holds(tmp_path: Path) -> None:
    options, made = result("--result-dir", str(tmp_path / "new"))
    path = report.save(options, made, append=False)
    assert path.name == f"openai-4.0qps-concurrency8-model-{made['date']}.json"
    assert json.loads(path.read_text()) == made


def test_appended_results_stand_on_lines_of_their_own(tmp_path: Path) -> None:
    options, made = result("--result-dir", str(tmp_path), "--result-filename", "all.json")
    for append in (True, True, False, True):
        path = report.save(options, made, append=append)
    assert [json.loads(line) for line in path.read_text().splitlines()] == [made, made]
