"""The command line of `baton plan`: workloads, SLO and arrivals as `baton bench serve` has them.

Pure; must not read files.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from bench import workloads
from bench.flag_types import Parser, above, between, positive, whole
from bench.serve_flags import slo_limit

REQUESTS_A_DEVICE = 250  # so that a load lasts long against one request
LEAST_REQUESTS = 1000


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Exits with 2, and one line on stderr, where a flag makes no sense."""
    parser = _parser()
    options = parser.parse_all(argv)
    if options.costs is None:
        parser.error(
            "--costs FILE is what `baton profile --output FILE` writes at a running server; or "
            "opt-13b, a published set"
        )
    if options.devices is None:
        parser.error("--devices N says how many there are, a worker each")
    if not options.goodput:
        parser.error("--goodput (or --slo) says what a request is owed: ttft:200 tpot:50 or so")
    workloads.complete(options, parser)
    names = [name for name, _ in options.goodput]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        parser.error(f"--goodput says {twice} twice: one limit each")
    if options.num_prompts is None and options.dataset_name in ("random", "prefix_repetition"):
        options.num_prompts = max(LEAST_REQUESTS, REQUESTS_A_DEVICE * options.devices)
    options.prompt_form = "ids"  # the cores take no others
    return options


def _parser() -> Parser:
    parser = Parser(
        prog="baton plan",
        description="Which ratio of prefill to decode workers, with which batch limits, serves "
        "most requests/s within an SLO; and how colocated workers do on the same devices. Both "
        "are predicted: all plans by a fast model, the best by the real schedulers under a virtual "
        "clock. The last line is JSON.",
    )
    group = parser.add_argument_group("plan")
    group.add_argument("--devices", type=positive, help="needed: a worker each", metavar="N")
    group.add_argument(
        "--costs",
        metavar="FILE",
        help="needed: what operations cost on such a device, as `baton profile` writes it; or "
        "opt-13b, a published set",
    )
    group.add_argument(
        "--goodput",
        "--slo",
        type=slo_limit,
        nargs="+",
        default=[],
        metavar="NAME:MS",
        help="what a request is owed: ttft, tpot, e2el",
    )
    group.add_argument(
        "--attainment",
        type=between(1, 100),
        default=90.0,
        help="percent of requests that must have it [90]",
    )
    group.add_argument(
        "--burstiness",
        type=above(0),
        default=1.0,
        help="of gamma gaps; 1 is Poisson; a timed_trace has its own, stretched to each rate [1]",
    )
    group.add_argument("--seed", type=whole, default=0, help="of prompts, lengths and times [0]")
    group.add_argument(
        "--verify-requests",
        type=positive,
        help="that each run of the real schedulers has [as many as end in time]",
    )
    group.add_argument("--tokenizer", help="for text: a tokenizer.json, its directory or hub id")
    group.add_argument("--plot", type=Path, metavar="PNG", help="draw the attainment by rate")
    group.add_argument("--save-result", action="store_true", help="the JSON as a file, too")
    group.add_argument("--result-dir", type=Path, default=Path(), help="[.]")
    group.add_argument("--result-filename", help="[plan-NAME-Ndevices.json]")
    workloads.add_flags(parser)
    group.add_argument(
        "--workload",
        dest="dataset_name",
        choices=workloads.NAMES,
        default=argparse.SUPPRESS,
        help="--dataset-name, shorter",
    )
    return parser
