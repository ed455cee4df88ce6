"""Popular clients work unchanged: texts, chats, streams, tools, forms, at once, their errors."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.venvs import REQUIREMENTS, CannotInstall, python_of
from tests.servers import RunningServer, serving

pytestmark = [pytest.mark.full, pytest.mark.timeout(1200)]
SCRIPTS = Path(__file__).parent / "scripts"
KEY, MODEL = "sk-of-the-tests", "smollm2"
RUN_S = 600.0


@pytest.fixture(scope="module")
def keyed_server(
    default_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningServer]:
    """It asks for a key; its model's template shows no tools, but calls are known by a flag."""
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text(KEY)
    flags = (
        *("--served-model-name", MODEL),
        *("--max-model-len", "2048"),
        *("--kv-cache-memory-bytes", "128MiB"),
        *("--dtype", "float32"),  # what is streamed and what is whole must be the same text
        *("--tool-call-parser", "hermes"),
        *("--api-key-file", str(keys)),
    )
    with serving(default_model, *flags) as running:
        yield running


@pytest.mark.parametrize("name", REQUIREMENTS)
def test_a_client_works_unchanged(keyed_server: RunningServer, name: str) -> None:
    try:
        python = python_of(name)
    except CannotInstall as error:
        pytest.skip(f"{name} cannot be installed: {error}")
    script = SCRIPTS / f"{name.partition('-')[0]}_client.py"
    done = subprocess.run(
        [python, "-P", script, f"{keyed_server.url}/v1", KEY, MODEL],
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
