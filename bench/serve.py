"""`baton bench serve`: load one OpenAI-compatible server and report latencies and throughput.

Drives any such server over HTTP alone. Must import nothing of the engine.
"""

import argparse
import asyncio
import json
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from copy import copy
from fnmatch import fnmatchcase
from http import HTTPStatus
from typing import Any

import aiohttp
import numpy as np
import uvloop

from bench import api_key, load, reasons, report, serve_flags, tls, workloads
from bench.arrivals import Arrivals
from bench.client import Outcome, Request, Target
from bench.exits import FAILED_EXIT, USAGE_EXIT, ended_by_signal
from bench.measures import duration_s, summarise
from bench.progress import Progress
from bench.prompts import Tokenizer
from bench.sender import connector
from bench.stdout import show
from bench.tokens import FileTokenizer, ServerTokenizer, count_again

_SHOWN_ERRORS = 5
_RETRY_S = 0.5
_TARGETS = ("--slo-ttft", "--slo-tpot")
_HOW_TO_BE_OWED_NOTHING = (
    "the server owes these requests a target, its own (--slo-ttft, --slo-tpot) or --extra-body's, "
    "and refuses at once what would miss it; to measure it without, ask for a day: --extra-body "
    """'{"slo": {"ttft_ms": 86400000, "tpot_ms": 86400000}}'"""
)


def main(argv: Sequence[str], environ: Mapping[str, str] = api_key.NO_VARIABLES) -> int:
    """Returns 1 if the server failed requests, or a result could not be saved; 2 if a flag names a
    file that cannot be read or written; 130 if Ctrl-C ended it,
    143 if SIGTERM did."""
    options = serve_flags.parse(argv, environ)
    try:
        _check(options)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return USAGE_EXIT
    try:
        results, ended_by = uvloop.run(_run(options))
    except (aiohttp.ClientError, TimeoutError) as error:
        told = reasons.no_server(options.base_url, "--base-url", error)
        print(f"error: {told}", file=sys.stderr)
        return FAILED_EXIT
    except OSError as error:
        print(f"error: {reasons.of(error)}", file=sys.stderr)
        return FAILED_EXIT
    except ValueError as error:  # a mistake here, or it names the server itself
        print(f"error: {error}", file=sys.stderr)
        return FAILED_EXIT
    show(json.dumps({"benchmark": "serve", "results": results}))
    if ended_by is not None:
        return ended_by_signal(ended_by)
    return FAILED_EXIT if any(result["failed"] or result["unsaved"] for result in results) else 0


class NotServed(ValueError):
    """The server answers, and will not do what the flags ask."""


class NotListed(NotServed):
    """The model is not among those that the server names. A proxy may know it all the same."""


def _check(options: argparse.Namespace) -> None:
    """Before a server is asked for anything. Raises ValueError."""
    workloads.must_be_readable(options)
    tls.must_be_usable(options)
    if options.save_result or options.append_result:
        report.must_be_savable(options)


async def _run(options: argparse.Namespace) -> tuple[list[dict[str, Any]], int | None]:
    """Results, and the signal that ended it before its time."""
    stop = asyncio.Event()
    came = _stop_at_signals(stop)
    served = await _served(options, stop)
    options.max_model_len = options.max_model_len or served.get("max_model_len")
    target = serve_flags.target(options, options.model or str(served["id"]))
    tokenizer = _tokenizer(options, target)
    await _warm_up(options, target, tokenizer, stop)
    results: list[dict[str, Any]] = []
    for max_concurrency in options.max_concurrency:
        if stop.is_set():
            break
        arrivals = serve_flags.arrivals(options, max_concurrency)
        requests = _requests(options, tokenizer, max_concurrency)
        outcomes = await _load(options, target, requests, arrivals, stop)
        if options.tokenizer is not None and tokenizer is not None:
            count_again(outcomes, tokenizer)
        result = _result(options, target, requests, outcomes, arrivals)
        result["interrupted"] = stop.is_set()
        _show(options, result, outcomes)
        append = options.append_result or bool(results)
        wanted = options.save_result or options.append_result
        result["unsaved"] = wanted and not _save(options, result, outcomes, append=append)
        results.append(result)
    return results, next(iter(came), None)


def _stop_at_signals(stop: asyncio.Event) -> list[int]:
    """Ctrl-C or SIGTERM ends the load in good order; a second one ends the process. Returns where
    the first will be noted."""
    loop = asyncio.get_running_loop()
    came: list[int] = []

    def interrupted(number: int) -> None:
        came.append(number)
        stop.set()
        for one in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(one)

    for one in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(one, interrupted, one)
    return came


async def _served(options: argparse.Namespace, stop: asyncio.Event) -> dict[str, Any]:
    """The first model of /v1/models; with a ready check, when it has answered a short prompt.

    Raises ValueError, or aiohttp's errors, where it does not within the time that the flag says.
    """
    deadline = time.monotonic() + options.ready_check_timeout_sec
    while True:
        try:
            try:
                served = await _first_model(options)
            except NotListed as error:
                return await _unlisted(options, error)
            if options.ready_check_timeout_sec == 0:
                return served
            await _try(serve_flags.target(options, options.model or str(served["id"])))
            return await _first_model(options)  # it may know its context only now
        except NotServed:  # waiting makes it no better
            raise
        except (aiohttp.ClientError, ValueError):
            if time.monotonic() > deadline or stop.is_set():
                raise
        await asyncio.sleep(_RETRY_S)


async def _unlisted(options: argparse.Namespace, error: NotListed) -> dict[str, Any]:
    """The model that is meant, if it answers. Raises the error, or ValueError: not now."""
    outcome = await _asked(serve_flags.target(options, options.model))
    if not outcome.ok:
        if outcome.error.startswith("http_4"):
            raise error
        raise ValueError(f"{options.base_url}: not ready: {outcome.error} {outcome.message}")
    print(f"warning: {error}; it answers, though, and is measured", file=sys.stderr)
    return {"id": options.model}


async def _first_model(options: argparse.Namespace) -> dict[str, Any]:
    """Raises ValueError, with what the server said, if it is no OpenAI-compatible server."""
    async with (
        aiohttp.ClientSession(
            headers=serve_flags.headers(options), connector=connector(tls.trust(options))
        ) as session,
        session.get(f"{options.base_url}/v1/models") as response,
    ):
        status, text = response.status, await response.text()
    return model_told(options, status, text)


def model_told(options: argparse.Namespace, status: int, text: str) -> dict[str, Any]:
    """The model that is meant, of what /v1/models answers. Raises ValueError, and NotServed."""
    if status == HTTPStatus.UNAUTHORIZED:
        raise NotServed(f"{options.base_url} asks for a key: {api_key.REMEDY}")
    try:
        models = {str(model["id"]): dict(model) for model in json.loads(text)["data"]}
        meant = options.model or next(iter(models))
    except (ValueError, KeyError, StopIteration, TypeError):
        if options.model and status < 500:
            return {"id": options.model}
        url = f"{options.base_url}/v1/models"
        raise ValueError(f"{url} answered {status}: {text[:200]}") from None
    if meant not in models:
        if any(fnmatchcase(meant, listed) for listed in models):  # as proxies name many at once
            return {"id": meant}
        raise NotListed(
            f"--model {meant} is not served at {options.base_url}: there is {', '.join(models)}"
        )
    return models[meant]


async def _try(target: Target) -> None:
    """Raises ValueError, with what the server said, if it does not answer well."""
    outcome = await _asked(target)
    if not outcome.ok:
        raise ValueError(f"{target.base_url}: not ready: {outcome.error} {outcome.message}")


async def _asked(target: Target) -> Outcome:
    (outcome,) = await load.run(target, [Request(prompt="Hello", max_tokens=1)], Arrivals())
    return outcome


def _tokenizer(options: argparse.Namespace, target: Target) -> Tokenizer | None:
    if options.tokenizer is not None:
        return FileTokenizer(options.tokenizer)
    if options.prompt_form == "text" or options.dataset_name == "sharegpt":
        return ServerTokenizer(target)
    return None


async def _warm_up(
    options: argparse.Namespace,
    target: Target,
    tokenizer: Tokenizer | None,
    stop: asyncio.Event,
) -> None:
    """Random prompts one by one, of a seed of their own: none of them is asked again."""
    if options.num_warmups == 0:
        return
    told = copy(options)
    told.num_prompts = options.num_warmups
    rng = np.random.default_rng([options.seed, 0])
    requests = workloads.load("random", told, rng, tokenizer)
    await load.run(target, requests, Arrivals(max_concurrency=1), stop=stop)


def _requests(
    options: argparse.Namespace, tokenizer: Tokenizer | None, max_concurrency: int | None
) -> list[Request]:
    """The same for the same seed and concurrency; other prompts at another concurrency, which
    must not find them cached."""
    told = copy(options)
    if told.num_prompts is None and max_concurrency is not None and not _is_open(options):
        told.num_prompts = max(8, 4 * max_concurrency)
    rng = np.random.default_rng([options.seed, 1, max_concurrency or 0])
    requests = workloads.load(options.dataset_name, told, rng, tokenizer)
    return workloads.with_cancels(requests, options.cancel_rate, options.cancel_delay, rng)


def _is_open(options: argparse.Namespace) -> bool:
    """Requests come at their times, not when others have ended."""
    return bool(options.request_rate or options.ramp_up_strategy or options.self_timed)


async def _load(
    options: argparse.Namespace,
    target: Target,
    requests: Sequence[Request],
    arrivals: Arrivals,
    stop: asyncio.Event,
) -> list[Outcome]:
    places = arrivals.max_concurrency
    what = "open loop" if places is None else f"{places} at once"
    with Progress(len(requests), what, bar=not options.disable_tqdm) as progress:
        return await load.run(
            target,
            requests,
            arrivals,
            processes=options.client_processes or load.processes_for(requests, arrivals),
            on_outcome=progress.advance,
            stop=stop,
        )


def _result(
    options: argparse.Namespace,
    target: Target,
    requests: Sequence[Request],
    outcomes: Sequence[Outcome],
    arrivals: Arrivals,
) -> dict[str, Any]:
    limits = serve_flags.goodput(options)
    numbers = summarise(
        outcomes, limits, duration_s(outcomes), percentiles=serve_flags.percentiles(options)
    )
    return {
        **report.heading(options, target.model, len(requests)),
        "max_concurrency": arrivals.max_concurrency,
        "closed_loop": not _is_open(options),
        "slo": dict(options.goodput),
        **numbers,
    }


def _show(options: argparse.Namespace, result: dict[str, Any], outcomes: Sequence[Outcome]) -> None:
    show(report.block(result, options.percentile_metrics, options.metric_percentiles))
    show(report.more(result))
    failures = [f"{outcome.error}: {outcome.message}" for outcome in outcomes if outcome.error]
    for failure, n in reasons.grouped(failures)[:_SHOWN_ERRORS]:
        print(f"failed: {failure}{f' ({n} like it)' if n > 1 else ''}", file=sys.stderr)
    if is_refused_for_a_target(outcomes):
        print(f"hint: {_HOW_TO_BE_OWED_NOTHING}", file=sys.stderr)


def is_refused_for_a_target(outcomes: Sequence[Outcome]) -> bool:
    """Some request was, as Baton says it."""
    refused = [outcome.message for outcome in outcomes if outcome.error == "http_429"]
    return any(flag in message for message in refused for flag in _TARGETS)


def _save(
    options: argparse.Namespace,
    result: dict[str, Any],
    outcomes: Sequence[Outcome],
    *,
    append: bool,
) -> bool:
    """False: it could not be, and stays on the last line alone."""
    kept = result | (report.details(outcomes) if options.save_detailed else {})
    try:
        print(f"saved: {report.save(options, kept, append=append)}", file=sys.stderr)
    except OSError as error:
        print(f"error: not saved: {reasons.of(error)}", file=sys.stderr)
        return False
    return True
