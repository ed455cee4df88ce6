import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from launch.cli import foreign_package, main

HOME = Path(__file__).parents[3]


def run(*argv: str, python_path: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            "env",
            f"PYTHONPATH={python_path}:{HOME}",
            sys.executable,
            "-P",
            "-m",
            "launch.cli",
            *argv,
        ],
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    commands = (
        "serve",
        "prefill",
        "decode",
        "status",
        "check",
        "bench",
        "profile",
        "plan",
        "fetch",
    )
    for command in commands:
        assert f"\n  {command} " in text


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["sevre"], "unknown command sevre; did you mean serve?"),
        (["serve", "--prot", "1"], "unknown flag --prot; did you mean --port?"),
        (["prefill"], "the following arguments are required: --join"),
        (["bench", "server"], "unknown benchmark server; did you mean serve?"),
        (["bench", "nope"], "unknown benchmark nope; there are serve, sweep"),
        (["bench"], "bench: name a benchmark: serve, sweep"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], argv: list[str], message: str
) -> None:
    assert main(argv) == 2
    assert capsys.readouterr().err == f"baton: {message}\n"


def test_several_mistakes_are_a_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--enforce-eager", "--prot", "1", "--uds", "/x"]) == 2
    assert capsys.readouterr().err == (
        "baton: unknown flag --prot; did you mean --port?\n"
        "baton: unknown flag --uds: not supported: the API listens on --host and --port\n"
    )


def test_no_command_at_all_shows_the_help_as_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert capsys.readouterr().err.startswith("usage: baton COMMAND")


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == "baton 0.1.0\n"


@pytest.mark.parametrize("argv", [["--help"], ["serve", "--help"], ["prefill", "--help"]])
def test_help_loads_nothing_heavy(argv: list[str]) -> None:
    code = (
        "import json, sys; from launch.cli import main\n"
        f"try: main({argv!r})\n"
        "except SystemExit: pass\n"
        "print(json.dumps(sorted(sys.modules)))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, cwd=HOME)
    modules = set(json.loads(shown.stdout.splitlines()[-1]))
    assert "launch.cli" in modules
    assert not modules & {"torch", "numpy", "zmq", "starlette", "huggingface_hub", "tokenizers"}


def test_a_foreign_package_is_refused_by_its_path(tmp_path: Path) -> None:
    (tmp_path / "common").mkdir()
    (tmp_path / "common" / "__init__.py").touch()
    refused = run("serve", python_path=str(tmp_path))
    assert refused.returncode == 2
    assert refused.stderr == (
        f"baton: the package `common` is found at {tmp_path / 'common'}, not at "
        f"{HOME / 'common'}: another one stands before it; look at PYTHONPATH\n"
    )
    assert run("--help").returncode == 0


def test_our_own_packages_are_not_foreign() -> None:
    assert foreign_package(HOME) is None


def test_who_reads_no_more_is_told_no_more() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-P", "-m", "launch.cli", "--help"]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


def in_shell(script: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """`script` may say `baton`, and redirect it."""
    said = " ".join(f"{name}={value}" for name, value in {"PYTHONPATH": HOME, **environ}.items())
    command = f'env {said} "{sys.executable}" -P -m launch.cli'
    return subprocess.run(
        ["bash", "-c", f'baton() {{ {command} "$@"; }}; {script}'],
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("baton --version >&-", ""),
        ("baton --version <&- >&- 2>&-", ""),
        ("baton --version >/dev/full", "baton: No space left on device\n"),
    ],
)
def test_a_standard_stream_that_is_closed_or_full(script: str, said: str) -> None:
    ended = in_shell(script)
    assert (ended.returncode, ended.stdout, ended.stderr) == (1 if said else 0, "", said)


def test_what_a_terminal_has_no_letters_for_is_escaped(tmp_path: Path) -> None:
    name = tmp_path / "ü模.gguf"
    ended = in_shell(f"baton check --model '{name}' --port 0", PYTHONIOENCODING="ascii:strict")
    assert ended.returncode == 1
    assert f"model: {tmp_path}/\\xfc\\u6a21.gguf does not exist" in ended.stdout
