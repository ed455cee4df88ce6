"""`python -m bench.timeline REQUEST_LOG`: a picture of what `bench.request_log` reads.

Must hold no type that another module knows: as a program it is not `bench.timeline` but `__main__`,
and what it defines is not what others import.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from bench import reasons
from bench.exits import USAGE_EXIT
from bench.flag_types import Parser, positive
from bench.request_log import Life, lives, read_log


def main(argv: Sequence[str]) -> int:
    """Draw a server's request log."""
    options = _parser().parse_all(argv)
    try:
        reasons.must_be_readable("REQUEST_LOG", options.request_log)
        reasons.must_be_drawable("--output", options.output)
        found = lives(read_log(options.request_log))[-options.last :]
        if not found:
            raise ValueError(f"{options.request_log}: no request is in it yet")
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return USAGE_EXIT
    # Here, since drawing is an extra and reading a log is not.
    from bench.plots import timeline

    timeline(found, options.output)
    told = nothing_done(found)
    if told is not None:
        print(told, file=sys.stderr)
    print(options.output)
    return 0


def nothing_done(found: Sequence[Life]) -> str | None:
    """What a picture of requests that never got to a pass does not say by itself."""
    n = sum(not life.was_computed for life in found)
    if n == 0:
        return None
    which = f"all {n}" if n == len(found) else f"{n} of the {len(found)}"
    return (
        f"{which} requests drawn ended before a pass computed anything of them (refused, aborted "
        "or failed): they have no bar but the queue's; --last takes more of those before"
    )


def _parser() -> Parser:
    parser = Parser(prog="python -m bench.timeline", description=main.__doc__)
    parser.add_argument("request_log", type=Path)
    parser.add_argument("--output", type=Path, default=Path("timeline.png"), help="[timeline.png]")
    parser.add_argument(
        "--last", type=positive, default=200, help="requests, the latest of all [200]"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
