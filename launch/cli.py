"""The `baton` command: finds the subcommand and imports what it needs, and no more.

The one place that reads the process's argv and environment. `baton --help` must not import torch.
"""

import errno
import importlib.util
import io
import logging
import os
import signal
import socket
import sys
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from common.config import ServeConfig
    from common.ids import Role

# Nothing of ours at the top of the file: the names are common words, and a foreign package that
# stands before ours on sys.path must be refused by name, not by a strange ImportError.

_PACKAGES = ("common", "prefill", "decode", "transfer", "launch", "bench")
_COMMANDS = {
    "serve": "serve a model over HTTP through a prefill pool and a decode pool",
    "prefill": "run one prefill worker for a server that is running (--join ADDR)",
    "decode": "run one decode worker for a server that is running (--join ADDR)",
    "status": "the pools of a running server, live with --watch (baton status --url URL)",
    "check": "what this machine can do, and what would stop it from serving (flags of serve)",
    "bench": "measure a running server (baton bench serve --base-url URL)",
    "profile": "fit what operations cost to a running server (baton profile --base-url URL)",
    "plan": "which ratio of prefill to decode workers serves most within an SLO",
    "fetch": "download the default model, and print where it is",
}
_BENCHMARKS = ("serve", "sweep")
_KEY_WAS_SHOWN = (
    "--api-key could be seen in `ps` for a moment, and stays in the shell's history; "
    "--api-key-file FILE and the variable BATON_API_KEY show it nowhere"
)
_FAILED_EXIT = 1
_USAGE_EXIT = 2
_INTERRUPTED_EXIT = 130
_NOBODY_READS_EXIT = 141  # as a shell tells of SIGPIPE
_STANDARD_STREAMS = 3
_OF_THE_MACHINE = frozenset(  # what a file may be answered with, and no error of ours
    (
        *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG),
        *(errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.EIO, errno.ESTALE),
    )
)


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code: 2 where the operator must act, with one line on stderr."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    _open_streams()
    foreign = foreign_package(Path(__file__).resolve().parent.parent)
    if foreign is not None:
        print(f"baton: {foreign}", file=sys.stderr)
        return _USAGE_EXIT
    from common.errors import SetupError

    try:
        code = _run(arguments)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # as of `| head`
        from bench.stdout import tell_nobody

        tell_nobody()
        return _NOBODY_READS_EXIT
    except SetupError as error:
        _say("cannot_run", str(error))
        return _USAGE_EXIT
    except OSError as error:
        if error.errno not in _OF_THE_MACHINE:
            raise
        from bench.stdout import tell_nobody

        if error.filename is None:  # it was standard output: what is left of it is not tried again
            tell_nobody()
        where = "" if error.filename is None else f"{error.filename}: "
        print(f"baton: {where}{error.strerror}", file=sys.stderr)
        return _FAILED_EXIT
    except KeyboardInterrupt:
        return _INTERRUPTED_EXIT


def _say(event: str, text: str) -> None:
    """A line to stderr: for people, or for those who read JSON."""
    from common.log import line, logs_json

    if logs_json():
        level = logging.WARNING if event == "warning" else logging.CRITICAL
        logging.getLogger(__name__).log(level, line(event, detail=text))
    else:
        remark = "warning: " if event == "warning" else ""
        for told in text.splitlines():
            print(f"baton: {remark}{told}", file=sys.stderr)


def _warn(remarks: Iterable[str]) -> None:
    for remark in remarks:
        _say("warning", remark)


def _set_up_log(config: "ServeConfig", name: str) -> None:
    from common.log import log_what_python_says, set_up_logging

    set_up_logging(config.log_level, name, log_format=config.log_format)
    log_what_python_says()


def _open_streams() -> None:
    """A standard stream that is closed leads nowhere: else what is opened first would be taken for
    it. What has no place in a stream's encoding is written escaped."""
    while (opened := os.open(os.devnull, os.O_RDWR)) < _STANDARD_STREAMS:
        os.set_inheritable(opened, True)  # noqa: FBT003 - the system's own
    os.close(opened)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def foreign_package(home: Path) -> str | None:
    """What is wrong where one of our package names leads elsewhere than to `home`."""
    for name in _PACKAGES:
        spec = importlib.util.find_spec(name)
        places = list(spec.submodule_search_locations or ()) if spec is not None else []
        place = Path(places[0]).resolve() if places else None
        if place != home / name:
            return (
                f"the package `{name}` is found at {place or 'no place'}, not at {home / name}: "
                "another one stands before it; look at PYTHONPATH"
            )
    return None


def _run(arguments: list[str]) -> int:
    match arguments:
        case ["--version"]:
            from importlib.metadata import version

            print(f"baton {version('baton-serving')}")
        case ["--help" | "-h"]:
            print(_help())
        case []:
            print(_help(), file=sys.stderr)
            return _USAGE_EXIT
        case [command, *rest] if command in _HANDLERS:
            return _HANDLERS[command](rest)
        case [unknown, *_]:
            raise _unknown("command", unknown, _COMMANDS)
    return 0


def _help() -> str:
    lines = "\n".join(f"  {name:8} {text}" for name, text in _COMMANDS.items())
    return f"usage: baton COMMAND [flags]; baton COMMAND --help lists a command's flags\n\n{lines}"


def _unknown(what: str, name: str, known: Iterable[str]) -> Exception:
    from common.errors import SetupError
    from launch.options import hint

    near = hint(name, known) or f"; there are {', '.join(known)}"
    return SetupError(f"unknown {what} {name}{near}")


def _serve(argv: list[str]) -> int:
    from launch.notify import has_terminal
    from launch.settings import load_serve

    if not has_terminal():  # SIGHUP is for workers, and there is none yet
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    remarks: list[str] = []
    told = load_serve(argv, os.environ, remarks.append)
    from common.ids import Role
    from launch.security import hide_arguments

    _set_up_log(told, Role.GATEWAY)
    if hide_arguments():
        remarks.append(_KEY_WAS_SHOWN)
    _warn(remarks)
    _begin(told, Role.PREFILL, Role.DECODE)
    config = _settled(told)
    from launch.local import serve

    return serve(config, os.environ)


def _worker(role: str, argv: list[str]) -> int:
    from common.available import usable_cpus
    from common.config import resolve_worker
    from common.ids import Role
    from launch.settings import load_worker

    remarks: list[str] = []
    told = load_worker(Role(role), argv, os.environ, remarks.append)
    from launch.checks import check_join
    from launch.security import check_control

    _set_up_log(told.config, role)
    _warn(remarks)
    check_control(told.config)
    check_join(told.join)
    _begin(told.config, Role(role))
    config = resolve_worker(
        _settled(told.config),
        Role(role),
        index=0,
        name=f"{role}-{socket.gethostname()}-{os.getpid()}",
        join=told.join,
        threads=len(usable_cpus()),
    )
    if config.role is Role.PREFILL:
        from prefill.worker import main as run
    else:
        from decode.worker import main as run
    return run(config)


def _begin(config: "ServeConfig", *roles: "Role") -> None:
    """What servers and workers see to before they fetch or start anything."""
    from launch.check.command import check_gpus, kernel_warnings
    from launch.checks import check_torch
    from launch.limits import raise_open_files

    check_torch()
    check_gpus(config, roles)
    raise_open_files()
    _warn(kernel_warnings())


def _settled(config: "ServeConfig") -> "ServeConfig":
    """With the model's files on this machine, and its name."""
    from msgspec.structs import replace

    from launch.fetch import model_name, resolve_model
    from launch.settings import cache_dir

    path = resolve_model(config.model, cache_dir=cache_dir(config))
    name = config.served_model_name or model_name(config.model)
    return replace(config, model=str(path), served_model_name=name)


def _status(argv: list[str]) -> int:
    from launch.status.client import NoStatus
    from launch.status.command import status

    def write(text: str) -> None:
        print(text, end="", flush=True)

    try:
        return status(argv, os.environ, write, on_terminal=sys.stdout.isatty())
    except NoStatus as error:
        print(f"baton: {error}", file=sys.stderr)
        return _FAILED_EXIT


def _check(argv: list[str]) -> int:
    from launch.check.command import check

    remarks: list[str] = []
    code, text = check(argv, os.environ, remarks.append)
    _warn(remarks)
    print(text)
    return code


def _bench(argv: list[str]) -> int:
    match argv:
        case ["serve", *rest]:
            from bench.serve import main as run

            return run(rest, os.environ)
        case ["sweep", *rest]:
            from bench.sweep import main as run

            return run(rest, os.environ)
        case ["--help" | "-h"]:
            print(
                "usage: baton bench serve|sweep [flags]; "
                "baton bench serve --help lists the flags of the one"
            )
            return 0
        case [unknown, *_]:
            raise _unknown("benchmark", unknown, _BENCHMARKS)
        case _:
            from common.errors import SetupError

            raise SetupError(f"bench: name a benchmark: {', '.join(_BENCHMARKS)}")


def _profile(argv: list[str]) -> int:
    from bench.profile import main as run

    return run(argv, os.environ)


def _plan(argv: list[str]) -> int:
    from bench.planning import main as run

    return run(argv)


def _fetch(argv: list[str]) -> int:
    from launch.fetch import DEFAULT_MODEL, fetch
    from launch.settings import load_fetch

    print(fetch(DEFAULT_MODEL, cache_dir=load_fetch(argv, os.environ)))
    return 0


_HANDLERS = {
    "serve": _serve,
    "prefill": partial(_worker, "prefill"),
    "decode": partial(_worker, "decode"),
    "status": _status,
    "check": _check,
    "bench": _bench,
    "profile": _profile,
    "plan": _plan,
    "fetch": _fetch,
}


if __name__ == "__main__":
    sys.exit(main())
