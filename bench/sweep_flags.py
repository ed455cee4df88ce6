"""The command line of `baton bench sweep`: its own flags, and what is asked as `serve` has it.

Pure; must not import anything of the engine.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import api_key, serve_flags
from bench.comparison import Design
from bench.flag_types import Parser, above, list_of, positive, url
from bench.search import MIN_TOLERANCE, Limits

_OWN = ("base_url", "host", "port", "request_rate", "max_concurrency", "self_timed")
_OF_SERVE = (
    *("ramp_up_strategy", "ramp_up_start_rps", "ramp_up_end_rps", "append_result"),
    *("percentile_metrics", "metric_percentiles", "save_result", "save_detailed"),
    *("result_filename", "label", "metadata", "ready_check_timeout_sec"),
)
"""Flags of `baton bench serve` that a sweep decides itself, or has no use for."""
_OF_JUDGEMENT = (
    *("attainment", "slo_scale", "goodput", "rounds", "tolerance", "start_rate", "num_prompts"),
    *("num_solo", "num_devices", "request_log", "result_dir", "client_processes", "api_key"),
    *("ssl_ca_certs", "insecure"),
)
"""Flags that choose or judge points, or let us in; a point under the same load is the same point
without them."""


def parse(
    argv: Sequence[str], environ: Mapping[str, str] = api_key.NO_VARIABLES
) -> argparse.Namespace:
    """Exits with 2, and one line on stderr, where a flag makes no sense."""
    parser = _parser()
    own, rest = parser.parse_known_args(argv)
    options = serve_flags.parse(rest, environ, prog=parser.prog, also=parser.flags)
    for name in (*_OWN, *_OF_SERVE):
        flag = f"--{name.replace('_', '-')}"
        if any(part == flag or part.startswith(f"{flag}=") for part in rest):
            parser.error(f"{flag} is a flag of `baton bench serve`; a sweep has no use for it")
    for name, value in vars(own).items():
        setattr(options, name, value)
    options.server = dict(own.server or [("server", "http://127.0.0.1:8000")])
    if own.request_log is not None and own.request_log[0] not in options.server:
        parser.error(f"--request-log: no --server is named {own.request_log[0]}")
    try:
        design(options)
    except ValueError as error:
        parser.error(str(error))
    return options


def configuration(options: argparse.Namespace) -> dict[str, Any]:
    """All that a point depends on."""
    ignored = {*_OWN, *_OF_SERVE, *_OF_JUDGEMENT}
    return {name: value for name, value in vars(options).items() if name not in ignored}


def design(options: argparse.Namespace) -> Design:
    """Raises ValueError where the search's flags contradict each other."""
    return Design(
        servers=tuple(options.server),
        rounds=options.rounds,
        targets=tuple(percent / 100 for percent in options.attainment),
        scales=tuple(options.slo_scale),
        limits=Limits(start=options.start_rate, tolerance=options.tolerance),
        n_solo=options.num_solo,
        n_requests=options.num_prompts,
    )


def _parser() -> Parser:
    parser = Parser(
        prog="baton bench sweep",
        description="Find the highest rate at which servers meet an SLO. Started again with the "
        "same --result-dir it goes on where it was stopped.",
        epilog="And the flags of `baton bench serve` that say what is asked and of whom: --model, "
        "--backend, --dataset-name, --random-input-len, --burstiness, --seed and so on. --goodput "
        "is the SLO at scale 1 [5 x the TTFT and 3 x the TPOT of one request alone at the fastest "
        "server]; --num-prompts the requests a point [200 for up to 90 %, 1000 above]: with fewer "
        "the rates are less sure.",
    )
    parser.add_argument(
        "--server",
        type=_server,
        action="append",
        metavar="NAME=URL",
        help="measured in turn, the first is what others are compared with "
        "[server=http://127.0.0.1:8000]",
    )
    parser.add_argument("--result-dir", type=Path, default=Path("sweep"), help="[sweep]")
    parser.add_argument(
        "--attainment",
        type=list_of(_percent),
        default=[90.0, 99.0],
        help="percent of requests that must meet the SLO [90,99]",
    )
    parser.add_argument(
        "--slo-scale", type=list_of(above(0)), default=[1.0], help="such as 0.5,1,2 [1]"
    )
    parser.add_argument("--rounds", type=positive, default=3, help="[3]")
    parser.add_argument("--start-rate", type=above(0), default=1.0, help="requests/s [1]")
    parser.add_argument(
        "--tolerance",
        type=above(MIN_TOLERANCE),
        default=0.05,
        help="a search ends when its bracket is so narrow [0.05]",
    )
    parser.add_argument("--num-solo", type=positive, default=20, help="requests sent alone [20]")
    parser.add_argument(
        "--num-devices", type=positive, default=1, help="of each server, for the Pareto plot [1]"
    )
    parser.add_argument(
        "--request-log",
        type=_request_log,
        metavar="NAME=FILE",
        help="what that server was given as --request-log: for a timeline",
    )
    return parser


def _server(text: str) -> tuple[str, str]:
    name, _, address = text.partition("=")
    if not (name and address):
        raise argparse.ArgumentTypeError(f"{text}: must be NAME=URL, such as a=http://host:8000")
    return name, url(address)


def _request_log(text: str) -> tuple[str, Path]:
    name, _, path = text.partition("=")
    if not path:
        raise argparse.ArgumentTypeError(f"{text}: must be NAME=FILE")
    return name, Path(path)


def _percent(text: str) -> float:
    value = above(0)(text)
    if not 1 < value <= 100:
        raise argparse.ArgumentTypeError(f"{text}: must be in percent, above 1 and at most 100")
    return value
