"""`baton profile`: what it asks of which server, and what it does with what it found."""

import json
from dataclasses import replace

import pytest

from bench import profile
from bench.profile import in_flight, main
from tests.unit.bench.refusing import Refusing, served

WORKER = (
    'baton:cache_config_info{block_size="16",num_gpu_blocks="500",block_bytes="368640",'
    'max_num_batched_tokens="512",max_num_seqs="8",cache_dtype="float32",role="decode"} 1.0\n'
)
BUSY = 'baton:num_requests_running{role="decode",worker="decode-0"} 2.0\n'
WAITING = 'baton:num_requests_waiting{role="prefill",worker="prefill-0"} 1.0\n'


ELSEWHERE = ("--page-bytes", "1", "--n-pages", "1")


@pytest.mark.parametrize(
    ("metrics", "argv", "slo"),
    [
        (WORKER, (), {"ttft_ms": 86_400_000, "tpot_ms": 86_400_000}),
        (WORKER, ("--extra-body", json.dumps({"slo": {"ttft_ms": 5}})), {"ttft_ms": 5}),
        ("vllm:num_requests_running 0.0\n", ELSEWHERE, None),
    ],
)
def test_a_baton_server_owes_the_probes_nothing_and_others_are_not_asked(
    metrics: str, argv: tuple[str, ...], slo: object, capsys: pytest.CaptureFixture[str]
) -> None:
    server = Refusing(metrics)
    with served(server) as url:
        assert main(["--base-url", url, *argv]) == 1
    assert [body.get("slo") for body in server.bodies] == [slo]
    assert capsys.readouterr().err == f"error: {url}: http_400: no probes here\n"


def test_a_busy_server_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(profile, "_LOOK_EVERY_S", 0.001)
    with served(Refusing(WORKER + BUSY + WAITING)) as url:
        assert main(["--base-url", url]) == 1
    assert "busy: 3 requests of others run or wait there" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("metrics", "n"),
    [
        (WORKER, 0),
        (WORKER + BUSY + WAITING, 3),
        ('vllm:num_requests_running{model_name="m"} 4\nvllm:num_requests_waiting 1e1\n', 14),
        ("# HELP baton:num_requests_running Sequences in passes\n", 0),
    ],
)
def test_what_is_in_flight(metrics: str, n: int) -> None:
    assert in_flight(metrics) == n


def test_a_file_that_cannot_be_written_is_told_before_anything_is_asked(
    capsys: pytest.CaptureFixture[str],
) -> None:
    server = Refusing(WORKER)
    with served(server) as url:
        assert main(["--base-url", url, "--output", "/dev/null/costs.json"]) == 2
    assert server.bodies == []
    assert capsys.readouterr().err == (
        "error: --output /dev/null/costs.json: cannot be written: /dev/null is no folder\n"
    )


def test_a_server_remembers_how_many_others_it_had() -> None:
    one = profile.Served("m", 4096, ())
    assert not one.is_baton
    assert replace(one, others_requests=3).others_requests == 3
