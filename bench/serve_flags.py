"""The flags of `baton bench serve`, named as in `vllm bench serve` where it has them."""

import argparse
import math
from collections.abc import Mapping, Sequence

from bench import api_key, tls, workloads
from bench.arrivals import Arrivals, RampUp
from bench.client import ENDPOINTS, Backend, Target
from bench.flag_types import (
    Parser,
    above,
    at_least,
    between,
    json_object,
    list_of,
    positive,
    url,
    whole,
)
from bench.measures import METRICS, PERCENTILES, Goodput

SHOWN_METRICS = ("ttft", "tpot", "itl", "e2el")
OWN_LENGTHS = ("sharegpt", "custom")  # their answers end where the model ends them


def parse(
    argv: Sequence[str],
    environ: Mapping[str, str] = api_key.NO_VARIABLES,
    *,
    prog: str = "baton bench serve",
    also: Sequence[str] = (),
) -> argparse.Namespace:
    """Exits where flags are unknown or contradict one another, as argparse does.

    `also`: flags that `prog` has of its own, worth a hint.
    """
    parser = Parser(
        prog=prog,
        description="Load one OpenAI-compatible server, and report latencies and throughput in "
        "the form of `vllm bench serve`. The last line is JSON. Exit code 1: it failed requests.",
    )
    _add_target(parser.add_argument_group("server"))
    _add_load(parser.add_argument_group("load"))
    workloads.add_flags(parser)
    _add_report(parser.add_argument_group("report"))
    options, rest = parser.parse_known_args(argv)
    if rest:
        parser.refuse(rest, also)
    _complete(options, parser)
    api_key.complete(options, environ)
    return options


def headers(options: argparse.Namespace) -> dict[str, str]:
    """Of every request."""
    return {**api_key.authorization(options), **dict(options.header)}


def _complete(options: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """Defaults that depend on other flags."""
    workloads.complete(options, parser)
    ramp = (options.ramp_up_strategy, options.ramp_up_start_rps, options.ramp_up_end_rps)
    if any(ramp) and (not all(ramp) or options.request_rate is not None):
        parser.error("a ramp takes all three --ramp-up flags, and no --request-rate")
    options.self_timed |= options.dataset_name == "timed_trace" and not (
        any(ramp) or options.request_rate
    )
    if options.max_concurrency is None:
        open_loop = options.self_timed or any(ramp) or options.request_rate is not None
        options.max_concurrency = [None] if open_loop else [1]
    if options.prompt_form is None:
        options.prompt_form = "text" if options.backend == "openai-chat" else "ids"
    elif options.prompt_form == "ids" and options.backend == "openai-chat":
        parser.error("a chat takes no --prompt-form ids")
    if options.ignore_eos is None:
        options.ignore_eos = options.dataset_name not in OWN_LENGTHS
    if options.base_url is None:
        options.base_url = f"http://{options.host}:{options.port}"


def target(options: argparse.Namespace, model: str) -> Target:
    return Target(
        base_url=options.base_url,
        model=model,
        backend=options.backend,
        endpoint=options.endpoint,
        headers=headers(options),
        trust=tls.trust(options),
        extra_body=options.extra_body,
        ignore_eos=options.ignore_eos,
        temperature=options.temperature,
        timeout_s=options.request_timeout_sec,
    )


def arrivals(options: argparse.Namespace, max_concurrency: int | None) -> Arrivals:
    ramp_up = options.ramp_up_strategy and RampUp(
        strategy=options.ramp_up_strategy,
        start_rps=options.ramp_up_start_rps,
        end_rps=options.ramp_up_end_rps,
    )
    return Arrivals(
        request_rate=math.inf if options.request_rate is None else options.request_rate,
        burstiness=options.burstiness,
        ramp_up=ramp_up,
        timed=options.self_timed,
        max_concurrency=max_concurrency,
        seed=options.seed,
    )


def goodput(options: argparse.Namespace) -> Goodput | None:
    limits = {f"{name}_ms": limit_ms for name, limit_ms in options.goodput}
    return Goodput(**limits) if limits else None


def _add_target(group: "argparse._ArgumentGroup") -> None:
    backends: list[Backend] = list(ENDPOINTS)
    group.add_argument("--base-url", type=url, help="[http://HOST:PORT]")
    group.add_argument("--host", default="127.0.0.1", help="[127.0.0.1]")
    group.add_argument("--port", type=positive, default=8000, help="[8000]")
    group.add_argument("--backend", choices=backends, default="openai", help="[openai]")
    group.add_argument("--endpoint", default="", help="[the backend's]")
    group.add_argument("--model", help="as the server names it [the first it lists]")
    group.add_argument(
        "--tokenizer", help="a tokenizer.json, its directory or hub id [the server's /tokenize]"
    )
    api_key.add_flag(group)
    tls.add_flags(group)
    group.add_argument(
        "--header", type=_pair, nargs="+", action="extend", default=[], metavar="NAME=VALUE"
    )
    group.add_argument(
        "--extra-body", type=json_object, default={}, help="JSON, into every request"
    )
    group.add_argument("--temperature", type=float, default=0.0, help="[0]")
    group.add_argument(
        "--ignore-eos",
        action=argparse.BooleanOptionalAction,
        help="do not stop where the model does [but for sharegpt and custom]",
    )
    group.add_argument(
        "--ready-check-timeout-sec",
        type=at_least(0),
        default=0.0,
        help="wait so long until it answers a request [0: do not ask]",
    )
    group.add_argument("--request-timeout-sec", type=above(0), default=6 * 3600.0, help="[21600]")


def _add_load(group: "argparse._ArgumentGroup") -> None:
    group.add_argument("--request-rate", type=_rate, help="requests/s, open loop [inf]")
    group.add_argument(
        "--burstiness", type=above(0), default=1.0, help="of gamma gaps; 1 is Poisson [1]"
    )
    group.add_argument(
        "--max-concurrency",
        type=_numbers,
        help="requests at once; several in turn, such as 1,8,32 [with a rate no limit; else 1, "
        "where vLLM has none]",
    )
    group.add_argument("--ramp-up-strategy", choices=("linear", "exponential"))
    group.add_argument("--ramp-up-start-rps", type=above(0))
    group.add_argument("--ramp-up-end-rps", type=above(0))
    group.add_argument(
        "--self-timed", action="store_true", help="times of the workload [of timed_trace]"
    )
    group.add_argument("--num-warmups", type=whole, default=2, help="first, one by one [2]")
    group.add_argument(
        "--cancel-rate", type=between(0, 1), default=0.0, help="part of clients that hang up [0]"
    )
    group.add_argument(
        "--cancel-delay", type=at_least(0), default=1.0, help="seconds after sending [1]"
    )
    group.add_argument(
        "--client-processes", type=positive, help="that send and measure [as the rate needs]"
    )
    group.add_argument("--seed", type=whole, default=0, help="of prompts, lengths and times [0]")


def _add_report(group: "argparse._ArgumentGroup") -> None:
    group.add_argument(
        "--goodput",
        type=slo_limit,
        nargs="+",
        default=[],
        metavar="NAME:MS",
        help="ttft, tpot, e2el",
    )
    group.add_argument(
        "--percentile-metrics",
        type=list_of(_metric),
        default=list(SHOWN_METRICS),
        help=f"shown in the block [{','.join(SHOWN_METRICS)}]; known: {','.join(METRICS)}",
    )
    group.add_argument(
        "--metric-percentiles", type=list_of(_percentile), default=[99.0], help="of them [99]"
    )
    group.add_argument("--save-result", action="store_true", help="as JSON, a file a result")
    group.add_argument("--save-detailed", action="store_true", help="and every request in it")
    group.add_argument("--append-result", action="store_true", help="to the file, on a new line")
    group.add_argument("--result-dir", default=".", help="[.]")
    group.add_argument("--result-filename", help="[LABEL-RATEqps-MODEL-DATE.json]")
    group.add_argument("--label", help="[the backend]")
    group.add_argument("--disable-tqdm", action="store_true", help="no bar on a terminal")
    group.add_argument(
        "--metadata", type=_pair, nargs="+", default=[], metavar="NAME=VALUE", help="into the JSON"
    )


def percentiles(options: argparse.Namespace) -> list[float]:
    """What is computed: what is asked for and what is always shown."""
    return sorted({*PERCENTILES, *options.metric_percentiles})


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError(f"{text}: must be NAME=VALUE")
    return name, value


def slo_limit(text: str) -> tuple[str, float]:
    """One of an SLO's: what it is of, and milliseconds."""
    name, _, limit_ms = text.partition(":")
    if name not in ("ttft", "tpot", "e2el"):
        raise argparse.ArgumentTypeError(f"{text}: must be ttft:MS, tpot:MS or e2el:MS")
    return name, at_least(0)(limit_ms)


def _metric(text: str) -> str:
    if text not in METRICS:
        raise argparse.ArgumentTypeError(f"{text}: must be one of {', '.join(METRICS)}")
    return text


def _percentile(text: str) -> float:
    return between(0, 100)(text)


def _numbers(text: str) -> list[int]:
    return list_of(positive)(text)


def _rate(text: str) -> float | None:
    """inf is no rate: all at once."""
    value = above(0)(text)
    return None if math.isinf(value) else value
