"""Other engines on the same model and cores, each by its own command. Must not measure them."""

import json
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

_OPENVINO = Path(__file__).with_name("peer_openvino.py")
_START_S = 120.0


def openvino(python: Path, model: Path) -> dict[str, float]:
    """The line of `bench/peer_openvino.py`, run by the Python that has openvino-genai."""
    said = subprocess.check_output([python, _OPENVINO, model], text=True)
    return json.loads(said.splitlines()[-1])


@contextmanager
def llama_server(binary: Path, model: Path, *, threads: int = 2) -> Iterator[str]:
    """The base URL of llama.cpp's server. RuntimeError: it does not become ready."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    command = [
        *(str(binary), "-m", str(model), "--port", str(port), "-t", str(threads)),
        *("-np", "1", "-c", "4096", "--no-webui"),
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        url = f"http://127.0.0.1:{port}"
        _wait(url, process)
        yield url
    finally:
        process.terminate()
        process.wait()


def _wait(url: str, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline and process.poll() is None:
        with suppress(URLError, OSError), urlopen(f"{url}/health", timeout=5) as answer:
            if answer.status == 200:
                return
        time.sleep(0.1)
    raise RuntimeError("llama-server is not ready")
