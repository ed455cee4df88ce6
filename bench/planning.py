"""`baton plan`: the best ratio of prefill to decode workers on so many devices, and its limits.

A thin shell: flags to a task, what `bench.simulate.planner` finds to a report. Measures nothing;
needs no model, no device and no server.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bench import plan_flags, plan_report, reasons, serve_flags, workloads
from bench.arrivals import Arrivals
from bench.client import Request as Sent
from bench.exits import FAILED_EXIT, USAGE_EXIT
from bench.prompts import Tokenizer
from bench.simulate import plan_costs, plan_task, planner
from bench.simulate.plan_task import Task
from bench.simulate.plans import Request
from bench.stdout import show
from bench.tokens import FileTokenizer
from common.kv.prefix import page_hashes


def main(argv: Sequence[str]) -> int:
    """Returns 2 where the operator must ask for something else, with one line on stderr; 1 where
    what was found could not be written."""
    options = plan_flags.parse(argv)
    try:
        _check(options)
        task = task_of(options)
    except OSError as error:
        return _refuse(reasons.of(error))
    except ValueError as error:
        return _refuse(str(error))
    why = plan_task.refusal(task)
    if why is not None:
        return _refuse(why)
    outcome = planner.search(task, _progress, n_verified=options.verify_requests)
    made = plan_report.as_json(task, outcome, options.dataset_name)
    show(plan_report.text(task, outcome))
    show(json.dumps(made))
    try:
        _keep(options, task, outcome, made)
    except OSError as error:
        print(f"baton plan: error: {reasons.of(error)}", file=sys.stderr)
        return FAILED_EXIT
    return 0


def _check(options: argparse.Namespace) -> None:
    """Before minutes are spent. Raises ValueError."""
    if options.plot is not None:
        reasons.must_be_drawable("--plot", options.plot)
    if options.save_result:
        reasons.must_be_a_writable_folder("--result-dir", options.result_dir)
        reasons.must_be_writable("--result-filename", _result_file(options))


def _keep(
    options: argparse.Namespace, task: Task, outcome: planner.Outcome, made: dict[str, Any]
) -> None:
    """The files that were asked for. Raises OSError."""
    if options.save_result:
        path = _result_file(options)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(made) + "\n")
        _progress(f"saved: {path}")
    if options.plot is not None:
        plan_report.plot(task, outcome, options.plot)


def _result_file(options: argparse.Namespace) -> Path:
    name = options.result_filename or f"plan-{options.dataset_name}-{options.devices}devices"
    path = options.result_dir / name
    return path if path.suffix else path.with_suffix(".json")


def task_of(options: argparse.Namespace) -> Task:
    """Raises OSError, or ValueError, where a file is not what it must be."""
    device = plan_costs.load(options.costs)
    rng = np.random.default_rng(options.seed)
    tokenizer = FileTokenizer(options.tokenizer) if options.tokenizer else None
    room = device.n_pages * device.page_tokens
    options.max_model_len = options.max_model_len or room
    first, *_ = workloads.load(options.dataset_name, _few(options), deepcopy(rng), tokenizer)
    too_long = plan_task.too_long_for(device, len(_ids(first, tokenizer)), first.max_tokens)
    if too_long is not None:  # before thousands of them fill the memory
        raise ValueError(too_long)
    sent = workloads.load(options.dataset_name, options, rng, tokenizer)
    slo = serve_flags.goodput(options)
    assert slo is not None  # the flags have seen to it
    return Task(
        requests=tuple(with_cached(requests(sent, options, tokenizer), device.page_tokens)),
        slo=slo,
        target=options.attainment / 100,
        device=device,
        n_devices=options.devices,
    )


def _few(options: argparse.Namespace) -> argparse.Namespace:
    """The same workload, as few requests of it as it can have."""
    fewest = options.prefix_repetition_num_prefixes
    return argparse.Namespace(**{**vars(options), "num_prompts": fewest, "max_requests": 1})


def requests(
    sent: Sequence[Sent], options: argparse.Namespace, tokenizer: Tokenizer | None
) -> list[Request]:
    """As token ids, at 1 request/s. A trace keeps the shape of its times."""
    timed = options.dataset_name == "timed_trace"
    arrivals = Arrivals(
        request_rate=1.0, burstiness=options.burstiness, timed=timed, seed=options.seed
    )
    times_s = arrivals.times_s(sent)
    scale = len(times_s) / times_s[-1] if timed and times_s[-1] > 0 else 1.0
    return [
        Request(
            at=at_s * scale,
            prompt=tuple(_ids(one, tokenizer)),
            output_tokens=one.max_tokens,
        )
        for one, at_s in zip(sent, times_s, strict=True)
    ]


def _ids(sent: Sent, tokenizer: Tokenizer | None) -> list[int]:
    if not isinstance(sent.prompt, str):
        return list(sent.prompt)
    if tokenizer is None:
        raise ValueError("a workload of text needs a --tokenizer")
    return tokenizer.encode(sent.prompt)


def with_cached(asked: Sequence[Request], page_tokens: int) -> list[Request]:
    """With what the fast model takes for cached: pages that a prompt before has brought."""
    known: set[bytes] = set()
    made: list[Request] = []
    for one in asked:
        hashes = page_hashes(one.prompt, page_tokens, fingerprint="", salt="")
        n_found = next((n for n, page in enumerate(hashes) if page not in known), len(hashes))
        known.update(hashes)
        made.append(replace(one, n_cached=n_found * page_tokens))
    return made


def _progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _refuse(why: str) -> int:
    print(f"baton plan: error: {why}", file=sys.stderr)
    return USAGE_EXIT
