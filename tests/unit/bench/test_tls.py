"""Benchmarks of an https server: whose certificate they trust, and what they say of others."""

import ssl
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import trustme

from bench import profile, serve, sweep
from bench.client import Target
from bench.tls import Trust
from bench.tokens import ServerTokenizer
from tests.unit.bench.refusing import Refusing, served

AUTHORITY = trustme.CA()
METRICS = (
    'baton:cache_config_info{block_size="16",num_gpu_blocks="500",block_bytes="368640",'
    'role="decode"} 1.0\n'
)
Main = Callable[[Sequence[str]], int]
PROGRAMS = [
    (profile.main, "--base-url", ""),
    (serve.main, "--base-url", ""),
    (sweep.main, "--server", "first="),
]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep writes into where it is."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def authorities(tmp_path: Path) -> str:
    path = tmp_path / "ca.pem"
    AUTHORITY.cert_pem.write_to_path(str(path))
    return str(path)


def certified() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    AUTHORITY.issue_cert("127.0.0.1").configure_cert(context)
    return context


@pytest.mark.parametrize(("main", "flag", "name"), PROGRAMS)
def test_a_certificate_that_is_not_trusted_and_what_would_be(
    main: Main,
    flag: str,
    name: str,
    authorities: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    server = Refusing(METRICS)
    with served(server, certified()) as url:
        assert main([flag, name + url]) == 1
        told = capsys.readouterr().err
        assert told.startswith(f"error: the certificate of {name}{url} is not trusted (unable to")
        assert "): --ssl-ca-certs FILE names" in told
        assert told.count("\n") == 1
        assert not server.bodies
        for trusting in (["--ssl-ca-certs", authorities], ["--insecure"]):
            assert main([flag, name + url, *trusting]) == 1
            assert server.bodies, "it was asked"
            server.bodies.clear()


@pytest.mark.parametrize(("main", "flag", "name"), PROGRAMS)
def test_the_wrong_scheme_is_named(
    main: Main,
    flag: str,
    name: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with served(Refusing(METRICS), certified()) as url:
        assert main([flag, name + url.replace("https:", "http:")]) == 1
        told = capsys.readouterr().err
        assert told.endswith(f"does not speak HTTP: {flag} {name}{url} may be meant\n")
    with served(Refusing(METRICS)) as url:
        assert main([flag, name + url.replace("http:", "https:")]) == 1
        told = capsys.readouterr().err
        assert told.endswith(f" speaks no TLS: {flag} {name}{url} may be meant\n")


@pytest.mark.parametrize("main", [profile.main, serve.main, sweep.main])
def test_a_file_without_certificates_is_told_before_anybody_is_asked(
    main: Main, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "empty.pem"
    assert main(["--ssl-ca-certs", str(file)]) == 2
    assert capsys.readouterr().err == f"error: --ssl-ca-certs {file}: there is no such file\n"
    file.write_text("none")
    assert main(["--ssl-ca-certs", str(file)]) == 2
    assert capsys.readouterr().err == f"error: --ssl-ca-certs {file}: it holds no certificates\n"


def test_a_servers_tokenizer_is_asked_with_the_same_trust(authorities: str) -> None:
    with served(Refusing(METRICS), certified()) as url:
        for trust, told in ((Trust(), "is not trusted"), (Trust(authorities), "Not Found")):
            target = Target(base_url=url, model="m", trust=trust)
            with pytest.raises(ValueError, match=told):
                ServerTokenizer(target).encode("text")
