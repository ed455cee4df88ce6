"""`baton bench sweep`: the highest rate at which servers meet an SLO, side by side.

Searches with open loops (`bench.load`) for every goal of `bench.comparison`, round by round,
the servers in turn; keeps every point (`bench.store`), so that it may be killed and started again;
writes `report.md`, `report.json` and plots. Must import nothing of the engine.
"""

import argparse
import asyncio
import json
import sys
import time
import zlib
from collections.abc import Awaitable, Callable, Sequence
from copy import copy
from pathlib import Path

import aiohttp
import numpy as np
from tqdm import tqdm

from bench import comparison, load, measures, sweep_flags, sweep_report, workloads
from bench.arrivals import Arrivals
from bench.client import Outcome, Request, Target
from bench.comparison import Design
from bench.measures import Goodput
from bench.store import ConfigurationChanged, Point, Setting, Store
from bench.sweep_report import Sweep

REFUSALS = frozenset({"http_429", "http_503"})
"""What a healthy server answers to more than it can take."""
USAGE_EXIT = 2
INTERRUPTED_EXIT = 130

Measure = Callable[[Setting], Awaitable[Point]]


def main(argv: Sequence[str]) -> int:
    """Returns 1 if a server failed requests otherwise than by refusing them."""
    options = sweep_flags.parse(argv)
    try:
        store = Store(options.result_dir, sweep_flags.configuration(options))
    except ConfigurationChanged as error:
        print(f"error: {error}; choose another --result-dir", file=sys.stderr)
        return USAGE_EXIT
    code = _measure_all(options, store)
    if store.points:
        sweep = _sweep(options, store)
        print(sweep_report.write(sweep, options.result_dir))
        found = (
            [] if sweep.slo is None else comparison.results(sweep.design, sweep.points, sweep.slo)
        )
        print(json.dumps(sweep_report.as_json(sweep, found) | {"points": len(sweep.points)}))
    return code or int(any(map(_is_failed, store.points)))


def _measure_all(options: argparse.Namespace, store: Store) -> int:
    meter = Meter(options)
    design, slo = sweep_flags.design(options), sweep_flags.slo(options)
    try:
        asyncio.run(run(design, store, meter.measure, slo))
    except KeyboardInterrupt:
        print("interrupted; what was measured stays measured", file=sys.stderr)
        return INTERRUPTED_EXIT
    except (aiohttp.ClientError, OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


async def run(design: Design, store: Store, measure: Measure, slo: Goodput | None) -> Goodput:
    """Measure what is not in the store yet. Returns the SLO, which is `slo` where it is given."""
    if slo is None:
        while (alone := comparison.solo_setting(design, store.points)) is not None:
            point = await measure(alone)
            comparison.slo_of_solo([point])  # one that answers nothing is not kept
            store.add(point)
        slo = comparison.slo_of_solo(store.points)
    for number in range(design.rounds):
        while (setting := comparison.next_setting(design, store.points, slo, number)) is not None:
            store.add(await measure(setting))
    rate = comparison.common_rate(comparison.results(design, store.points, slo))
    if rate is not None:
        for setting in comparison.common_settings(design, store.points, rate):
            store.add(await measure(setting))
    return slo


class Meter:
    """Puts the load of a setting on its server, and says what came of it."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._models: dict[str, str] = {}  # by server; those that were warmed up

    async def measure(self, setting: Setting) -> Point:
        """Raises ValueError where the server cannot be reached or is none."""
        if setting.server not in self._models:
            self._models[setting.server] = await self._model(setting.server)
            await self._warm_up(setting)
        began = time.time()
        alone = setting.rate is None
        arrivals = Arrivals(
            request_rate=float("inf") if setting.rate is None else setting.rate,
            burstiness=self._options.burstiness,
            max_concurrency=1 if alone else None,
            seed=self._seed(setting, "arrivals"),
        )
        outcomes = await self._load(setting, setting.n_requests, arrivals, setting.key)
        if all(outcome.error == "connect" for outcome in outcomes):
            raise ValueError(f"{self._url(setting)}: {outcomes[0].message}")
        for outcome in outcomes:
            outcome.text = ""  # nobody asks for it again
        point = Point(setting=setting, began=began, outcomes=tuple(outcomes))
        print(_told(point), file=sys.stderr, flush=True)
        return point

    async def _warm_up(self, setting: Setting) -> None:
        arrivals = Arrivals(max_concurrency=1)
        what = f"{setting.server} warms up"
        await self._load(setting, self._options.num_warmups, arrivals, what)

    async def _load(
        self, setting: Setting, n_requests: int, arrivals: Arrivals, what: str
    ) -> list[Outcome]:
        target = Target(
            base_url=self._url(setting),
            model=self._models[setting.server],
            backend=self._options.backend,
        )
        requests = self._requests(setting, n_requests, what)
        shown = sys.stderr.isatty()
        with tqdm(
            total=len(requests), desc=what, unit="req", leave=False, disable=not shown
        ) as bar:

            def advance(_: Outcome) -> None:
                bar.update()

            return await load.run(
                target,
                requests,
                arrivals,
                processes=load.processes_for(requests, arrivals),
                on_outcome=advance,
            )

    def _requests(self, setting: Setting, n_requests: int, what: str) -> list[Request]:
        """The same for every server, and others at every point: none is in a prefix cache."""
        options = copy(self._options)
        options.num_prompts = n_requests
        seed = self._seed(setting, what.removeprefix(setting.server))
        return workloads.load(options.dataset_name, options, np.random.default_rng(seed), None)

    def _seed(self, setting: Setting, what: str) -> int:
        place = f"{self._options.seed} {setting.key.removeprefix(setting.server)} {what}"
        return zlib.crc32(place.encode())

    def _url(self, setting: Setting) -> str:
        return self._options.server[setting.server]

    async def _model(self, server: str) -> str:
        """As the server names it. Raises ValueError where it is not OpenAI-compatible."""
        if self._options.model is not None:
            return self._options.model
        url = f"{self._options.server[server]}/v1/models"
        async with aiohttp.ClientSession() as session, session.get(url) as response:
            text = await response.text()
        try:
            return str(json.loads(text)["data"][0]["id"])
        except (ValueError, KeyError, IndexError, TypeError):
            raise ValueError(f"{url} answered {response.status}: {text[:200]}") from None


def _sweep(options: argparse.Namespace, store: Store) -> Sweep:
    slo = sweep_flags.slo(options)
    design = sweep_flags.design(options)
    if slo is None and comparison.solo_setting(design, store.points) is None:
        slo = comparison.slo_of_solo(store.points)
    log = options.request_log
    return Sweep(
        design=design,
        points=store.points,
        slo=slo,
        n_devices=options.num_devices,
        request_log=None if log is None else (log[0], Path(log[1])),
    )


def _is_failed(point: Point) -> bool:
    return any(outcome.error and outcome.error not in REFUSALS for outcome in point.outcomes)


def _told(point: Point) -> str:
    numbers = measures.summarise(point.outcomes, None, measures.duration_s(point.outcomes))
    errors = "".join(f", {kind} {n} times" for kind, n in numbers["errors_by_kind"].items())
    return (
        f"{point.setting.key}: TTFT {numbers['median_ttft_ms']:.1f} ms, "
        f"p99 {numbers['p99_ttft_ms']:.1f}; TPOT {numbers['median_tpot_ms']:.2f} ms, "
        f"p99 {numbers['p99_tpot_ms']:.2f}{errors}"
    )
