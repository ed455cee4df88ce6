"""The address of the HTTP API."""

import socket

import pytest

from launch.gateway.server import bound


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "[::1]"])
def test_an_address_may_be_written_as_in_a_url(host: str) -> None:
    if ":" in host and not _has_ipv6():
        pytest.skip("no IPv6 here")
    with bound(host, 0) as listener:
        assert listener.getsockname()[1] > 0
        assert listener.getsockname()[0] in ("127.0.0.1", "::1")


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as one:
            one.bind(("::1", 0))
    except OSError:
        return False
    return True
