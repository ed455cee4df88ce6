"""`baton status`: what a server tells, once or again and again."""

import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from common.errors import SetupError
from launch.flags import Parser, refusal
from launch.status.client import KEY_VARIABLES, NoStatus, Source, key_of
from launch.status.screen import lines

_URL = "http://127.0.0.1:8000"
_CLEAR = "\033[H\033[2J\033[3J"
_MIN_INTERVAL_S, _MAX_INTERVAL_S = 0.1, 86400


@dataclass(frozen=True, slots=True)
class Wish:
    """What was asked for."""

    source: Source
    watch: bool
    interval_s: float
    n_requests: int
    as_json: bool
    on_terminal: bool


def status(
    argv: Sequence[str],
    environ: Mapping[str, str],
    write: Callable[[str], object],
    *,
    on_terminal: bool,
) -> int:
    """Until it is shown, or with --watch until interrupted. Returns the exit code.

    Raises NoStatus where no server answers at first, SetupError where a flag makes no sense.
    """
    steered = on_terminal and environ.get("TERM") != "dumb"  # it can be cleared
    wish = parsed(argv, environ, on_terminal=steered)
    write(_shown(wish))
    while wish.watch:
        try:
            time.sleep(wish.interval_s)
            write(_again(wish))
        except KeyboardInterrupt:
            return 0
    return 0


def _shown(wish: Wish) -> str:
    document, content = wish.source.ask()
    if wish.as_json:
        return f"{content.decode()}\n"
    text = lines(document, n_requests=wish.n_requests)
    if not (wish.watch and wish.on_terminal):
        return "\n".join([*text, ""]) + ("\n" if wish.watch else "")
    return _screen(text)


def _again(wish: Wish) -> str:
    """A server that is gone may come back."""
    try:
        return _shown(wish)
    except NoStatus as error:
        if wish.as_json:
            return json.dumps({"error": str(error)}) + "\n"
        return _screen([str(error)]) if wish.on_terminal else f"{error}\n"


def _screen(text: Sequence[str]) -> str:
    """What fits of it, in the place of what was there."""
    width, height = shutil.get_terminal_size()
    return _CLEAR + "\n".join(line[:width] for line in text[: height - 1]) + "\n"


def parsed(argv: Sequence[str], environ: Mapping[str, str], *, on_terminal: bool) -> Wish:
    parser = Parser(
        prog="baton status",
        description="The pools of a running server: workers, queues, pages, tokens per second, "
        "latencies against their targets, handoffs, restarts.",
        allow_abbrev=False,
        usage="baton status [flags]",
    )
    parser.add_argument("--url", default=_URL, help=f"of the server [{_URL}]")
    parser.add_argument("--watch", action="store_true", help="again and again, until Ctrl-C")
    parser.add_argument(
        "--interval", type=float, default=1.0, metavar="S", help="seconds between two looks [1]"
    )
    parser.add_argument(
        "--requests", type=int, default=5, metavar="N", help="show the last N requests [5]"
    )
    parser.add_argument("--json", action="store_true", help="the server's own document")
    parser.add_argument(
        "--api-key-file",
        metavar="FILE",
        help=f"its first key is sent [the variable {' or '.join(KEY_VARIABLES)}]",
    )
    parser.add_argument(
        "--ssl-ca-certs", metavar="FILE", help="authorities of https, PEM [the system's]"
    )
    options, rest = parser.parse_known_args(argv)
    if rest:
        raise SetupError(refusal(rest, parser.flags()))
    if not _MIN_INTERVAL_S <= options.interval <= _MAX_INTERVAL_S:
        raise SetupError(
            f"--interval {options.interval:g}: must be from {_MIN_INTERVAL_S} to {_MAX_INTERVAL_S}"
        )
    if options.requests < 0:
        raise SetupError(f"--requests {options.requests}: must be at least 0")
    source = Source(
        url=_url(options.url),
        api_key=key_of(options.api_key_file, environ),
        ssl_ca_certs=options.ssl_ca_certs,
    )
    return Wish(
        source=source,
        watch=options.watch,
        interval_s=options.interval,
        n_requests=options.requests,
        as_json=options.json,
        on_terminal=on_terminal,
    )


def _url(text: str) -> str:
    made = text if "://" in text else f"http://{text}"
    if not made.startswith(("http://", "https://")) or made.endswith("://"):
        raise SetupError(f"--url {text}: must be http://HOST:PORT")
    return made.rstrip("/").removesuffix("/v1")
