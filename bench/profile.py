"""`baton profile`: what operations cost at a server that is running, seen by a client.

Asks prompts alone and together, streams together, prompts beside streams (`bench.profile_probes`),
fits the costs to the times (`bench.profile_fit`), and writes them as `baton plan` reads them. Must
import nothing of the engine but the form of that file.
"""

import argparse
import asyncio
import json
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import aiohttp
import msgspec

from bench import api_key, reasons, tls
from bench.client import Target
from bench.exits import FAILED_EXIT, USAGE_EXIT
from bench.flag_types import Parser, json_object, positive, url
from bench.profile_fit import Fit, Probes, Worker, fit, pooled
from bench.profile_probes import Prober
from bench.profile_report import poor_fits, table
from bench.sender import connector, open_session
from bench.simulate import costs_file
from bench.simulate.costs_file import CostsFile, DecodeFields, PrefillFields, TransferFields
from bench.stdout import show

CONTEXT_TOKENS = 4096  # where the server does not say
_PREFILL, _DECODE = "prefill", "decode"
HOP_S = 0.0002  # a message from one process to another, which the simulator adds itself
_CONFIG = re.compile(r"^baton:cache_config_info\{(.*)\} 1(?:\.0)?$", re.MULTILINE)
_IN_FLIGHT = re.compile(
    r"^\w+:num_requests_(?:running|waiting)(?:\{.*\})? ([0-9.e+]+)$", re.MULTILINE
)
_LOOKS, _LOOK_EVERY_S = 7, 0.5  # longer than what a worker has told of its ended requests stands
_DAY_MS = 86_400_000
_OWED_NOTHING = {"slo": {"ttft_ms": _DAY_MS, "tpot_ms": _DAY_MS}}
"""Or a server with targets of its own refuses the probes that are long on purpose."""
_BUSY = (
    "the server is busy: {n} requests of others run or wait there, and what they cost is in every "
    "figure; profile it when it is idle"
)
_LABEL = re.compile(r'(\w+)="([^"]*)"')


@dataclass(frozen=True, slots=True)
class Served:
    """What a server says of itself."""

    model: str
    max_model_len: int
    workers: tuple[dict[str, str], ...]  # labels of `baton:cache_config_info`, one a worker
    others_requests: int = 0  # that it had beside ours, at most

    @property
    def is_baton(self) -> bool:
        return bool(self.workers)

    def of(self, role: str) -> dict[str, str]:
        """Of the first worker of that role; empty: there is none, or the server tells nothing."""
        return next((w for w in self.workers if w["role"] == role), {})

    @property
    def apart(self) -> bool:
        """Prompts have workers of their own."""
        return bool(self.of(_PREFILL))


def main(argv: Sequence[str], environ: Mapping[str, str] = api_key.NO_VARIABLES) -> int:
    """Returns 1 where the server fails, what it says is not enough, or nothing can be written; 2
    where a flag makes no sense."""
    options = parse(argv)
    api_key.complete(options, environ)
    began = time.perf_counter()
    try:
        tls.must_be_usable(options)
        if options.output is not None:
            reasons.must_be_writable("--output", options.output)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return USAGE_EXIT
    try:
        served, probes = asyncio.run(profiled(options, _tell))
        file = costs(options, served, probes, time.perf_counter() - began)
    except (aiohttp.ClientError, OSError) as error:
        told = reasons.no_server(options.base_url, "--base-url", error)
        print(f"error: {told}", file=sys.stderr)
        return FAILED_EXIT
    except (RuntimeError, ValueError) as error:
        print(f"error: {options.base_url}: {error}", file=sys.stderr)
        return FAILED_EXIT
    show(table(file))
    show(json.dumps({"benchmark": "profile", **msgspec.to_builtins(file)}))
    for told in poor_fits(file):
        _tell(told)
    if file.measured["others_requests"]:
        _tell(_BUSY.format(n=file.measured["others_requests"]))
    return 0 if options.output is None or _is_written(options.output, file) else FAILED_EXIT


def _is_written(path: Path, file: CostsFile) -> bool:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        costs_file.write(path, file)
    except (OSError, ValueError) as error:
        why = reasons.of(error)
        print(f"error: --output {path}: not written: {why}; the line above has it", file=sys.stderr)
        return False
    return True


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The flags of `baton profile`."""
    return _parser().parse_all(argv)


async def profiled(
    options: argparse.Namespace, tell: Callable[[str], object]
) -> tuple[Served, Probes]:
    """Raises RuntimeError where a request fails; ValueError where this is no such server, or where
    neither it nor a flag tells what a fit needs. `tell`: called with what was measured."""
    served = await _served(options)
    _worker(options, served)
    _n_pages(options, served)
    owed = _OWED_NOTHING if served.is_baton else {}  # other servers refuse fields unknown to them
    target = Target(
        base_url=options.base_url,
        model=served.model,
        headers=api_key.authorization(options),
        trust=tls.trust(options),
        extra_body=owed | options.extra_body,
    )
    rounds: list[Probes] = []
    most_others = 0
    async with open_session(target) as session:
        for number in range(options.rounds):
            n_others = await others(session, options.base_url)
            if n_others > most_others:
                tell(_BUSY.format(n=n_others))
            most_others = max(most_others, n_others)
            prober = Prober(
                session,
                target,
                seed=options.seed + number,
                vocab_size=options.vocab_size,
                max_model_len=served.max_model_len,
            )
            rounds.append(await prober.all(lambda what, n=number: tell(f"round {n + 1}: {what}")))
    return replace(served, others_requests=most_others), pooled(rounds)


async def others(session: aiohttp.ClientSession, base_url: str) -> int:
    """Requests that run or wait at a server that nobody here asks for anything; 0 where it does not
    tell. What a worker told last may be a second old: whatever goes away by itself is none."""
    n = 0
    for _ in range(_LOOKS):
        n = in_flight(await _metrics(session, base_url))
        if n == 0:
            break
        await asyncio.sleep(_LOOK_EVERY_S)
    return n


def in_flight(metrics: str) -> int:
    """As `/metrics` has it, in Baton's form or vLLM's."""
    return round(sum(float(value) for value in _IN_FLIGHT.findall(metrics)))


async def _metrics(session: aiohttp.ClientSession, base_url: str) -> str:
    """Empty where the server has none."""
    async with session.get(f"{base_url}/metrics") as response:
        return await response.text() if response.status == 200 else ""


def costs(options: argparse.Namespace, served: Served, probes: Probes, took_s: float) -> CostsFile:
    """Raises ValueError where neither the server nor a flag tells what is needed."""
    worker = _worker(options, served)
    found = fit(probes, worker)
    return CostsFile(
        model=served.model,
        device=options.device,
        dtype=options.dtype or served.of(_DECODE).get("cache_dtype", "unknown"),
        threads=options.threads,
        page_tokens=worker.page_tokens,
        page_bytes=worker.page_bytes,
        n_pages=_n_pages(options, served),
        prefill=PrefillFields(
            fixed_s=found.prefill_fixed_s,
            per_token_s=found.prefill_token_s,
            per_pair_s=found.prefill_pair_s,
        ),
        decode=DecodeFields(
            fixed_s=found.decode_fixed_s,
            per_context_token_s=found.decode_context_token_s,
            per_sequence_s=found.decode_sequence_s,
        ),
        transfer=TransferFields(
            latency_s=max(0.0, found.transfer_latency_s - HOP_S),  # a handoff is a message
            bytes_per_s=found.transfer_bytes_per_s,
        ),
        request_s=max(0.0, found.delay_s - found.token_s - 2 * HOP_S),
        token_s=found.token_s,
        measured=_measured(options, served, found, worker) | {"seconds": took_s},
    )


def _measured(
    options: argparse.Namespace, served: Served, found: Fit, worker: Worker
) -> dict[str, str | float]:
    return {
        "pools": costs_file.APART if worker.apart else "colocated",
        "prefill_chunk_tokens": options.chunk_tokens,
        "decode_chunk_tokens": options.decode_chunk_tokens,
        "budget_tokens": worker.budget_tokens,
        "max_num_seqs": int(served.of(_DECODE).get("max_num_seqs", 64)),
        "prefill_slowdown": found.prefill_slowdown,
        "decode_slowdown": found.decode_slowdown,
        "prefill_error_median": found.prefill_error.median,
        "prefill_error_p90": found.prefill_error.p90,
        "prefill_probes": found.prefill_error.n,
        "decode_error_median": found.decode_error.median,
        "decode_error_p90": found.decode_error.p90,
        "decode_probes": found.decode_error.n,
        "others_requests": served.others_requests,
    }


def _worker(options: argparse.Namespace, served: Served) -> Worker:
    """Whoever computes prompts. A prompt that is alone has a pass's whole budget there, where the
    same worker decodes."""
    role = _PREFILL if served.apart else _DECODE
    told = served.of(role)
    budget_tokens = options.budget_tokens or int(told.get("max_num_batched_tokens", 512))
    page_bytes = options.page_bytes or int(told.get("block_bytes", 0))
    if not page_bytes:
        raise ValueError("the server does not tell the bytes of a page: give --page-bytes")
    return Worker(
        chunk_tokens=min(options.chunk_tokens, budget_tokens) if served.apart else budget_tokens,
        budget_tokens=budget_tokens,
        page_tokens=options.page_tokens or int(told.get("block_size", 16)),
        page_bytes=page_bytes,
        apart=served.apart,
    )


def _n_pages(options: argparse.Namespace, served: Served) -> int:
    n_pages = options.n_pages or int(served.of(_DECODE).get("num_gpu_blocks", 0))
    if not n_pages:
        raise ValueError("the server does not tell its pages: give --n-pages")
    return n_pages


async def _served(options: argparse.Namespace) -> Served:
    """Raises ValueError where it is not OpenAI-compatible."""
    headers, to = api_key.authorization(options), connector(tls.trust(options))
    async with aiohttp.ClientSession(headers=headers, connector=to) as session:
        async with session.get(f"{options.base_url}/v1/models") as response:
            status, text = response.status, await response.text()
        metrics = await _metrics(session, options.base_url)
    try:
        model = json.loads(text)["data"][0]
        name, max_model_len = str(model["id"]), model.get("max_model_len")
    except (ValueError, KeyError, IndexError, TypeError):
        raise ValueError(f"/v1/models answered {status}: {text[:200]}") from None
    workers = tuple(dict(_LABEL.findall(labels)) for labels in _CONFIG.findall(metrics))
    return Served(name, int(max_model_len or CONTEXT_TOKENS), workers)


def _tell(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


def _parser() -> Parser:
    parser = Parser(
        prog="baton profile",
        description="Measure what prompts, steps and transfers cost at a server that is running "
        "and otherwise idle, in under two minutes, and fit the costs that `baton plan` and the "
        "simulator take.",
        epilog="A baton server tells its pages and passes itself; the flags of the second half are "
        "for other servers, and where a worker's flags are not the default ones.",
    )
    parser.add_argument(
        "--base-url", type=url, default="http://127.0.0.1:8000", help="[http://127.0.0.1:8000]"
    )
    api_key.add_flag(parser)
    tls.add_flags(parser)
    parser.add_argument("--output", type=Path, help="file of the costs, JSON [printed only]")
    parser.add_argument("--rounds", type=positive, default=1, help="of all that is asked [1]")
    parser.add_argument("--seed", type=int, default=0, help="of the prompts [0]")
    parser.add_argument(
        "--vocab-size", type=positive, default=30_000, help="random ids are below it [30000]"
    )
    parser.add_argument(
        "--extra-body", type=json_object, default={}, help="JSON: more fields of every request"
    )
    group = parser.add_argument_group("what the costs are of")
    group.add_argument("--device", default="cpu", help="its name [cpu]")
    group.add_argument("--threads", type=int, default=0, help="of a worker [0: not said]")
    group.add_argument("--dtype", help="of weights and KV [as the server tells]")
    group.add_argument(
        "--chunk-tokens",
        type=positive,
        default=512,
        help="of one prompt in a pass of a prefill worker [512]",
    )
    group.add_argument(
        "--decode-chunk-tokens",
        type=positive,
        default=128,
        help="of prompts in a pass of a decode worker, beside its answers [128]",
    )
    group.add_argument("--budget-tokens", type=positive, help="of a pass [as the server tells]")
    group.add_argument("--page-tokens", type=positive, help="[as the server tells]")
    group.add_argument("--page-bytes", type=positive, help="[as the server tells]")
    group.add_argument("--n-pages", type=positive, help="of a worker [as the server tells]")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
