"""Other engines on the same model and cores, each by its own command. Must not measure them."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.server import free_port, wait_until

_OPENVINO = Path(__file__).with_name("peer_openvino.py")


def openvino(python: Path, model: Path) -> dict[str, float]:
    """The line of `bench/peer_openvino.py`, run by the Python that has openvino-genai."""
    said = subprocess.check_output([python, _OPENVINO, model], text=True)
    return json.loads(said.splitlines()[-1])


@contextmanager
def llama_server(binary: Path, model: Path, *, threads: int = 2) -> Iterator[str]:
    """The base URL of llama.cpp's server. RuntimeError: it does not become ready."""
    port = free_port()
    command = [
        *(str(binary), "-m", str(model), "--port", str(port), "-t", str(threads)),
        *("-np", "1", "-c", "4096", "--no-webui"),
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        url = f"http://127.0.0.1:{port}"
        if not wait_until(f"{url}/health", process):
            raise RuntimeError("llama-server is not ready")
        yield url
    finally:
        process.terminate()
        process.wait()
