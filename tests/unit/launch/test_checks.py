"""What is refused before any process is started."""

import json
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from common.config import DecodeConfig, PrefillConfig, ServeConfig, resolve
from common.errors import SetupError
from common.ids import Role
from common.messages import ModelIdentity
from launch.checks import check_join, check_torch, checked

HOME = Path(__file__).parents[3]
MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 100,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Described, and with weights that nobody has to read."""
    (tmp_path / "config.json").write_text(json.dumps(MODEL))
    (tmp_path / "model.safetensors").write_bytes(bytes(1000))
    return tmp_path


def check(model: Path, **options: object) -> ModelIdentity:
    config = ServeConfig(model=str(model), served_model_name="m", **options)  # type: ignore[arg-type]
    roles = (Role.PREFILL, Role.DECODE)
    workers = [w for role in roles for w in resolve(config, role, join="", cpus=[0])]
    return checked(config, workers)


def test_joiners_must_have_what_the_servers_own_flags_say(model: Path) -> None:
    found = check(model, block_size=32, prefill=PrefillConfig(workers=0))
    assert (found.name, found.kv_dtype, found.kernel_path) == ("m", "bfloat16", "")
    assert "2x2x2x32x16" in found.page_layout
    assert len(found.fingerprint) == 32
    only_joined = check(
        model, prefill=PrefillConfig(workers=0), decode=DecodeConfig(workers=0), dtype="float32"
    )
    assert only_joined.kv_dtype == "float32"
    assert only_joined.fingerprint == found.fingerprint


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_model_len": 1_000_000}, "--max-model-len 1000000 exceeds the model's context"),
        ({"kv_cache_memory_bytes": 5}, "--kv-cache-memory-bytes 5 holds 0 tokens of KV"),
        ({"kv_cache_memory_bytes": 5 * 2**40}, r"the pages of 2 worker\(s\) need 10\d+\.\d GiB"),
        ({"cpus": "0-4000"}, r"--cpus 0-4000: there is no CPU \S*4000 for this process"),
        ({"decode": DecodeConfig(workers=2, cpus="0,4000")}, "there is no CPU 4000"),
        (
            {
                "max_model_len": 3000,
                "prefill": PrefillConfig(workers=0),
                "decode": DecodeConfig(workers=0),
            },
            "--max-model-len 3000 exceeds",
        ),
    ],
)
def test_what_no_worker_could_start_with(
    model: Path, options: dict[str, object], message: str
) -> None:
    with pytest.raises(SetupError, match=message) as refused:
        check(model, **options)
    assert "\n" not in str(refused.value)


@contextmanager
def answering(greeting: bytes, answer: bytes) -> Iterator[int]:
    """A server that says these: the one to whoever comes, the other to whoever asks. Its port."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def once() -> None:
            connection, _ = server.accept()
            with connection, suppress(ConnectionResetError):  # it left without hearing us out
                connection.sendall(greeting)
                if connection.recv(100):
                    connection.sendall(answer)

        thread = threading.Thread(target=once)
        thread.start()
        yield server.getsockname()[1]
        thread.join()


def test_an_http_server_is_no_gateway_to_join() -> None:
    with answering(b"", b"HTTP/1.1 400 Bad Request\r\n\r\n") as port:
        address = f"tcp://127.0.0.1:{port}"
        message = f"--join {address}: an HTTP server answers there; the address to join is join="
        with pytest.raises(SetupError, match=re.escape(message)):
            check_join(address)


def test_whoever_speaks_first_or_not_at_all_may_be_one() -> None:
    with answering(b"\xff\0\0\0\0\0\0\0\x01\x7f", b"HTTP/") as port:
        check_join(f"tcp://127.0.0.1:{port}")
        assert port
    with answering(b"", b"what?") as port:
        check_join(f"tcp://localhost:{port}")
    for address in ("tcp://127.0.0.1:9", "ipc:///nowhere", "tcp://host:port", "tcp://[::1]:99999"):
        check_join(address)


def test_it_loads_no_torch() -> None:
    code = "import sys, launch.local; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=HOME, check=False).returncode == 0


def test_without_torch_the_two_ways_to_it_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    check_torch()
    monkeypatch.setattr("launch.checks.find_spec", lambda _: None)
    with pytest.raises(SetupError, match=r"pip install torch --index-url \S+ \(for CPUs, 200 MB\)"):
        check_torch()
