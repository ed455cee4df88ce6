"""Does a request fail while every worker is restarted, and one is added and removed?

    python -m bench.rolling [MODEL] [--rate 1] [--plot FILE.png]

Starts a server of 2 prefill and 2 decode workers (`--workers`) in float32 and asks it at a steady
rate (Poisson) the same few prompts over and over, streamed; one answer in eight is eight times as
long. Then SIGHUP restarts every worker in turn, a prefill worker joins as an operator would start
it (`baton prefill --join`), is told to leave (SIGTERM) and must end with exit code 0. What must
hold: every request is answered whole, and each prompt always alike, to the letter. Prints what is
broken, and one JSON line with times to first token and between tokens: before, while workers
restarted, and while one joined and left. Exit code 1: something is broken.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench import reasons
from bench.exits import FAILED_EXIT
from bench.flag_types import Parser, above, positive, whole
from bench.program import exit_status
from bench.rolling.record import result, wrong
from bench.rolling.run import Settings, roll
from bench.stdout import show


def main(argv: Sequence[str]) -> int:
    """Returns 1 where something is broken. Raises NotReady where a worker does not start."""
    parser = _parser()
    options = parser.parse_all(argv)
    try:
        if options.plot is not None:
            reasons.must_be_drawable("--plot", options.plot)
    except ValueError as error:
        parser.error(str(error))
    if options.logs is not None:
        options.logs.mkdir(parents=True, exist_ok=True)
    settings = Settings(
        model=options.model,
        workers=options.workers,
        rate=options.rate,
        prompt_tokens=options.input_len,
        output_tokens=options.output_len,
        calm_s=options.calm,
        seed=options.seed,
        flags=tuple(options.flag),
    )
    with tempfile.TemporaryDirectory(prefix="br-") as home:
        record, wanted = roll(settings, options.logs or Path(home))
    broken = wrong(record.outcomes, wanted)
    for line in broken:
        show(f"broken: {line}")
    if options.plot is not None:
        from bench.rolling import picture  # matplotlib is an extra

        picture.draw(record, options.plot)
    show(json.dumps(result(record, broken)))
    return FAILED_EXIT if broken else 0


def _parser() -> Parser:
    parser = Parser(
        prog="python -m bench.rolling",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", nargs="?", help="as `baton serve --model` takes it [its default]")
    parser.add_argument("--workers", type=positive, default=2, help="of each pool [2]")
    parser.add_argument("--rate", type=above(0), default=1.0, help="requests/s [1]")
    parser.add_argument("--input-len", type=positive, default=128, help="tokens of prompt [128]")
    parser.add_argument("--output-len", type=positive, default=48, help="tokens of answer [48]")
    parser.add_argument(
        "--calm", type=above(0), default=15.0, help="seconds before, between and after [15]"
    )
    parser.add_argument("--seed", type=whole, default=1, help="of prompts and arrivals [1]")
    parser.add_argument(
        "--flag", action="append", default=[], help="another flag of all workers, --flag=--x=1"
    )
    parser.add_argument("--plot", type=Path, help="a picture of it all")
    parser.add_argument("--logs", type=Path, help="folder of the logs, kept [a temporary one]")
    return parser


if __name__ == "__main__":
    sys.exit(exit_status(main, sys.argv[1:]))
