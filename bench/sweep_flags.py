"""The command line of `baton bench sweep`, and what it says of a sweep. Pure.

Must not import anything of the engine.
"""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench import workloads
from bench.client import ENDPOINTS
from bench.comparison import Design
from bench.measures import Goodput
from bench.search import MIN_TOLERANCE, Limits

_NOT_IN_POINTS = frozenset(
    {
        *("attainment", "slo_scale", "goodput", "rounds", "tolerance", "start_rate", "num_prompts"),
        *("num_solo", "num_devices", "request_log", "result_dir"),
    }
)
"""Flags that choose or judge points; a point under the same load is the same point without them."""


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Exits with 2, and one line on stderr, where a flag makes no sense."""
    parser = _parser()
    options = parser.parse_args(argv)
    options.server = dict(options.server or [("server", "http://127.0.0.1:8000")])
    if options.request_log is not None and options.request_log[0] not in options.server:
        parser.error(f"--request-log: no --server is named {options.request_log[0]}")
    try:
        design(options)
    except ValueError as error:
        parser.error(str(error))
    return options


def configuration(options: argparse.Namespace) -> dict[str, Any]:
    """All that a point depends on."""
    return {name: value for name, value in vars(options).items() if name not in _NOT_IN_POINTS}


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


def slo(options: argparse.Namespace) -> Goodput | None:
    """None: it is yet to be measured."""
    return None if options.goodput is None else Goodput(**dict(options.goodput))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="baton bench sweep",
        description="Find the highest rate at which servers meet an SLO. Start it again with the "
        "same --result-dir and it goes on where it was stopped. --num-prompts is the number of "
        "requests a point: [200 for up to 90 %%, 1000 above]; fewer tell less.",
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
    parser.add_argument("--model", help="as the servers name it [the first that each lists]")
    parser.add_argument("--backend", choices=sorted(ENDPOINTS), default="openai")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--goodput",
        type=_slo,
        nargs="+",
        metavar="NAME:MS",
        help="the SLO at scale 1, such as ttft:200 tpot:50 [5 x the TTFT and 3 x the TPOT of one "
        "request alone at the fastest server]",
    )
    parser.add_argument(
        "--attainment",
        type=_list(_percent),
        default=[90.0, 99.0],
        help="percent of requests that must meet it [90,99]",
    )
    parser.add_argument(
        "--slo-scale", type=_list(_above(0)), default=[1.0], help="such as 0.5,1,2 [1]"
    )
    parser.add_argument("--rounds", type=workloads.positive, default=3, help="[3]")
    parser.add_argument("--start-rate", type=_above(0), default=1.0, help="requests/s [1]")
    parser.add_argument(
        "--tolerance",
        type=_above(MIN_TOLERANCE),
        default=0.05,
        help="a search ends when its bracket is so narrow [0.05]",
    )
    parser.add_argument(
        "--num-solo", type=workloads.positive, default=20, help="requests sent alone [20]"
    )
    parser.add_argument(
        "--num-warmups", type=workloads.positive, default=2, help="before each server [2]"
    )
    parser.add_argument("--burstiness", type=_above(0), default=1.0, help="1 is Poisson [1]")
    parser.add_argument(
        "--num-devices",
        type=workloads.positive,
        default=1,
        help="of each server, for the Pareto plot [1]",
    )
    parser.add_argument(
        "--request-log",
        type=_request_log,
        metavar="NAME=FILE",
        help="what that server was given as --request-log: for a timeline",
    )
    workloads.add_flags(parser)
    return parser


def _server(text: str) -> tuple[str, str]:
    name, equals, url = text.partition("=")
    if not (name and equals and url.startswith(("http://", "https://"))):
        raise argparse.ArgumentTypeError(f"{text}: must be NAME=URL, such as a=http://host:8000")
    return name, url.rstrip("/").removesuffix("/v1")


def _slo(text: str) -> tuple[str, float]:
    name, _, limit = text.partition(":")
    if name not in ("ttft", "tpot", "e2el"):
        raise argparse.ArgumentTypeError(f"{text}: must be ttft:MS, tpot:MS or e2el:MS")
    return f"{name}_ms", _above(0)(limit)


def _request_log(text: str) -> tuple[str, str]:
    name, _, path = text.partition("=")
    if not path:
        raise argparse.ArgumentTypeError(f"{text}: must be NAME=FILE")
    return name, path


def _list(one: Callable[[str], float]) -> Callable[[str], list[float]]:
    def parse_all(text: str) -> list[float]:
        return [one(part) for part in text.split(",")]

    return parse_all


def _percent(text: str) -> float:
    value = _number(text)
    if not 0 < value <= 100:
        raise argparse.ArgumentTypeError(f"{text}: must be above 0 and at most 100")
    return value


def _above(lowest: float) -> Callable[[str], float]:
    def parse_one(text: str) -> float:
        value = _number(text)
        if not value > lowest:
            raise argparse.ArgumentTypeError(f"{text}: must be above {lowest:g}")
        return value

    return parse_one


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text}: must be a number") from None
