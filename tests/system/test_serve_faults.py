"""Workers come and go under streams in flight: every stream has the right end all the same."""

import http.client
import json
import os
import re
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import openai
import pytest

from tests.api_client import metrics, until
from tests.servers import RunningServer, baton, serving
from tests.system.streams import SMALL, streaming, text_of

pytestmark = pytest.mark.slow
LONG_PROMPT = [(11 * n) % 40_000 + 500 for n in range(900)]  # 15 chunks


@pytest.fixture(scope="module")
def run_dir() -> Iterator[Path]:
    """Short enough for sockets. Whoever shares it shares the weights in memory, too."""
    with TemporaryDirectory(prefix="br-") as path:
        yield Path(path)


@pytest.fixture(scope="module")
def mortal(default_model: Path, run_dir: Path) -> Iterator[RunningServer]:
    """A server whose workers may be killed, and that the last test here stops."""
    flags = ("--disaggregate", "always", "--run-dir", str(run_dir))
    with serving(default_model, *SMALL, *flags) as running:
        yield running


def ask(server: RunningServer, n_tokens: int, prompt: str | list[int]) -> str:
    with streaming(server, n_tokens, prompt) as stream:
        return text_of(list(stream))


def kill(server: RunningServer, role: str) -> None:
    (pid,) = server.workers(role)
    os.kill(pid, signal.SIGKILL)


def is_whole_again(server: RunningServer) -> bool:
    return server.is_ready() and len(server.processes()) == 3


def test_a_decode_worker_is_killed(mortal: RunningServer) -> None:
    undisturbed = ask(mortal, 20, "Count: one, two,")
    with streaming(mortal, 20, "Count: one, two,") as stream:
        begun = [next(stream) for _ in range(5)]
        kill(mortal, "decode")
        assert text_of(begun + list(stream)) == undisturbed
    until(lambda: is_whole_again(mortal), "the worker is started again", within_s=60)
    assert ask(mortal, 20, "Count: one, two,") == undisturbed


def test_a_prefill_worker_is_killed(mortal: RunningServer) -> None:
    with streaming(mortal, 5, LONG_PROMPT) as stream:
        until(
            lambda: metrics(mortal.url).total("kv_cache_usage_perc", "prefill") > 0,
            "the prompt is computed",
        )
        kill(mortal, "prefill")
        disturbed = text_of(list(stream))
    until(lambda: is_whole_again(mortal), "the worker is started again", within_s=60)
    assert disturbed == ask(mortal, 5, LONG_PROMPT)


def test_a_worker_joins_by_hand_and_leaves(
    mortal: RunningServer, default_model: Path, run_dir: Path
) -> None:
    alone = [ask(mortal, 12, f"{n}. Count: one, two,") for n in range(4)]
    found = re.search(r"join=(tcp://\S+)", mortal.log())
    assert found is not None
    where = ["--join", found[1], "--run-dir", str(run_dir), "--threads", "1"]
    with baton(["decode", "--model", str(default_model), *where, *_for_worker(SMALL)]) as joined:
        until(
            lambda: len(metrics(mortal.url).each("num_requests_running", "decode")) == 2,
            "the worker has joined",
            within_s=60,
        )
        together: dict[int, str] = {}

        def follow(n: int) -> None:
            together[n] = ask(mortal, 12, f"{n}. Count: one, two,")

        threads = [threading.Thread(target=follow, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        until(
            lambda: metrics(mortal.url).each("num_requests_running", "decode")[-1] > 0,
            "the one that joined last has some of it",
        )
        joined.process.send_signal(signal.SIGINT)
        for thread in threads:
            thread.join()
        assert [together[n] for n in range(4)] == alone
        assert joined.wait() == 0
        joined.assert_nothing_left()
    until(lambda: len(metrics(mortal.url).each("num_requests_running", "decode")) == 1, "it left")
    assert mortal.is_ready()


def _for_worker(options: tuple[str, ...]) -> list[str]:
    """Without those of the other pool."""
    pairs = zip(options[::2], options[1::2], strict=True)
    return [word for pair in pairs if not pair[0].startswith("--prefill.") for word in pair]


def get(server: RunningServer, path: str) -> tuple[int, dict[str, Any], dict[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    connection.request("GET", path)
    answer = connection.getresponse()
    body = json.loads(answer.read())
    connection.close()
    return answer.status, body, dict(answer.headers)


def test_told_to_stop_it_finishes_what_is_in_flight(mortal: RunningServer) -> None:
    undisturbed = ask(mortal, 40, "Count: one, two,")
    with streaming(mortal, 40, "Count: one, two,") as stream:
        begun = [next(stream)]
        mortal.process.send_signal(signal.SIGINT)
        until(lambda: not mortal.is_ready(), "it drains")
        status, state, headers = get(mortal, "/ready")
        assert (status, state["draining"], headers["retry-after"]) == (503, True, "1")
        assert get(mortal, "/health")[0] == 200
        with pytest.raises(openai.InternalServerError, match="the server is stopping"):
            ask(mortal, 1, "too late")
        assert text_of(begun + list(stream)) == undisturbed
    assert mortal.wait() == 0
    mortal.assert_nothing_left()
    assert "event=draining in_progress=1" in mortal.log()
    assert mortal.log().splitlines()[-1].endswith("event=stopped")
