"""A server that is sent whatever comes to mind, shared by the tests that do so."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.property.hostile import SERVED_NAME
from tests.servers import RunningServer, serving

FLAGS = (
    *("--served-model-name", SERVED_NAME),
    *("--max-model-len", "96"),
    *("--kv-cache-memory-bytes", "128MiB"),
    *("--tool-call-parser", "hermes"),
)


@pytest.fixture(scope="session")
def http_server(default_model: Path) -> Iterator[RunningServer]:
    """A pair of workers. In the end none of them has died, and nothing has failed inside."""
    with serving(default_model, *FLAGS) as running:
        processes = running.processes()
        yield running
        assert running.processes() == processes, running.tail()
        assert "level=error" not in running.log(), running.tail()
