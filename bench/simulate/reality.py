"""The simulator against reality: measured attainment beside that of the same load simulated.

    python -m bench.simulate.reality --model MODEL --result-dir reality

Starts servers itself, round by round, one set-up after the other: each is profiled (`baton
profile`), then loaded at several rates. The costs of all rounds together, and the very lengths and
times of arrival, go into the simulator. Started again with the same --result-dir it goes on where
it was stopped. A picture is drawn; one JSON line last. `--sweep DIR --costs NAME=FILE` compares
what a `baton bench sweep` has measured with costs that were profiled before.
"""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import aiohttp
import msgspec

from bench import profile, profile_report, reasons, serve_flags, sweep_flags
from bench.exits import FAILED_EXIT, INTERRUPTED_EXIT, USAGE_EXIT
from bench.flag_types import Parser, above, list_of, positive
from bench.measures import Goodput
from bench.profile_fit import Probes, pooled
from bench.program import exit_status
from bench.search import Sample
from bench.server import running
from bench.simulate import costs_file, prediction
from bench.simulate.costs_file import CostsFile
from bench.simulate.prediction import PERCENTILES, Row
from bench.store import CONFIGURATION, ConfigurationChanged, Setting, Store
from bench.sweep import Meter

SETUPS = {
    "split": "--prefill 1 --decode 1 --prefill.cpus 0 --decode.cpus 1 --disaggregate always",
    "colocated": "--prefill 0 --decode 1 --threads 2",
}
TARGETS = (0.9, 0.8, 0.7, 0.6)  # predicted attainment at the rates that are measured
_PLOT = "reality.png"


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What one set-up is asked. Written down before the first load: costs that come later do not
    change it."""

    rates: tuple[float, ...]
    slo: Goodput


class Profiled(msgspec.Struct, frozen=True, kw_only=True):
    """One round's, and what the server said of itself."""

    model: str
    max_model_len: int
    workers: tuple[dict[str, str], ...]
    probes: Probes


def main(argv: Sequence[str]) -> int:
    """Returns 1 where a server fails or what is predicted is not what is measured; 2 where a flag
    names what cannot be read or written. Raises NotReady where a server does not start."""
    options, asked = parse(argv)
    picture = (options.sweep or options.result_dir) / _PLOT
    try:
        _check(options, picture)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return USAGE_EXIT
    try:
        if options.sweep is not None:
            found = list(_of_sweep(options, asked))
        else:
            found = _measured(Reality(options, asked))
    except ConfigurationChanged as error:
        print(f"error: {error}; choose another --result-dir", file=sys.stderr)
        return USAGE_EXIT
    except KeyboardInterrupt:
        print("interrupted; what was measured stays measured", file=sys.stderr)
        return INTERRUPTED_EXIT
    except (aiohttp.ClientError, OSError, RuntimeError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return FAILED_EXIT
    print(table(found))
    _plot(found, picture)
    holds = prediction.verdict(found)
    rows = [
        msgspec.to_builtins(row) | {"off": row.off, "spread": row.spread, "holds": row.holds}
        for row in found
    ]
    print(json.dumps({"benchmark": "reality", "holds": holds, "rows": rows}))
    return 0 if holds else 1


def _check(options: argparse.Namespace, picture: Path) -> None:
    """Before hours are spent. Raises ValueError."""
    if options.sweep is not None:
        reasons.must_be_readable("--sweep", options.sweep / CONFIGURATION)
    for _, file in options.costs:
        reasons.must_be_readable("--costs", file)
    reasons.must_be_drawable("--result-dir" if options.sweep is None else "--sweep", picture)


class Reality:
    """One result directory: what is to be measured, and what was."""

    def __init__(self, options: argparse.Namespace, asked: Sequence[str]) -> None:
        """`asked`: flags of the workload, as `baton bench sweep` takes them.

        Raises ConfigurationChanged where the directory holds another run.
        """
        self.options = options
        self._asked = asked
        configuration = sweep_flags.configuration(self.sweep_options("http://none"))
        del configuration["server"]
        configuration |= {"setups": options.setup, "model_file": options.model}
        configuration |= {"rounds": options.rounds, "requests": options.num_prompts}
        self.store = Store(options.result_dir, configuration)
        self.store.begin()  # profiles lie beside its points

    def sweep_options(self, server_url: str, setup: str = "server") -> argparse.Namespace:
        return sweep_flags.parse([*self._asked, "--server", f"{setup}={server_url}"])

    @property
    def slo(self) -> Goodput | None:
        """That is asked for; None: each set-up's own."""
        return serve_flags.goodput(self.sweep_options("http://none"))

    def settings(self, setup: str, number: int, rates: Sequence[float]) -> list[Setting]:
        """Of one round, every other one backwards."""
        turn = 1 if number % 2 == 0 else -1
        return [
            Setting(
                part="compare",
                server=setup,
                round=number,
                rate=rate,
                n_requests=-(-self.options.num_prompts // self.options.rounds),
            )
            for rate in rates[::turn]
        ]

    def round(self, setup: str, number: int) -> None:
        """Start the server, profile it, load it; nothing of that where all is there."""
        plan = self.plan(setup)
        if plan is not None and self._profile_file(setup, number).exists():
            missing = [s for s in self.settings(setup, number, plan.rates) if not self._has(s)]
            if not missing:
                return
        flags = ("--model", self.options.model, *self.options.setup[setup].split())
        with running(flags) as server:
            if not self._profile_file(setup, number).exists():
                self._profile(setup, number, server.url)
            plan = plan or self._make_plan(setup)
            meter = Meter(self.sweep_options(server.url, setup))
            for setting in self.settings(setup, number, plan.rates):
                if not self._has(setting):
                    self.store.add(asyncio.run(meter.measure(setting)))

    def plan(self, setup: str) -> Plan | None:
        """None: not made yet."""
        file = self._plan_file(setup)
        return msgspec.json.decode(file.read_bytes(), type=Plan) if file.exists() else None

    def costs(self, setup: str) -> CostsFile:
        """Of all rounds together."""
        paths = sorted(self.options.result_dir.glob(f"profile-{setup}-*.json"))
        rounds = [msgspec.json.decode(path.read_bytes(), type=Profiled) for path in paths]
        served = profile.Served(rounds[0].model, rounds[0].max_model_len, rounds[0].workers)
        options = profile.parse(_chunk_flags(self.options.setup[setup].split()))
        return profile.costs(options, served, pooled([one.probes for one in rounds]), 0.0)

    def _has(self, setting: Setting) -> bool:
        return self.store.find(setting) is not None

    def _profile(self, setup: str, number: int, server_url: str) -> None:
        options = profile.parse(["--base-url", server_url, "--seed", str(number)])
        served, probes = asyncio.run(
            profile.profiled(options, lambda what: _tell(f"{setup}, profile, {what}"))
        )
        made = Profiled(
            model=served.model,
            max_model_len=served.max_model_len,
            workers=served.workers,
            probes=probes,
        )
        self._profile_file(setup, number).write_bytes(msgspec.json.encode(made))

    def _make_plan(self, setup: str) -> Plan:
        options, file = self.sweep_options("http://none"), self.costs(setup)
        n_prompt = options.input_len or options.random_input_len
        n_output = options.output_len or options.random_output_len
        slo = self.slo
        if slo is None:
            ttft_ms, tpot_ms = prediction.alone(file, n_prompt, n_output)
            scales = self.options
            slo = Goodput(ttft_ms=ttft_ms * scales.ttft_scale, tpot_ms=tpot_ms * scales.tpot_scale)
        rates = self.options.rates or prediction.rates_for(TARGETS, file, slo, n_prompt, n_output)
        plan = Plan(rates=tuple(sorted(rates)), slo=slo)
        self._plan_file(setup).write_bytes(msgspec.json.encode(plan))
        seconds = sum(self.options.num_prompts / rate for rate in plan.rates)
        _tell(f"{setup}: {plan.rates} requests/s, {seconds:.0f} s of load in all; {slo}")
        return plan

    def _profile_file(self, setup: str, number: int) -> Path:
        return Path(self.options.result_dir) / f"profile-{setup}-{number}.json"

    def _plan_file(self, setup: str) -> Path:
        return Path(self.options.result_dir) / f"plan-{setup}.json"


def _chunk_flags(flags: Sequence[str]) -> list[str]:
    """What a set-up says of its chunks, as `baton profile` takes it."""
    given = dict(pairwise(flags))
    found: list[str] = []
    for role, name in (("prefill", "--chunk-tokens"), ("decode", "--decode-chunk-tokens")):
        value = given.get(f"--{role}.chunk-tokens", given.get("--chunk-tokens"))
        if value is not None:
            found += [name, value]
    return found


def _measured(reality: Reality) -> list[Row]:
    """All rounds, the set-ups in turn; then what the simulator says of the same."""
    setups = list(reality.options.setup)
    for number in range(reality.options.rounds):
        for setup in setups:
            reality.round(setup, number)
    files = {setup: reality.costs(setup) for setup in setups}
    for setup, file in files.items():
        costs_file.write(reality.options.result_dir / f"costs-{setup}.json", file)
        print(f"{setup}\n{profile_report.table(file)}\n")
    _tell("simulating")
    plans = {setup: reality.plan(setup) for setup in setups}
    slos = {setup: plan.slo for setup, plan in plans.items() if plan is not None}
    return list(prediction.rows(reality.store.points, files, slos))


def _of_sweep(options: argparse.Namespace, asked: Sequence[str]) -> list[Row]:
    """Raises ValueError where its prompts share what lengths do not tell."""
    path = options.sweep / CONFIGURATION
    configuration: dict[str, Any] = msgspec.json.decode(path.read_bytes())
    if configuration["dataset_name"] != "random" or configuration["random_prefix_len"]:
        raise ValueError(f"{path}: prompts that share prefixes cannot be told from their lengths")
    slo = serve_flags.goodput(sweep_flags.parse(asked))
    if slo is None:
        raise ValueError("--sweep needs --goodput, such as --goodput ttft:200 tpot:50")
    files = {name: costs_file.read(file) for name, file in options.costs}
    store = Store(options.sweep, configuration)
    return list(prediction.rows(store.points, files, dict.fromkeys(files, slo)))


def table(found: Sequence[Row]) -> str:
    """A line a rate: attainment in percent (by round), then latencies in ms, measured/predicted."""
    names = "/".join(f"p{percentile}" for percentile in PERCENTILES)
    lines = [
        f"{'':10} {'rate':>6} {'n':>5} {'measured (rounds)':>26} {'predicted':>9} {'off':>6} "
        f"{'spread':>6}  {'':5} TTFT {names} ms, TPOT {names} ms"
    ]
    for row in found:
        measured, predicted, off, spread = (
            100 * value
            for value in (
                median(row.measured),
                median(row.predicted),
                row.off,
                row.spread,
            )
        )
        rounds = " ".join(f"{100 * one:.1f}" for one in row.measured)
        lines.append(
            f"{row.setup:10} {row.rate:6g} {row.n_requests:5} {measured:7.1f} {f'({rounds})':>18} "
            f"{predicted:9.1f} {off:+6.1f} {spread:6.1f}  {'holds' if row.holds else 'FAILS':5} "
            f"{_latencies(row, 'ttft')}, {_latencies(row, 'tpot')}"
        )
    return "\n".join(lines)


def _latencies(row: Row, metric: prediction.Metric) -> str:
    pairs = zip(row.measured_ms[metric], row.predicted_ms[metric], strict=True)
    return " ".join(f"{measured:.4g}/{predicted:.4g}" for measured, predicted in pairs)


def _plot(found: Sequence[Row], path: Path) -> None:
    from bench import plots  # matplotlib is an extra

    curves: dict[str, list[Sample]] = {}
    dots: dict[str, list[Sample]] = {}
    for row in found:
        name = f"{row.setup}, predicted (dots: measured)"
        curves.setdefault(name, []).append(Sample(row.rate, median(row.predicted)))
        dots.setdefault(name, []).extend(Sample(row.rate, one) for one in row.measured)
    plots.attainment_by_rate(curves, dots, (), path)


def _tell(what: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {what}", file=sys.stderr, flush=True)


def parse(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Its own flags, and those of the workload with our defaults before them."""
    parser = Parser(
        prog="python -m bench.simulate.reality",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="And the flags of `baton bench sweep` that say what is asked, such as "
        "--random-input-len, --random-range-ratio, --goodput and --seed.",
    )
    parser.add_argument("--model", help="as `baton serve --model` takes it")
    parser.add_argument("--result-dir", type=Path, default=Path("reality"), help="[reality]")
    parser.add_argument("--rounds", type=positive, default=3, help="[3]")
    parser.add_argument(
        "--num-prompts", type=positive, default=1002, help="a rate, in all rounds [1002]"
    )
    parser.add_argument(
        "--setup",
        type=_setup,
        action="append",
        metavar="NAME=FLAGS",
        help="a server to compare, with flags of `baton serve`: one worker a pool [split and "
        "colocated, on 2 cores]",
    )
    parser.add_argument(
        "--rates",
        type=list_of(above(0)),
        help="requests/s [where 90, 80, 70 and 60 %% are predicted, of each set-up]",
    )
    parser.add_argument(
        "--ttft-scale", type=above(1), default=2.0, help="SLO: times one request alone [2]"
    )
    parser.add_argument("--tpot-scale", type=above(1), default=2.5, help="the same [2.5]")
    parser.add_argument("--sweep", type=Path, help="compare with the points of that directory")
    parser.add_argument(
        "--costs", type=_costs, action="append", default=[], metavar="NAME=FILE", help="of --sweep"
    )
    options, asked = parser.parse_known_args(argv)
    if options.sweep is None and options.model is None:
        parser.error("name a --model")
    if options.sweep is not None and not options.costs:
        parser.error("--sweep needs --costs NAME=FILE for its servers")
    options.setup = dict(options.setup or SETUPS.items())
    defaults = ("--random-input-len", "128", "--random-output-len", "24")
    return options, [*defaults, "--random-range-ratio", "0.25", *asked]


def _setup(text: str) -> tuple[str, str]:
    name, _, flags = text.partition("=")
    if not (name and flags):
        raise argparse.ArgumentTypeError(f"{text}: must be NAME=FLAGS")
    return name, flags


def _costs(text: str) -> tuple[str, Path]:
    name, _, path = text.partition("=")
    if not path:
        raise argparse.ArgumentTypeError(f"{text}: must be NAME=FILE")
    return name, Path(path)


if __name__ == "__main__":
    sys.exit(exit_status(main, sys.argv[1:]))
