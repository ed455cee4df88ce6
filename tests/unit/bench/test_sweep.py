"""`baton bench sweep` end to end, over HTTP, against a server whose capacity is known."""

import asyncio
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from bench.sweep import main
from bench.sweep_flags import configuration, parse

SERVICE_S = 0.004  # of one request; one at a time, so the capacity is 250 requests/s
TOKEN = b'data: {"choices":[{"index":0,"text":"a "}]}\n\n'
END = b'data: {"choices":[],"usage":{"prompt_tokens":4,"completion_tokens":2}}\n\ndata: [DONE]\n\n'


class OneAtATime:
    """A queue with one server in it: the more load, the later the first token."""

    def __init__(self) -> None:
        self.n_requests = 0
        self.status = 200
        self._turn = asyncio.Lock()

    async def models(self, _: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "queue"}]})

    async def complete(self, request: web.Request) -> web.StreamResponse:
        self.n_requests += 1
        if self.status != 200:
            return web.Response(status=self.status)
        assert (await request.json())["model"] == "queue"
        response = web.StreamResponse()
        await response.prepare(request)
        async with self._turn:
            await asyncio.sleep(SERVICE_S)
        await response.write(TOKEN)
        await asyncio.sleep(0.001)
        await response.write(TOKEN + END)
        return response


@pytest.fixture
def queue() -> Iterator[tuple[OneAtATime, str]]:
    """The server, on a thread of its own, and its URL."""
    server, ready, stop = OneAtATime(), threading.Event(), asyncio.Event()
    loop, urls = asyncio.new_event_loop(), list[str]()

    async def serve() -> None:
        app = web.Application()
        app.router.add_get("/v1/models", server.models)
        app.router.add_post("/v1/completions", server.complete)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        urls.append(f"http://127.0.0.1:{runner.addresses[0][1]}")
        ready.set()
        await stop.wait()
        await runner.cleanup()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    assert ready.wait(10)
    yield server, urls[0]
    loop.call_soon_threadsafe(stop.set)
    thread.join()
    loop.close()


def flags(url: str, directory: Path, *more: str) -> list[str]:
    return [
        *("--server", f"first={url}", "--server", f"second={url}/v1"),
        *("--result-dir", str(directory), "--goodput", "ttft:100", "--attainment", "90"),
        *("--rounds", "1", "--num-prompts", "60", "--start-rate", "150", "--tolerance", "0.5"),
        *("--random-input-len", "4", "--random-output-len", "2", *more),
    ]


def last_line(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    return json.loads(capsys.readouterr().out.splitlines()[-1])


@pytest.mark.slow
def test_a_sweep_and_all_that_it_writes(
    queue: tuple[OneAtATime, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server, url = queue
    assert main(flags(url, tmp_path)) == 0
    shown = capsys.readouterr()
    told = json.loads(shown.out.splitlines()[-1])
    assert "SLO at scale 1: TTFT ≤ 100 ms\n" in shown.err
    assert "% keep the SLO; TTFT " in shown.err
    assert "round 1 of 1, so far: 90 % " in shown.err
    assert [(g["server"], g["attainment"]) for g in told["goodput"]] == [
        ("first", 0.9),
        ("second", 0.9),
    ]
    for found in told["goodput"]:
        assert 30 < found["median"] < 1000  # by hand about 250, on a quiet machine
    report = (tmp_path / "report.md").read_text()
    assert "SLO at scale 1: TTFT ≤ 100 ms" in report
    assert "**Few requests**: 60 a point, where 90 % takes 200" in report
    assert "**One round**" in report
    written = json.loads((tmp_path / "report.json").read_text())
    assert written["goodput"] == told["goodput"]
    assert {point["server"] for point in written["points"]} == {"first", "second"}
    pictures = {path.name for path in tmp_path.glob("*.png")}
    names = {"attainment_by_rate", "attainment_by_scale", "latency", "pareto"}
    assert pictures == {f"{name}.png" for name in names}

    # Started again it measures nothing, and says the same.
    seen = server.n_requests
    assert main(flags(url, tmp_path)) == 0
    assert server.n_requests == seen
    assert last_line(capsys) == told

    # What would be another load is refused; what only judges points is not.
    assert main(flags(url, tmp_path, "--random-input-len", "5")) == 2
    assert "random_input_len: 4 there, 5 now" in capsys.readouterr().err
    assert server.n_requests == seen


@pytest.mark.slow
def test_ctrl_c_reports_what_was_measured(queue: tuple[OneAtATime, str], tmp_path: Path) -> None:
    argv = flags(queue[1], tmp_path, "--rounds", "1000")
    command = [sys.executable, "-P", "-m", "launch.cli", "bench", "sweep", *argv]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        deadline = time.monotonic() + 120
        while len(list((tmp_path / "points").glob("*.json"))) < 3:
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert b"interrupted" in err
    assert json.loads(out.splitlines()[-1])["points"] >= 3
    assert "Not finished" in (tmp_path / "report.md").read_text()


def test_a_server_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "sweep"
    assert main(["--server", "gone=http://127.0.0.1:9", "--result-dir", str(place)]) == 1
    told = capsys.readouterr().err
    assert told.startswith("error: gone=http://127.0.0.1:9: no server answers there (Connection")
    assert told.endswith("name another with --server\n")
    assert not place.exists()


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["--result-dir", "/dev/null"], "--result-dir /dev/null: it is no folder"),
        (["--server", "a=h:1", "--request-log", "a=/nope"], "--request-log /nope: there is no"),
        (["--dataset-name", "custom", "--dataset-path", "/nope"], "--dataset-path /nope: there is"),
    ],
)
def test_what_cannot_be_read_or_written_is_told_before_anything_is_measured(
    argv: list[str],
    told: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(argv) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"error: {told}")
    assert err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_help_is_what_is_meant(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--help"])
    shown = capsys.readouterr().out
    assert "200 for up to 90 %" in " ".join(shown.split())
    assert "%%" not in shown


def test_a_server_that_fails_is_told(
    queue: tuple[OneAtATime, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server, url = queue
    server.status = 500
    argv = ["--server", f"broken={url}", "--result-dir", str(tmp_path), "--num-solo", "2"]
    assert main(argv) == 1
    assert "broken: no answer" in capsys.readouterr().err
    assert not list(tmp_path.iterdir()), "it would never be measured again"


def test_what_only_judges_points_may_change_between_runs() -> None:
    first = parse(["--rounds", "1", "--attainment", "90", "--result-dir", "a"])
    again = parse(["--rounds", "2", "--attainment", "99", "--slo-scale", "1,2"])
    assert configuration(first) == configuration(again)
    assert configuration(first) != configuration(parse(["--seed", "1"]))


@pytest.mark.parametrize(
    "argv",
    [
        ["--server", "noname"],
        ["--attainment", "0"],
        ["--attainment", "0.9"],
        ["--attainment", "101"],
        ["--attainment", "ninety"],
        ["--goodput", "itl:5"],
        ["--rounds", "0"],
        ["--tolerance", "0.001"],
        ["--server", "a=http://x", "--request-log", "b=file"],
        ["--request-rate", "3"],
        ["--max-concurrency=3"],
    ],
)
def test_flags_that_make_no_sense_are_refused(argv: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(argv)
    assert caught.value.code == 2


@pytest.mark.parametrize(
    ("flag", "near"), [("--sever", "--server"), ("--num-promts", "--num-prompts")]
)
def test_a_mistyped_flag_is_one_line_with_the_nearest(
    flag: str, near: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse([flag, "1"])
    told = f"baton bench sweep: error: unknown flag {flag}; did you mean {near}?\n"
    assert capsys.readouterr().err == told


def test_a_servers_url_may_come_without_its_scheme() -> None:
    assert parse(["--server", "a=h:1"]).server == {"a": "http://h:1"}
