"""`baton bench sweep`: the highest rate at which servers meet an SLO, side by side.

Searches with open loops (`bench.load`) for every goal of `bench.comparison`, round by round,
the servers in turn; keeps every point (`bench.store`), so that it may be killed and started again;
writes `report.md`, `report.json` and plots. Must import nothing of the engine.
"""

import argparse
import asyncio
import json
import math
import sys
import time
import zlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from copy import copy
from typing import Any

import aiohttp
import numpy as np

from bench import (
    api_key,
    comparison,
    load,
    reasons,
    serve_flags,
    sweep_flags,
    sweep_progress,
    sweep_report,
    tls,
    workloads,
)
from bench.arrivals import Arrivals
from bench.client import Outcome, Request, Target
from bench.comparison import Design
from bench.exits import FAILED_EXIT, INTERRUPTED_EXIT, USAGE_EXIT
from bench.measures import Goodput
from bench.progress import Progress
from bench.prompts import Tokenizer
from bench.sender import connector
from bench.stdout import show
from bench.store import ConfigurationChanged, Point, Setting, Store
from bench.sweep_report import Sweep
from bench.tokens import FileTokenizer, ServerTokenizer, count_again

REFUSALS = frozenset({"http_429", "http_503"})
"""What a healthy server answers to more than it can take."""

Measure = Callable[[Setting], Awaitable[Point]]


def main(argv: Sequence[str], environ: Mapping[str, str] = api_key.NO_VARIABLES) -> int:
    """Returns 1 if a server failed requests otherwise than by refusing them, or a file could not be
    written in the end; 2 where a flag names what cannot be read or written."""
    options = sweep_flags.parse(argv, environ)
    try:
        _check(options)
        store = Store(options.result_dir, sweep_flags.configuration(options))
    except (ConfigurationChanged, ValueError) as error:
        hint = "; choose another --result-dir" if isinstance(error, ConfigurationChanged) else ""
        print(f"error: {error}{hint}", file=sys.stderr)
        return USAGE_EXIT
    code = _measure_all(options, store)
    if store.points:
        sweep = _sweep(options, store)
        show(sweep_report.markdown(sweep))
        show(json.dumps(sweep_report.as_json(sweep) | {"points": len(sweep.points)}))
        written = _write(sweep, options)  # of what was interrupted, too
        code = code or written
    return code or int(any(map(_is_failed, store.points)))


def _check(options: argparse.Namespace) -> None:
    """Before hours are spent. Raises ValueError."""
    workloads.must_be_readable(options)
    tls.must_be_usable(options)
    reasons.must_be_a_writable_folder("--result-dir", options.result_dir)
    if options.request_log is not None:
        reasons.must_be_readable("--request-log", options.request_log[1])


def _write(sweep: Sweep, options: argparse.Namespace) -> int:
    """Exit status."""
    if not sweep_report.can_plot():
        print("no plots: pip install 'baton-serving[bench]'", file=sys.stderr)
    try:
        sweep_report.write(sweep, options.result_dir)
    except (OSError, ValueError) as error:
        told = f"--result-dir {options.result_dir}: not all was written: {reasons.of(error)}"
        print(f"error: {told}", file=sys.stderr)
        return FAILED_EXIT
    return 0


def _measure_all(options: argparse.Namespace, store: Store) -> int:
    meter = Meter(options)
    design, slo = sweep_flags.design(options), serve_flags.goodput(options)
    try:
        asyncio.run(run(design, store, meter.measure, slo, say=_say))
    except KeyboardInterrupt:
        print("interrupted; what was measured stays measured", file=sys.stderr)
        return INTERRUPTED_EXIT
    except (aiohttp.ClientError, OSError, ValueError) as error:
        print(f"error: {reasons.of(error)}", file=sys.stderr)
        return FAILED_EXIT
    return 0


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


async def run(
    design: Design,
    store: Store,
    measure: Measure,
    slo: Goodput | None,
    *,
    say: Callable[[str], object] = lambda _: None,
) -> Goodput:
    """Measure what is not in the store yet. Returns the SLO, which is `slo` where it is given.
    `say`: told of every point, and of what is left."""
    if slo is None:
        while (alone := comparison.solo_setting(design, store.points)) is not None:
            point = await measure(alone)
            comparison.slo_of_solo([point])  # one that answers nothing is not kept
            store.add(point)
            say(sweep_progress.of_point(design, store.points, None, point))
        slo = comparison.slo_of_solo(store.points)
    say(f"SLO at scale 1: {sweep_progress.limits(slo)}")

    async def add(setting: Setting) -> None:
        store.add(point := await measure(setting))
        say(sweep_progress.of_point(design, store.points, slo, point))

    for number in range(design.rounds):
        while (setting := comparison.next_setting(design, store.points, slo, number)) is not None:
            await add(setting)
    rate = comparison.common_rate(comparison.results(design, store.points, slo))
    if rate is not None:
        missing = comparison.common_settings(design, store.points, rate)
        if missing:
            say(f"all searches are over; {len(missing)} more at {rate:g} requests/s, side by side")
        for setting in missing:
            await add(setting)
    return slo


class Meter:
    """Puts the load of a setting on its server, and says what came of it."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._served: dict[str, dict[str, Any]] = {}  # by server: /v1/models; it was warmed up

    async def measure(self, setting: Setting) -> Point:
        """Raises ValueError where the server cannot be reached or is none."""
        if setting.server not in self._served:
            self._served[setting.server] = await self._model(setting.server)
            await self._warm_up(setting)
        arrivals = Arrivals(
            request_rate=math.inf if setting.rate is None else setting.rate,
            burstiness=self._options.burstiness,
            max_concurrency=1 if setting.rate is None else None,
            seed=self._seed(setting, "arrivals"),
        )
        requests = self._requests(setting, "requests", setting.n_requests)
        began = time.time()
        outcomes = await self._load(setting, requests, arrivals, setting.key)
        if all(outcome.error == "connect" for outcome in outcomes):
            raise ValueError(
                f"{self._place(setting.server)}: no server answers there ({outcomes[0].message})"
            )
        for outcome in outcomes:
            outcome.text = ""  # nobody asks for it again
        return Point(setting=setting, began=began, outcomes=tuple(outcomes))

    async def _warm_up(self, setting: Setting) -> None:
        if self._options.num_warmups:
            requests = self._requests(setting, "warm-up", self._options.num_warmups)
            what = f"{setting.server}, warming up"
            await self._load(setting, requests, Arrivals(max_concurrency=1), what)

    async def _load(
        self, setting: Setting, requests: Sequence[Request], arrivals: Arrivals, what: str
    ) -> list[Outcome]:
        processes = self._options.client_processes or load.processes_for(requests, arrivals)
        with Progress(len(requests), what) as progress:
            outcomes = await load.run(
                self._target(setting.server),
                requests,
                arrivals,
                processes=processes,
                on_outcome=progress.advance,
            )
        if self._options.tokenizer is not None:
            count_again(outcomes, FileTokenizer(self._options.tokenizer))
        return outcomes

    def _requests(self, setting: Setting, what: str, n_requests: int) -> list[Request]:
        """The same for every server, and others at every point: none is in a prefix cache."""
        options = copy(self._options)
        options.num_prompts = n_requests
        options.max_model_len = options.max_model_len or self._served[setting.server].get(
            "max_model_len"
        )
        rng = np.random.default_rng(self._seed(setting, what))
        requests = workloads.load(
            options.dataset_name, options, rng, self._tokenizer(setting.server)
        )
        return workloads.with_cancels(requests, options.cancel_rate, options.cancel_delay, rng)

    def _seed(self, setting: Setting, what: str) -> int:
        place = f"{self._options.seed} {setting.key.removeprefix(setting.server)} {what}"
        return zlib.crc32(place.encode())

    def _target(self, server: str) -> Target:
        options = copy(self._options)
        options.base_url = options.server[server]
        return serve_flags.target(options, options.model or str(self._served[server]["id"]))

    def _tokenizer(self, server: str) -> Tokenizer | None:
        options = self._options
        if options.tokenizer is not None:
            return FileTokenizer(options.tokenizer)
        if options.prompt_form == "text" or options.dataset_name == "sharegpt":
            target = self._target(server)
            return ServerTokenizer(target)
        return None

    async def _model(self, server: str) -> dict[str, Any]:
        """What it lists first. Raises ValueError where it is not OpenAI-compatible."""
        url = f"{self._options.server[server]}/v1/models"
        headers = serve_flags.headers(self._options)
        try:
            async with (
                aiohttp.ClientSession(
                    headers=headers, connector=connector(tls.trust(self._options))
                ) as session,
                session.get(url) as told,
            ):
                status, text = told.status, await told.text()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise ValueError(reasons.no_server(self._place(server), "--server", error)) from None
        try:
            return dict(json.loads(text)["data"][0])
        except (ValueError, KeyError, IndexError, TypeError):
            if self._options.model:
                return {}
            raise ValueError(
                f"{self._place(server)}/v1/models answered {status}: {text[:200]}"
            ) from None

    def _place(self, server: str) -> str:
        """For whoever must look after it."""
        return f"{server}={self._options.server[server]}"


def _sweep(options: argparse.Namespace, store: Store) -> Sweep:
    slo = serve_flags.goodput(options)
    design = sweep_flags.design(options)
    if slo is None and comparison.solo_setting(design, store.points) is None:
        slo = comparison.slo_of_solo(store.points)
    return Sweep(
        design=design,
        points=store.points,
        slo=slo,
        n_devices=options.num_devices,
        request_log=options.request_log,
    )


def _is_failed(point: Point) -> bool:
    return any(outcome.error and outcome.error not in REFUSALS for outcome in point.outcomes)
