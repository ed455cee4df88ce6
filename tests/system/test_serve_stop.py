"""How a server ends: told to, told twice, killed, or never able to start."""

import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2 as httpx
import openai
import pytest

from tests.servers import baton, launched
from tests.system.streams import SMALL, streaming
from tests.unit.text.hf_directory import CONFIG, byte_level_backend, write_directory

pytestmark = pytest.mark.slow
AT_ONCE_S = 5.0  # on a machine that does other things too


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_told_twice_it_leaves_at_once(default_model: Path, number: signal.Signals) -> None:
    with launched(default_model, *SMALL) as server:
        server.wait_until_ready()
        with streaming(server, 900) as stream:
            next(stream)
            server.process.send_signal(number)
            next(stream)
            server.process.send_signal(number)
            began = time.monotonic()
            server.wait()
            assert time.monotonic() - began < AT_ONCE_S
            with pytest.raises((openai.APIError, StopIteration)):
                while True:
                    next(stream)
        server.assert_nothing_left()


def test_killed_it_takes_its_workers_with_it(default_model: Path) -> None:
    with launched(default_model, *SMALL) as server:
        server.wait_until_ready()
        assert len(server.processes()) == 3
        with streaming(server, 900) as stream:
            next(stream)
            server.process.kill()
            server.wait()
        deadline = time.monotonic() + 2 * AT_ONCE_S
        while server.processes():
            assert time.monotonic() < deadline, server.tail()
            time.sleep(0.05)
        assert server.shared_memory() == []


def test_told_while_it_starts(default_model: Path) -> None:
    with launched(default_model, *SMALL) as server:
        while "event=memory" not in server.log():  # its weights come next
            assert server.process.poll() is None, server.tail()
            time.sleep(0.02)
        assert server.stop() == 0
        server.assert_nothing_left()


def test_a_port_that_is_taken(default_model: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with baton(["serve", "--model", str(default_model), "--port", str(port)]) as server:
            assert server.wait() == 2
            server.assert_nothing_left()
            assert server.refusal() == (
                f"baton: --host 127.0.0.1 --port {port}: Address already in use; choose another\n"
            )


def test_a_pool_that_is_too_small(default_model: Path) -> None:
    with launched(default_model, "--kv-cache-memory-bytes", "1MiB") as server:
        assert server.wait(60) == 2
        server.assert_nothing_left()
        assert server.refusal() == (  # nobody was started
            "baton: --kv-cache-memory-bytes 1048576 holds 32 tokens of KV, and one sequence of "
            "--max-model-len 8192 needs 188747776 bytes: raise the one or lower the other\n"
        )


def test_what_only_a_worker_finds_out_is_the_last_line(tmp_path: Path) -> None:
    model = write_directory(tmp_path, byte_level_backend(), config=CONFIG | {"rms_norm_eps": 1e-5})
    weights = model / "model.safetensors"
    weights.write_bytes(bytes(1000))
    with launched(model, "--prefill", "0", "--max-model-len", "256") as server:
        assert server.wait(60) == 2
        server.assert_nothing_left()
        *_, last = server.log().splitlines()
        why = f"decode-0 cannot start: {weights}: not a readable safetensors file: "
        assert last.startswith(f"baton: {why}")


def test_a_request_log_that_cannot_be_written(default_model: Path) -> None:
    path = "/proc/nowhere/log"
    argv = ["serve", "--model", str(default_model), "--port", "0", "--request-log", path]
    with baton(argv) as server:
        assert server.wait() == 2
        server.assert_nothing_left()
        assert server.refusal() == f"baton: --request-log {path}: No such file or directory\n"


@pytest.mark.full
def test_a_text_that_takes_longer_than_there_is(default_model: Path) -> None:
    """To be made tokens: its client is told when to come again."""
    with launched(default_model, *SMALL, "--shutdown-timeout", "0.2") as server:
        server.wait_until_ready()
        with httpx.Client(base_url=server.url, timeout=60) as client, ThreadPoolExecutor(3) as pool:
            asked = [
                pool.submit(client.post, "/tokenize", json={"prompt": "abcdefgh " * 110_000})
                for _ in range(3)
            ]
            time.sleep(0.3)
            server.process.send_signal(signal.SIGTERM)
            answers = [one.result() for one in asked]
        assert server.wait() == 0
        refused = [one for one in answers if one.status_code != 200]
        assert refused
        for one in refused:
            assert (one.status_code, one.headers["retry-after"]) == (503, "5")
        server.assert_nothing_left()
