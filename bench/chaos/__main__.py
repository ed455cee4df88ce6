"""Is nothing lost while workers are killed, stopped and cut off?

    python -m bench.chaos [MODEL] [--seconds 600] [--seed 1]

Starts a server of 2 prefill and 2 decode workers in float32. Clients ask the same few prompts over
and over, streamed and whole, and some leave; every few seconds a random worker is killed, stopped
for a while, or loses its connections for a while. What must hold: every answer that was not
abandoned comes whole and is, to the letter, what its prompt got before anything was disturbed, no
token twice and none missing; at the end no page is held, and no descriptor, process or shared
memory is left; no process grows by over 1 MB a minute. Prints what is broken, how long streams
stood still by kind of fault, and one JSON line. Exit code 1: something is broken. Knows the server
by its HTTP, its processes and its logs alone.
"""

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench import reasons
from bench.chaos.plan import Kind, faults, prompts
from bench.chaos.record import Settings
from bench.chaos.run import disturb
from bench.chaos.verdict import Told, tell
from bench.chaos.waits import Line
from bench.exits import FAILED_EXIT
from bench.flag_types import Parser, above, positive, whole
from bench.jsonl import read_lines
from bench.program import exit_status
from bench.stdout import show


def main(argv: Sequence[str]) -> int:
    """Returns 1 where something is broken. Raises NotReady where the server does not start."""
    parser = _parser()
    options = parser.parse_all(argv)
    try:
        if options.logs is not None:
            reasons.must_be_a_writable_folder("--logs", options.logs)
    except ValueError as error:
        parser.error(str(error))
    logs = options.logs or Path(tempfile.mkdtemp(prefix="bc-"))
    logs.mkdir(parents=True, exist_ok=True)
    record = disturb(_settings(options), logs)
    lines = sorted(read_lines(record.request_log, Line), key=lambda line: line.mono)
    told = tell(record, lines, record.server_log.read_text("utf-8", "replace"))
    _show(told)
    if not told.broken and options.logs is None:
        shutil.rmtree(logs)
    else:
        print(f"logs: {logs}", file=sys.stderr)
    return FAILED_EXIT if told.broken else 0


def _settings(options: argparse.Namespace) -> Settings:
    model = () if options.model is None else ("--model", options.model)
    return Settings(
        flags=(*model, *options.flag),
        seed=options.seed,
        seconds=options.seconds,
        n_clients=options.clients,
        prompts=prompts(options.seed, options.prompts),
        faults=faults(
            options.seed,
            seconds=options.seconds,
            every_s=options.every,
            kinds=[Kind(kind) for kind in options.kinds],
        ),
    )


def _show(told: Told) -> None:
    for line in told.broken:
        show(f"broken: {line}")
    show(told.table)
    show(json.dumps(told.result))


def _parser() -> Parser:
    parser = Parser(
        prog="python -m bench.chaos",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", nargs="?", help="as `baton serve --model` takes it [its default]")
    parser.add_argument("--seconds", type=above(0), default=600.0, help="of chaos [600]")
    parser.add_argument("--seed", type=whole, default=1, help="of requests and faults [1]")
    parser.add_argument("--every", type=above(0), default=5.0, help="seconds: a fault [5]")
    parser.add_argument(
        "--kinds", nargs="+", choices=list(Kind), default=list(Kind), help="of faults [all]"
    )
    parser.add_argument("--clients", type=positive, default=6, help="that ask at once [6]")
    parser.add_argument("--prompts", type=positive, default=24, help="different ones [24]")
    parser.add_argument(
        "--flag", action="append", default=[], help="another flag of the server, --flag=--x=1"
    )
    parser.add_argument(
        "--logs", type=Path, help="folder of the server's logs, kept [kept if something is broken]"
    )
    return parser


if __name__ == "__main__":
    sys.exit(exit_status(main, sys.argv[1:]))
