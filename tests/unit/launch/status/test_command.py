"""`baton status` against an HTTP server that answers what a test says."""

import json
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import ClassVar

import msgspec
import pytest
import trustme

from common.errors import SetupError
from launch.cli import main
from launch.status.client import NoStatus
from launch.status.command import status
from tests.unit.launch.status.documents import AT_WORK, STARTING


class Answering(BaseHTTPRequestHandler):
    answer: ClassVar[tuple[int, bytes]]
    keys: ClassVar[list[str | None]]
    paths: ClassVar[list[str]]

    def do_GET(self) -> None:
        self.keys.append(self.headers.get("Authorization"))
        self.paths.append(self.path)
        code, body = self.answer
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


@contextmanager
def served(
    code: int, body: bytes, context: ssl.SSLContext | None = None
) -> Iterator[tuple[str, type[Answering]]]:
    """The server's URL, and what it was asked."""
    handler = type("Handler", (Answering,), {"answer": (code, body), "keys": [], "paths": []})
    with HTTPServer(("127.0.0.1", 0), handler) as server:
        if context is not None:
            server.handle_error = lambda *_: None  # pyright: ignore[reportAttributeAccessIssue]
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http{'s' if context else ''}://127.0.0.1:{server.server_address[1]}", handler
        finally:
            server.shutdown()
            thread.join()


def shown(*argv: str, environ: dict[str, str] | None = None) -> str:
    parts: list[str] = []
    assert status(argv, environ or {}, parts.append, on_terminal=False) == 0
    return "".join(parts)


def test_it_shows_what_the_server_tells() -> None:
    with served(200, msgspec.json.encode(AT_WORK)) as (url, asked):
        text = shown("--url", f"{url}/v1/", "--requests", "1")
    assert text.startswith("m  ready  up 3 h 12 min")
    assert "\nr0 " in text
    assert "\nr1 " not in text
    assert asked.paths == ["/status"]
    assert asked.keys == [None]


def test_json_is_the_servers_own_document() -> None:
    document = {**json.loads(msgspec.json.encode(STARTING)), "of_a_later_version": 1}
    with served(200, json.dumps(document).encode()) as (url, _):
        assert json.loads(shown("--url", url, "--json")) == document


def test_keys_come_from_a_file_or_a_variable(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# mine\nfrom-file\nanother\n")
    with served(200, msgspec.json.encode(STARTING)) as (url, asked):
        shown("--url", url, "--api-key-file", str(file), environ={"BATON_API_KEY": "variable"})
        shown("--url", url, environ={"OPENAI_API_KEY": "openai", "BATON_API_KEY": "variable"})
    assert asked.keys == ["Bearer from-file", "Bearer variable"]


@pytest.mark.parametrize(
    ("code", "body", "message"),
    [
        (401, b"{}", "asks for a key: --api-key-file FILE, or the variable BATON_API_KEY"),
        (404, b"", "has no /status: it is another server, or an older Baton"),
        (500, b'{"error": {"message": "it is on fire"}}', "/status answers 500 it is on fire"),
        (503, b"<html>", "/status answers 503 Service Unavailable"),
        (200, b'{"model": 5}', "no status of this version's"),
        (200, b"\xff", "no status of this version's"),
    ],
)
def test_what_is_no_status_is_one_line(code: int, body: bytes, message: str) -> None:
    with served(code, body) as (url, _), pytest.raises(NoStatus) as refused:
        shown("--url", url)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_no_server_is_one_line_and_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert main(["status", "--url", f"127.0.0.1:{port}"]) == 1
    assert capsys.readouterr() == (
        "",
        f"baton: no server answers at http://127.0.0.1:{port} (Connection refused); "
        "--url says where it is\n",
    )


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--wacht"], "unknown flag --wacht; did you mean --watch?"),
        (["--interval", "0"], "--interval 0: must be from 0.1 to 86400"),
        (["--interval", "nan"], "--interval nan: must be from 0.1 to 86400"),
        (["--interval", "inf"], "--interval inf: must be from 0.1 to 86400"),
        (["--url", "http://[::1"], "--url http://[::1: Invalid IPv6 URL"),
        (["--requests", "-1"], "--requests -1: must be at least 0"),
        (["--url", "ftp://x"], "--url ftp://x: must be http://HOST:PORT"),
    ],
)
def test_flags_that_make_no_sense(argv: list[str], message: str) -> None:
    with pytest.raises(SetupError) as refused:
        shown(*argv)
    assert str(refused.value) == message


def test_a_certificate_that_is_not_trusted_names_the_flag(tmp_path: Path) -> None:
    authority, certificate = trustme.CA(), tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(certificate))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    with served(200, msgspec.json.encode(AT_WORK), context) as (url, _):
        with pytest.raises(NoStatus, match=r"not trusted .*: --ssl-ca-certs FILE"):
            shown("--url", url)
        assert shown("--url", url, "--ssl-ca-certs", str(certificate))


def test_the_wrong_scheme_is_named() -> None:
    with served(200, b"") as (url, _), pytest.raises(NoStatus) as refused:
        shown("--url", url.replace("http:", "https:"))
    assert str(refused.value) == (
        f"{url.replace('http:', 'https:')} speaks no TLS: --url {url} may be meant"
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(context)
    with served(200, b"", context) as (url, _), pytest.raises(NoStatus) as refused:
        shown("--url", url.replace("https:", "http:"))
    assert str(refused.value).endswith(f"not speak HTTP: --url {url} may be meant")


def test_a_server_that_asks_for_certificates_is_said_to(tmp_path: Path) -> None:
    authority, certificate = trustme.CA(), tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(certificate))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = ssl.CERT_REQUIRED
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.configure_trust(context)
    with served(200, b"", context) as (url, _), pytest.raises(NoStatus) as refused:
        shown("--url", url, "--ssl-ca-certs", str(certificate))
    assert str(refused.value).startswith(f"{url} ends the connection (")
    assert str(refused.value).endswith("it may ask clients for certificates")


def test_a_key_that_is_not_the_servers_is_told_apart_from_none() -> None:
    with served(401, b"{}") as (url, _), pytest.raises(NoStatus) as refused:
        shown("--url", url, environ={"OPENAI_API_KEY": "another's"})
    assert "does not know the key that it was sent: --api-key-file FILE, or" in str(refused.value)
    with pytest.raises(NoStatus, match="the API key has characters"):
        shown("--url", url, environ={"BATON_API_KEY": "two\nlines"})


def test_watching_as_json_stays_json() -> None:
    parts: list[str] = []

    def write(text: str) -> None:
        parts.append(text)
        server.close()
        if len(parts) == 2:
            raise KeyboardInterrupt

    with ExitStack() as server:
        url, _ = server.enter_context(served(200, msgspec.json.encode(STARTING)))
        argv = ["--url", url, "--watch", "--json", "--interval", "0.1"]
        assert status(argv, {}, write, on_terminal=True) == 0
    assert [*map(sorted, map(json.loads, parts))][1] == ["error"]


@pytest.mark.parametrize(
    ("on_terminal", "environ", "cleared"),
    [(True, {}, True), (True, {"TERM": "dumb"}, False), (False, {"TERM": "xterm"}, False)],
)
def test_watching_outlasts_the_server_and_ends_when_it_is_interrupted(
    on_terminal: bool,  # noqa: FBT001
    environ: dict[str, str],
    cleared: bool,  # noqa: FBT001
) -> None:
    parts: list[str] = []
    with ExitStack() as server:
        url, _ = server.enter_context(served(200, msgspec.json.encode(STARTING)))

        def write(text: str) -> None:
            parts.append(text)
            if len(parts) == 2:
                server.close()
            if len(parts) == 3:
                raise KeyboardInterrupt

        argv = ["--url", url, "--watch", "--interval", "0.1"]
        assert status(argv, environ, write, on_terminal=on_terminal) == 0
    assert [part.startswith("\033[H\033[2J") for part in parts] == [cleared] * 3
    assert any("\033" in part for part in parts) == cleared
    assert ["NOT READY" in part for part in parts] == [True, True, False]
    assert f"no server answers at {url}" in parts[2]
