"""`baton check` on the machine that the tests run on."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from common.config import DecodeConfig, ServeConfig
from common.errors import SetupError
from common.ids import Role
from launch.check.command import check, check_gpus
from launch.check.report import as_text
from tests.unit.launch.check.builders import GOOD, found_in, machine
from tests.unit.launch.test_checks import MODEL

HOME = Path(__file__).parents[4]


def found(*argv: str) -> tuple[int, dict[str, list[str]]]:
    """The exit code, and the texts of what would stop it, by topic."""
    code, text = check(["--json", *argv], {})
    stops: dict[str, list[str]] = {}
    report = json.loads(text)
    for finding in report["findings"]:
        if finding["level"] == "stop" and finding["topic"] != "kernels":  # being worked on
            stops.setdefault(finding["topic"], []).append(finding["text"])
    assert report["serves"] == (code == 0)
    return code, stops


def test_a_port_that_is_taken_is_told_and_one_that_is_free_is_not(tmp_path: Path) -> None:
    cache = ("--cache-dir", str(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        code, stops = found("--port", str(port), *cache)
        assert code == 1
        assert stops["port"] == [
            f"--host 127.0.0.1 --port {port}: Address already in use; choose another"
        ]
    assert found("--port", "0", *cache)[1] == {}


def test_all_that_is_wrong_is_told_at_once(tmp_path: Path) -> None:
    code, stops = found(
        *("--port", "0", "--model", str(tmp_path / "none.gguf"), "--cache-dir", str(tmp_path)),
        *("--api-key-file", str(tmp_path / "no-keys"), "--ssl-certfile", str(tmp_path / "no-cert")),
        *("--control-host", "0.0.0.0"),
    )
    assert code == 1
    assert set(stops) == {"keys", "tls", "control", "model"}
    assert stops["model"] == [f"model: {tmp_path}/none.gguf does not exist"]


def test_files_that_the_server_could_not_use(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "open").mkdir(mode=0o755)
    os.mkfifo(tmp_path / "pipe")
    cache = ("--port", "0", "--cache-dir", str(tmp_path))
    for run_dir, says in (
        ("file", "Not a directory"),
        ("open", "must be yours alone"),
        ("x" * 90, "too many for a Unix socket's path"),
        ("x" * 300, "File name too long"),
        ("file/below", "it cannot be made there"),
    ):
        (told,) = found("--run-dir", str(tmp_path / run_dir), *cache)[1]["run dir"]
        assert says in told
    assert found("--run-dir", str(tmp_path / "new"), *cache)[1] == {}
    assert not (tmp_path / "new").exists()
    for flag, name, says in (
        ("--request-log", "open", "Is a directory"),
        ("--request-log", "nowhere/log", "no file can be made there"),
        ("--request-log", "pipe", "a pipe that nobody reads"),
        ("--chat-template", "none.jinja", "No such file or directory"),
    ):
        assert found(flag, str(tmp_path / name), *cache)[1] == {
            "files": [f"{flag} {tmp_path / name}: {says}"]
        }
    assert found("--request-log", str(tmp_path / "new.log"), *cache)[1] == {}
    assert not (tmp_path / "new.log").exists()
    (told,) = found("--otlp-traces-endpoint", "nonsense", *cache)[1]["traces"]
    assert "must be the URL of a collector" in told


def test_cpus_that_there_are_not_are_of_the_cores(tmp_path: Path) -> None:
    _, stops = found("--port", "0", "--cpus", "0-4000", "--cache-dir", str(tmp_path))
    assert set(stops) == {"cores"}


def test_pages_that_do_not_fit_are_of_the_memory(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(MODEL))
    (tmp_path / "model.safetensors").write_bytes(bytes(1000))
    text = check(["--port", "0", "--kv-cache-memory-bytes", "5TiB", str(tmp_path)], {})[1]
    lines = [line for line in text.splitlines() if "  memory  " in line]
    assert [line.split()[0] for line in lines if "GiB" in line] == ["STOP"]
    assert "  STOP  model" not in text


def test_a_flag_that_makes_no_sense_is_refused_as_by_the_server() -> None:
    with pytest.raises(SetupError, match="unknown flag --prot; did you mean --port"):
        check(["--prot", "1"], {})


@pytest.mark.skipif(Path("/dev/nvidia0").exists(), reason="there is a GPU")
def test_the_server_refuses_gpus_in_the_words_of_the_check(tmp_path: Path) -> None:
    _, stops = found("--port", "0", "--decode.devices", "cuda:0", "--cache-dir", str(tmp_path))
    config = ServeConfig(decode=DecodeConfig(devices="cuda:0"))
    with pytest.raises(SetupError) as refused:
        check_gpus(config, [Role.PREFILL, Role.DECODE])
    assert str(refused.value).startswith(stops["gpu"][0])
    check_gpus(config, [Role.PREFILL])


def test_it_loads_no_torch() -> None:
    code = (
        "import sys; from launch.check.command import check; check(['--port', '0'], {}); "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=HOME, check=False).returncode == 0


def test_the_text_ends_with_the_verdict() -> None:
    assert as_text(GOOD, found_in(GOOD)).splitlines()[-1] == "it can serve"
    few = machine(open_files=10)
    assert as_text(few, found_in(few)).splitlines()[-1] == (
        "nothing of this would stop it from serving; 1 warning"
    )


def test_pages_that_workers_on_cpus_cannot_keep_are_told_once(tmp_path: Path) -> None:
    flags = ("--kv-cache-dtype", "fp8", "--port", "0", "--cache-dir", str(tmp_path))
    code, stops = found(*flags)
    assert (code, set(stops)) == (1, {"gpu"})
    (text,) = stops["gpu"]
    assert text.startswith("--kv-cache-dtype fp8: prefill-0 computes on the CPU")
    assert found(*flags, "--devices", "interpreter")[1] == {}
