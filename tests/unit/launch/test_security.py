"""Who may use a server, as far as it is known before anything is started."""

from pathlib import Path

import pytest
import trustme

from common.config import ServeConfig
from common.errors import SetupError
from launch.security import (
    api_keys,
    check_control,
    check_tls,
    is_loopback,
    without_keys,
    without_secrets,
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "file"


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def test_keys_of_all_sources(file: Path) -> None:
    file.write_text("# ours\n\n one \ntwo\none\n")
    assert api_keys(ServeConfig(api_key_file=str(file))) == ("one", "two")
    assert api_keys(ServeConfig(api_key=("three", "two"), api_key_file=str(file))) == (
        *("three", "two", "one"),
    )
    assert api_keys(ServeConfig()) == ()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "there is no key in it: write one a line"),
        (b"# none\n\n", "there is no key in it: write one a line"),
        (b"one\nmy key\n", "line 2 is no key: printable ASCII without spaces and commas"),
        (b"\xff\xfe", "not a file of text"),
    ],
)
def test_a_file_without_keys_is_refused(file: Path, content: bytes, message: str) -> None:
    file.write_bytes(content)
    with pytest.raises(SetupError) as refused:
        api_keys(ServeConfig(api_key_file=str(file)))
    assert str(refused.value) == f"--api-key-file {file}: {message}"


def test_a_file_that_is_not_there(file: Path) -> None:
    with pytest.raises(SetupError, match=f"--api-key-file {file}: No such file or directory"):
        api_keys(ServeConfig(api_key_file=str(file)))


@pytest.mark.parametrize(
    ("shown", "hidden"),
    [
        ("serve --api-key secret --port 1", "serve --api-key xxxxxx --port 1"),
        ("serve --api-key=secret m", "serve --api-key=xxxxxx x"),
        ("serve --api_key a,b", "serve --api_key xxx"),
        ("serve m --api-key ab cd --host h", "serve m --api-key xx xx --host h"),
        ("serve --api-key-file keys m", "serve --api-key-file keys m"),
        ("serve --port 1", "serve --port 1"),
    ],
)
def test_keys_are_hidden_in_arguments(shown: str, hidden: str) -> None:
    before, after = (f"{text} ".replace(" ", "\0").encode() for text in (shown, hidden))
    assert without_keys(before) == after


def test_no_secret_goes_on_to_other_processes() -> None:
    environ = {"BATON_API_KEY": "a", "VLLM_API_KEY": "b", "BATON_API_KEY_FILE": "f", "PATH": "p"}
    assert without_secrets(environ) == {"BATON_API_KEY_FILE": "f", "PATH": "p"}


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.1.2.3", True),
        ("::1", True),
        ("[::1]", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("localhost.example", False),
        ("*", False),
    ],
)
def test_loopback(host: str, *, expected: bool) -> None:
    assert is_loopback(host) is expected


def test_other_hosts_need_a_secret(file: Path) -> None:
    check_control(ServeConfig())
    file.write_text("a" * 32)
    check_control(ServeConfig(control_host="10.0.0.1", control_key_file=str(file)))
    with pytest.raises(SetupError) as refused:
        check_control(ServeConfig(control_host="10.0.0.1"))
    assert str(refused.value) == (
        "--control-host 10.0.0.1: whoever reaches it could join, and be sent what clients ask: "
        "give --control-key-file FILE, a secret that the server and all its workers share "
        "(openssl rand -hex 32 > FILE)"
    )
    file.write_text("short")
    with pytest.raises(SetupError, match="5 bytes are too few for a secret"):
        check_control(ServeConfig(control_key_file=str(file)))


def test_certificates(authority: trustme.CA, tmp_path: Path) -> None:
    issued = authority.issue_cert("localhost")
    whole, chain, key, other = (str(tmp_path / name) for name in ("whole", "chain", "key", "other"))
    issued.private_key_and_cert_chain_pem.write_to_path(whole)
    issued.cert_chain_pems[0].write_to_path(chain)
    issued.private_key_pem.write_to_path(key)
    authority.issue_cert("other").private_key_pem.write_to_path(other)
    check_tls(ServeConfig())
    check_tls(ServeConfig(ssl_certfile=whole))
    check_tls(ServeConfig(ssl_certfile=chain, ssl_keyfile=key))
    check_tls(ServeConfig(ssl_certfile=whole, ssl_ca_certs=chain, ssl_cert_reqs=2))
    refused = {
        (chain, "/nowhere"): "--ssl-keyfile /nowhere: No such file or directory",
        ("/nowhere", key): "--ssl-certfile /nowhere: No such file or directory",
        (
            chain,
            other,
        ): f"--ssl-certfile {chain} --ssl-keyfile {other}: the key is not the certificate's",
        (key, key): f"--ssl-certfile {key} --ssl-keyfile {key}: not PEM files of a certificate",
        (chain, None): f"--ssl-certfile {chain}: not PEM files of a certificate and its key; "
        "a key in a file of its own is --ssl-keyfile",
    }
    for (certfile, keyfile), message in refused.items():
        with pytest.raises(SetupError) as caught:
            check_tls(ServeConfig(ssl_certfile=certfile, ssl_keyfile=keyfile))
        assert str(caught.value).startswith(message)
