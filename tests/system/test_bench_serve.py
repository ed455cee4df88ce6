"""`baton bench serve` as its user sees it: what it sends, prints, saves and returns."""

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from bench import stub
from bench.serve import main
from tests.servers import RunningServer, free_port

QUICK = ("--random-input-len", "8", "--random-output-len", "4", "--num-warmups", "0")


@pytest.fixture
def url() -> Iterator[str]:
    with stub.started() as started:
        yield started


def asked(url: str) -> list[dict[str, Any]]:
    """The bodies of all requests so far."""
    with urlopen(f"{url}/seen") as answer:
        return json.load(answer)["bodies"]


def results(shown: str) -> list[dict[str, Any]]:
    """What the last line says."""
    last = json.loads(shown.splitlines()[-1])
    assert last["benchmark"] == "serve"
    return last["results"]


def test_several_concurrencies_in_one_run(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--base-url", f"{url}/v1", "--max-concurrency", "1,3", *QUICK]) == 0
    shown = capsys.readouterr()
    made = results(shown.out)
    assert [(r["max_concurrency"], r["completed"], r["failed"]) for r in made] == [
        (1, 8, 0),
        (3, 12, 0),
    ]
    assert [r["max_concurrent_requests"] for r in made] == [1, 3]
    assert made[0]["total_output_tokens"] == 8 * 4
    assert shown.out.count(" Serving Benchmark Result ") == 2
    assert "1 at once: 8 of 8 requests, 0 failed" in shown.err
    prompts = [tuple(body["prompt"]) for body in asked(url)]
    assert len(set(prompts)) == 20  # none is asked twice: it would be in a cache
    assert all(len(prompt) == 8 for prompt in prompts)


def test_warm_ups_are_sent_and_not_counted(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--base-url", url, "--num-prompts", "5", *QUICK, "--num-warmups", "3"]) == 0
    assert results(capsys.readouterr().out)[0]["completed"] == 5
    assert len(asked(url)) == 8


def test_failures_are_named_and_change_the_exit_code(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    body = json.dumps({"stub": {"fail_at": 2}})
    assert main(["--base-url", url, "--extra-body", body, "--num-prompts", "3", *QUICK]) == 1
    shown = capsys.readouterr()
    (made,) = results(shown.out)
    assert (made["completed"], made["errors_by_kind"]) == (0, {"error_event": 3})
    assert "failed: error_event: as the script has it (3 like it)" in shown.err
    assert "TTFT" not in shown.out.rpartition("\n{")[0]  # nobody was answered: no zeros


def test_no_server_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--port", str(free_port()), *QUICK]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("error: http://127.0.0.1:")
    assert len(shown.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("argv", "code", "fault"),
    [
        (["--dataset-name", "custom", "--dataset-path", "not/here"], 2, "--dataset-path not/here"),
        (["--save-result", "--result-dir", "/dev/null"], 2, "--result-dir /dev/null: it is no"),
        (
            ["--dataset-name", "prefix_repetition", "--num-prompts", "2"],
            1,
            "2 requests are too few for ",
        ),
    ],
)
def test_a_mistake_made_here_is_not_told_as_the_servers(
    url: str, capsys: pytest.CaptureFixture[str], argv: list[str], code: int, fault: str
) -> None:
    assert main(["--base-url", url, *argv, "--num-warmups", "0"]) == code
    told = capsys.readouterr().err
    assert fault in told
    assert url not in told
    assert asked(url) == []


def test_it_waits_for_a_server_that_starts(capsys: pytest.CaptureFixture[str]) -> None:
    port = free_port()
    ended = threading.Event()

    def serve_late() -> None:
        time.sleep(0.7)
        with stub.started(port):
            ended.wait(20)

    server = threading.Thread(target=serve_late)
    server.start()
    try:
        argv = ["--port", str(port), "--ready-check-timeout-sec", "20", "--num-prompts", "2"]
        assert main([*argv, *QUICK]) == 0
    finally:
        ended.set()
        server.join()
    assert results(capsys.readouterr().out)[0]["completed"] == 2


def test_one_that_does_not_get_ready_is_one_line(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    body = ["--extra-body", '{"stub": {"status": 503}}']
    assert main(["--base-url", url, "--ready-check-timeout-sec", "0.8", *body, *QUICK]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith(f"error: {url}: not ready: http_503 ")
    assert len(asked(url)) > 1


def test_chats_are_sent_as_text_of_the_servers_tokenizer(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["--base-url", url, "--backend", "openai-chat", "--num-prompts", "3", *QUICK]
    assert main(argv) == 0
    (made,) = results(capsys.readouterr().out)
    assert (made["completed"], made["total_input_tokens"]) == (3, 3 * 8)
    for body in asked(url):
        assert len(body["messages"][0]["content"]) == 8


def test_a_trace_is_replayed_at_its_times_with_its_shared_prefixes(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # The stub's context is 4,096 tokens, so that all lengths are halved.
    trace = [
        {"timestamp": 0, "input_length": 8092, "output_length": 100, "hash_ids": [*range(16)]},
        {"timestamp": 400, "input_length": 1000, "output_length": 20, "hash_ids": [0, 20]},
        {"timestamp": 1000, "input_length": 1000, "output_length": 20, "hash_ids": [30, 31]},
    ]
    path = tmp_path / "t.jsonl"
    path.write_text("\n".join(map(json.dumps, trace)))
    argv = ["--dataset-name", "timed_trace", "--dataset-path", str(path), "--time-scale", "0.5"]
    saved = ["--save-result", "--save-detailed", "--result-dir", str(tmp_path)]
    body = ["--extra-body", '{"stub": {"gap_s": 0.002}}']
    assert main(["--base-url", url, *argv, *saved, *body, *QUICK]) == 0
    prompts = [body["prompt"] for body in asked(url)]
    assert [len(prompt) for prompt in prompts] == [4046, 500, 500]
    assert prompts[0][:256] == prompts[1][:256]
    assert prompts[0][:3] != prompts[2][:3]
    (file,) = tmp_path.glob("openai-infqps-stub-*.json")
    kept = json.loads(file.read_text())
    assert kept["output_lens"] == [50, 10, 10]
    assert kept["start_times"] == pytest.approx([0.0, 0.2, 0.5], abs=0.1)
    assert [len(gaps) for gaps in kept["itls"]] == [49, 9, 9]
    assert results(capsys.readouterr().out)[0]["completed"] == 3


def test_an_slo_and_clients_that_hang_up(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["--request-rate", "100", "--num-prompts", "40", "--goodput", "ttft:1", "tpot:1000"]
    hang_up = ["--cancel-rate", "0.5", "--cancel-delay", "0.01"]
    assert main(["--base-url", url, *argv, *hang_up, *QUICK]) == 0
    (made,) = results(capsys.readouterr().out)
    assert made["completed"] + made["cancelled"] == 40
    assert 8 < made["cancelled"] < 32
    assert (made["request_goodput"], made["slo_attainment"]) == (0.0, 0.0)  # its TTFT is 20 ms


@pytest.mark.parametrize(("processes", "number"), [("1", signal.SIGTERM), ("2", signal.SIGINT)])
def test_ctrl_c_and_sigterm_still_print_what_was_measured(
    url: str, processes: str, number: signal.Signals
) -> None:
    command = [sys.executable, "-P", "-m", "launch.cli", "bench", "serve", "--base-url", url]
    load = ["--request-rate", "50", "--num-prompts", "5000", "--client-processes", processes]
    with subprocess.Popen(
        [*command, *load, *QUICK], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as bench:
        deadline = time.monotonic() + 20
        while len(asked(url)) < 20:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        bench.send_signal(number)
        out, err = bench.communicate(timeout=10)
    assert bench.returncode == 128 + number, err
    (made,) = results(out)
    assert made["interrupted"]
    assert 10 < made["completed"] < 1000
    assert made["failed"] == 0
    assert made["mean_ttft_ms"] > 20
    assert "Interrupted" in out


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["openai", "openai-chat"])
def test_a_real_server(
    server: RunningServer, backend: str, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["--base-url", server.url, "--backend", backend, "--max-concurrency", "2"]
    lengths = ["--num-prompts", "6", "--random-input-len", "40", "--random-output-len", "12"]
    assert main([*argv, *lengths]) == 0
    shown = capsys.readouterr().out
    (made,) = results(shown)
    assert (made["completed"], made["total_output_tokens"]) == (6, 6 * 12)
    assert made["total_input_tokens"] >= 6 * 40
    assert made["mean_ttft_ms"] > made["mean_itl_ms"] > 0
    assert "Output tokens counted by: usage" in shown
