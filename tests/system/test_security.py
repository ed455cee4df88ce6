"""A server with keys, TLS and a control secret, attacked from outside."""

import http.client
import json
import re
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest
import trustme

from common.curve import made_from, read_key
from common.ids import InstanceId, Role
from common.messages import Goodbye
from common.wire import Mailbox
from tests.api_client import until
from tests.servers import RunningServer, baton, launched
from tests.system.streams import SMALL, text_of

pytestmark = pytest.mark.slow
FILE_KEY, FLAG_KEY = "key-of-the-file-4711", "key-of-the-flag-4712"
VARIABLE_KEYS = {"BATON_API_KEY": "key-of-a-variable-4713", "VLLM_API_KEY": "another-one-4714"}
SLOW_READER_S = 1.0
PROMPT = "Count: one, two,"


@dataclass(frozen=True, slots=True)
class Guarded:
    """A server that is ready, and what its clients and workers need."""

    server: RunningServer
    tls: ssl.SSLContext
    certificate: Path  # of who signed the server's
    control_key: Path

    @property
    def join(self) -> str:
        found = re.search(r"join=(tcp://\S+)", self.server.log())
        assert found is not None
        return found[1]

    def get(self, path: str, headers: dict[str, str] | None = None) -> tuple[int, str]:
        connection = http.client.HTTPSConnection(
            "localhost", self.server.port, timeout=10, context=self.tls
        )
        try:
            connection.request("GET", path, headers=headers or {})
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def is_ready(self) -> bool:
        assert self.server.process.poll() is None, self.server.tail()
        with suppress(OSError):
            return self.get("/ready")[0] == 200
        return False

    def metric(self, name: str) -> float:
        found = re.findall(rf"^baton:{name}(?:{{.*}})? (\S+)$", self.get("/metrics")[1], re.M)
        return sum(map(float, found))

    @contextmanager
    def client(self, key: str) -> Iterator[openai.OpenAI]:
        url = f"https://localhost:{self.server.port}/v1"
        verified = openai.DefaultHttpxClient(verify=self.tls)
        with openai.OpenAI(
            base_url=url, api_key=key, max_retries=0, http_client=verified
        ) as client:
            yield client

    def ask(self, n_tokens: int, **options: Any) -> str:  # noqa: ANN401 OpenAI's
        """A greedy stream's text."""
        with self.client(FILE_KEY) as client:
            stream = client.completions.create(
                model="smollm2",
                prompt=PROMPT,
                stream=True,
                max_tokens=n_tokens,
                temperature=0,
                extra_body={"ignore_eos": True},
                **options,
            )
            return text_of(list(stream))


@pytest.fixture(scope="module")
def guarded(default_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    home = tmp_path_factory.mktemp("keys")
    authority = trustme.CA()
    issued = authority.issue_cert("localhost")
    own, chain = home / "own.pem", home / "authority.pem"
    issued.private_key_and_cert_chain_pem.write_to_path(str(own))
    authority.cert_pem.write_to_path(str(chain))
    (home / "keys").write_text(f"# ours\n{FILE_KEY}\n")
    (home / "control").write_text("0123456789abcdef" * 4)
    flags = (
        *("--ssl-certfile", str(own)),
        *("--api-key-file", str(home / "keys"), "--api-key", FLAG_KEY),
        *("--control-key-file", str(home / "control"), "--transport", "tcp"),
        *("--slow-reader-seconds", str(SLOW_READER_S), "--disaggregate", "always"),
    )
    with pytest.MonkeyPatch.context() as patch:
        for name, value in VARIABLE_KEYS.items():
            patch.setenv(name, value)
        with launched(default_model, *SMALL, *flags) as server:
            tls = ssl.create_default_context(cafile=str(chain))
            made = Guarded(server, tls, chain, home / "control")
            until(made.is_ready, "ready", within_s=60)
            yield made


@pytest.mark.parametrize(("flags", "told"), [((), True), (("--api-key", "k"), False)])
def test_a_server_that_is_open_to_all_says_so(
    default_model: Path, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...], *, told: bool
) -> None:
    for name in VARIABLE_KEYS:
        monkeypatch.delenv(name, raising=False)
    argv = ["serve", "--model", str(default_model), "--host", "0.0.0.0", *flags]
    with baton([*argv, "--kv-cache-memory-bytes", "1MiB"]) as server:  # too little: it ends
        assert server.wait() == 2
        assert ("event=no_api_key host=0.0.0.0" in server.log()) is told


def test_keys_are_asked_for_and_pages_travel_encrypted(guarded: Guarded) -> None:
    assert guarded.get("/v1/models")[0] == 401
    assert guarded.get("/metrics")[0] == 200
    for key in (FILE_KEY, FLAG_KEY):
        assert guarded.get("/v1/models", {"authorization": f"Bearer {key}"})[0] == 200
    for key in ("none", *VARIABLE_KEYS.values()):  # a flag goes before them
        with guarded.client(key) as client, pytest.raises(openai.AuthenticationError):
            client.models.list()
    assert len(guarded.ask(8)) > 8
    until(lambda: guarded.metric("kv_pull_bytes_total") > 0, "workers have told")


def test_nobody_can_see_a_key(guarded: Guarded) -> None:
    secrets = [FILE_KEY, FLAG_KEY, *VARIABLE_KEYS.values(), "0123456789abcdef" * 4]
    first, *workers = guarded.server.processes()
    assert len(workers) == 2
    seen = guarded.server.log()
    for process in (first, *workers):
        seen += Path(f"/proc/{process}/cmdline").read_text()
    for process in workers:
        seen += Path(f"/proc/{process}/environ").read_text()
    assert [secret for secret in secrets if secret in seen] == []
    assert "--api-key\0xxxxxx" in seen
    assert "baton: warning: --api-key could be seen in `ps` for a moment" in seen


def test_plain_http_gets_nothing(guarded: Guarded) -> None:
    with socket.create_connection(("localhost", guarded.server.port), timeout=10) as plain:
        plain.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        assert not plain.recv(1000).startswith(b"HTTP")


def dials(mailbox: Mailbox, address: str, within_s: float) -> bool:
    """Whether a link to it stands."""
    peer = InstanceId("1" * 32)
    assert mailbox.connect(peer, address)
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if mailbox.send(peer, Goodbye()):
            return True
        time.sleep(0.01)
    return False


def test_nobody_joins_without_the_secret(guarded: Guarded) -> None:
    for curve in (None, made_from(b"another secret")):
        stranger = Mailbox(InstanceId("8" * 32), Role.DECODE, listen="127.0.0.1:0", curve=curve)
        assert not dials(stranger, guarded.join, within_s=0.5)
        if curve is not None:  # without one it hangs up by itself
            until(lambda: "event=stranger_cut_off" in guarded.server.log(), "it is told of")
        stranger.close()
    assert guarded.server.log().count("event=stranger_cut_off") <= 2  # of this host, and of nowhere
    key = read_key(str(guarded.control_key))
    friend = Mailbox(InstanceId("9" * 32), Role.DECODE, listen="127.0.0.1:0", curve=key)
    assert dials(friend, guarded.join, within_s=10)
    friend.close()


FORGED = "a\ntime=now level=info process=x event=forged \x1b[2J"


def test_what_clients_say_cannot_forge_a_line(guarded: Guarded) -> None:
    bearing = {"authorization": f"Bearer {FILE_KEY}"}
    odd = {"x-request-id": "a\x0b event=forged", "user-agent": "\x1b[2J event=forged"}
    path = "/%0atime=now%20level=info%20event=forged"
    for headers in (odd, {**odd, **bearing}, {"authorization": "Bearer event=forged"}):
        with suppress(ValueError):
            guarded.get(path, headers)
        with suppress(ValueError):
            guarded.get(f"/v1/models{path}", headers)
    bodies: tuple[dict[str, Any], ...] = (
        {"model": FORGED, "prompt": "a"},
        {"prompt": FORGED, "max_tokens": 2, "cache_salt": FORGED, "user": FORGED},
        {"prompt": "a", "max_tokens": 2, "stop": [FORGED]},
        {"prompt": "a", FORGED: 1},
        {"prompt": "a", "response_format": {"type": FORGED}},
        {"prompt": "a", "structured_outputs": {"grammar": FORGED}},
    )
    for body in bodies:
        with guarded.client(FILE_KEY) as client, suppress(openai.APIStatusError):
            client.post("/completions", body=body, cast_to=object)
    with socket.create_connection(("localhost", guarded.server.port), timeout=10) as plain:
        wrapped = guarded.tls.wrap_socket(plain, server_hostname="localhost")
        wrapped.sendall(b"\x1b[2J event=forged\r\n\r\n")
        assert wrapped.recv(1000).startswith(b"HTTP/1.1 400 ")
        wrapped.close()
    for text in guarded.server.log().splitlines():
        assert text.isprintable()
        assert re.match(r"(time=\d{4}-\S+ level=\w+ process=\S+ |  \| |baton: )", text), text
        assert not re.search(r"(^| )event=forged", text), text


def stalled(guarded: Guarded) -> ssl.SSLSocket:
    """A client that has asked for about a megabyte, and does not read."""
    plain = socket.socket()
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    plain.settimeout(20)
    plain.connect(("localhost", guarded.server.port))
    made = guarded.tls.wrap_socket(plain, server_hostname="localhost")
    asked = {"prompt": PROMPT, "stream": True, "max_tokens": 400, "n": 4, "logprobs": 20}
    body = json.dumps({**asked, "ignore_eos": True}).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        f"authorization: Bearer {FLAG_KEY}\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    made.sendall(head.encode() + body)
    return made


def test_a_client_that_does_not_read_is_cut_off_and_stops_nobody(guarded: Guarded) -> None:
    undisturbed = guarded.ask(60)
    texts: list[str] = []
    with stalled(guarded) as client:
        assert client.recv(12) == b"HTTP/1.1 200"
        beside = [threading.Thread(target=lambda: texts.append(guarded.ask(60))) for _ in range(2)]
        for thread in beside:
            thread.start()
        for thread in beside:
            thread.join()
        until(lambda: guarded.metric("slow_readers_total") == 1, "it is cut off", within_s=20)
        until(lambda: guarded.metric("num_requests_running") == 0, "nobody works for it")
        received = b""
        with suppress(OSError):
            while data := client.recv(65536):
                received += data
        assert b"[DONE]" not in received
    assert texts == [undisturbed, undisturbed]
    assert guarded.metric("num_requests_in_progress") == 0


def test_a_benchmark_bears_the_key(guarded: Guarded) -> None:
    command = (
        *(sys.executable, "-P", "-m", "launch.cli", "bench", "serve"),
        *("--base-url", f"https://localhost:{guarded.server.port}", "--num-prompts", "2"),
        *("--random-input-len", "8", "--random-output-len", "4", "--num-warmups", "0"),
    )
    variables = ("env", f"SSL_CERT_FILE={guarded.certificate}")
    for key, code in ((FILE_KEY, 0), ("none", 1)):
        told = subprocess.run(
            [*variables, f"OPENAI_API_KEY={key}", *command],
            capture_output=True,
            text=True,
            check=False,
        )
        assert told.returncode == code, told.stderr
    assert "asks for a key: --api-key KEY, or the variable OPENAI_API_KEY" in told.stderr


def test_killed_it_leaves_no_process_and_no_shared_memory(guarded: Guarded) -> None:
    """The last one: it is over then."""
    server = guarded.server
    server.process.kill()
    server.wait()
    until(lambda: not server.processes(), "its workers are gone")
    assert server.shared_memory() == []
