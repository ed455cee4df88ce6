"""Servers that many tests share: one start for each configuration."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import openai
import pytest

from tests.servers import RunningServer, serving
from tests.system.relayed import Relayed, relaying
from tests.system.streams import SMALL, connected


@pytest.fixture(scope="session")
def request_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of `server`."""
    return tmp_path_factory.mktemp("log") / "requests.jsonl"


@pytest.fixture(scope="session")
def server(default_model: Path, request_log: Path) -> Iterator[RunningServer]:
    """One prefill and one decode worker, in float32, prompts in chunks of 64 tokens."""
    flags = ("--disaggregate", "always", "--request-log", str(request_log))
    with serving(default_model, *SMALL, *flags) as running:
        yield running


@pytest.fixture(scope="session")
def relayed_by_transport(default_model: Path) -> Iterator[Callable[[str], Relayed]]:
    """The same, with a relay between its processes; each started once, and kept."""
    with ExitStack() as stack:
        yield cache(lambda transport: stack.enter_context(relaying(default_model, transport)))


@pytest.fixture(params=["shm", "tcp"])
def relayed(
    relayed_by_transport: Callable[[str], Relayed], request: pytest.FixtureRequest
) -> Relayed:
    return relayed_by_transport(request.param)


@pytest.fixture
def client(server: RunningServer) -> Iterator[openai.OpenAI]:
    with connected(server) as made:
        yield made
