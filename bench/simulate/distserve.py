"""DistServe's comparison in simulation: goodput per device, colocated against disaggregated.

    python -m bench.simulate.distserve

The product's cores serve OPT-13B on A100s (`bench.simulate.published`) in both ways. Each SLO is
judged on the same runs, each way at its best: colocated of several chunks, disaggregated of several
ratios of workers. `docs/simulator.md` says what is left out. The last line is JSON.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench import reasons
from bench.flag_types import Parser
from bench.search import Sample
from bench.simulate.goodput import TARGET, Length, Slo, Sweep
from bench.simulate.layouts import Hardware, Layout
from bench.simulate.published import A100_80G, CHAT, LINKS, OPT_13B, WORKLOADS, Workload

WHOLE = OPT_13B.context_tokens  # a chunk that no prompt is longer than
COLOCATED = tuple(
    Layout(
        name="colocated, whole prompts" if chunk == WHOLE else f"colocated, chunks of {chunk}",
        prefills=0,
        decodes=4,
        chunk_tokens=chunk,
    )
    for chunk in (WHOLE, 512, 256, 128)
)
DISAGGREGATED = tuple(
    Layout(name=f"disaggregated {p}:{d}", prefills=p, decodes=d, chunk_tokens=WHOLE)
    for p, d in ((1, 3), (1, 2), (2, 2), (2, 1), (3, 1))
)
PLACED = Layout(  # as DistServe placed this model
    name="disaggregated 1:1, prefill on 2",
    prefills=1,
    decodes=1,
    chunk_tokens=WHOLE,
    prefill_devices=2,
)
ON_TWO = Layout(  # what colocated workers may have, then
    name="colocated, whole prompts, on 2",
    prefills=0,
    decodes=2,
    chunk_tokens=WHOLE,
    decode_devices=2,
)
PUBLISHED_RATES = (1.0, 2.0, 3.0)
PUBLISHED = {  # measured by DistServe's authors: OPT-13B, ShareGPT, 0.2 s and 0.1 s
    "vLLM, published": (Sample(1.0, 0.970), Sample(2.0, 0.528)),
    "DistServe, published": (Sample(2.0, 0.993), Sample(3.0, 0.830)),
}
LEAST_GAIN = 1.5  # times colocated, under the strict SLO
LEAST_LOSS = 0.95  # times colocated, at most, where that wins
FEWEST_CELLS = 3  # of the grid, to be a region
SCALES = (2.0, 1.5, 1.0, 0.75, 0.5, 0.4, 0.3, 0.25, 0.2, 0.15)


@dataclass(frozen=True, kw_only=True)
class Grid:
    """SLOs of one workload."""

    ttfts_s: tuple[float, ...]
    tpots_s: tuple[float, ...]
    strict: Slo  # a TTFT that leaves room, and a TPOT of 1.5 steps of a batch of none

    @property
    def loosest(self) -> Slo:
        return Slo(max(self.ttfts_s), max(self.tpots_s))


TPOTS_S = (0.025, 0.03, 0.035, 0.04, 0.05, 0.075, 0.1, 0.15)
GRIDS = {
    "chat": Grid(
        ttfts_s=(0.2, 0.25, 0.3, 0.4, 0.6, 1.0, 2.0), tpots_s=TPOTS_S, strict=Slo(2.0, 0.03)
    ),
    "summarisation": Grid(
        ttfts_s=(0.23, 0.25, 0.3, 0.4, 0.6, 1.0, 15.0), tpots_s=TPOTS_S, strict=Slo(15.0, 0.03)
    ),
}


@dataclass(frozen=True, kw_only=True)
class Compared:
    """Both ways at their best for one SLO; requests/s per device."""

    slo: Slo
    colocated: str
    colocated_rate: float
    whole_rate: float  # colocated, whole prompts
    disaggregated: str
    disaggregated_rate: float

    @property
    def ratio(self) -> float:
        return _ratio(self.disaggregated_rate, self.colocated_rate)

    @property
    def whole_ratio(self) -> float:
        return _ratio(self.disaggregated_rate, self.whole_rate)


def _ratio(one: float, other: float) -> float:
    """NaN where neither keeps the SLO at any rate."""
    if other:
        return one / other
    return np.inf if one else np.nan


def compare(sweep: Sweep, slo: Slo) -> Compared:
    """To within the tolerance of a bisected rate."""
    whole = sweep.bisected(COLOCATED[:1], slo)
    colocated = sweep.bisected(COLOCATED, slo)
    disaggregated = sweep.bisected(DISAGGREGATED, slo)
    return Compared(
        slo=slo,
        colocated=colocated.name,
        colocated_rate=sweep.goodput(colocated, slo),
        whole_rate=sweep.goodput(whole, slo),
        disaggregated=disaggregated.name,
        disaggregated_rate=sweep.goodput(disaggregated, slo),
    )


def ratios(sweep: Sweep, grid: Grid) -> NDArray[np.float64]:
    """[TTFTs, TPOTs]: disaggregated over colocated goodput, by what was run."""

    def best(layouts: Sequence[Layout], slo: Slo) -> float:
        return max(sweep.goodput(layout, slo) for layout in layouts)

    slos = [[Slo(ttft_s, tpot_s) for tpot_s in grid.tpots_s] for ttft_s in grid.ttfts_s]
    return np.array(
        [[_ratio(best(DISAGGREGATED, slo), best(COLOCATED, slo)) for slo in row] for row in slos]
    )


def is_claimed_shape(strict: Sequence[Compared], maps: Sequence[NDArray[np.float64]]) -> bool:
    """Some workload gains enough under its strict SLO, and there is a region where colocated
    wins."""
    n_lost = sum(int((grid <= LEAST_LOSS).sum()) for grid in maps)
    return max(one.ratio for one in strict) >= LEAST_GAIN and n_lost >= FEWEST_CELLS


# --- the program -------------------------------------------------------------------------------


def _sweep(workload: Workload, options: argparse.Namespace) -> Sweep:
    hardware = Hardware(model=OPT_13B, device=A100_80G, link=LINKS[options.link])
    ratio, highest = (2.0, 2.0) if options.quick else (1.3, 6.0)
    n = 1 + int(np.log(highest / options.lowest) / np.log(ratio))
    rates = [float(f"{options.lowest * ratio**i:.3g}") for i in range(n)]
    least = Length(8, 1.0) if options.quick else Length(options.requests, options.seconds)
    sweep = Sweep(hardware, workload, rates=rates, least=least, seed=options.seed)
    for layout in (*COLOCATED, *DISAGGREGATED):
        sweep.climb(layout, GRIDS[workload.name].loosest)
    return sweep


def _placed(sweep: Sweep, slo: Slo) -> dict[str, list[float]]:
    """Attainment at the rates that were published, one device a worker and two."""
    return {
        layout.name: [sweep.seen(layout, rate).attainment(*slo) for rate in PUBLISHED_RATES]
        for layout in (COLOCATED[0], ON_TWO, PLACED)
    }


def _draw(sweep: Sweep, compared: Sequence[Compared], also: Sequence[Layout], path: Path) -> None:
    """DistServe's figures 8 and 9. `also`: layouts that are shown beside what was published."""
    from bench import plots  # matplotlib is an extra

    names = {COLOCATED[0].name}
    for one in compared:
        names |= {one.colocated, one.disaggregated}
    layouts = [one for one in (*COLOCATED, *DISAGGREGATED) if one.name in names]
    layouts += also
    published = compared[0].slo
    best = max(compared[0].colocated_rate, compared[0].disaggregated_rate)
    rate = max((r for r in sweep.rates if r <= best / 2), default=sweep.rates[0])
    by_scale = {
        layout.name: [
            sweep.seen(layout, rate).attainment(*published.scaled(scale)) for scale in SCALES
        ]
        for layout in layouts
    }
    plots.attainment_by_rate_and_scale(
        {layout.name: sweep.samples(layout, published) for layout in layouts},
        (SCALES, by_scale),
        target=TARGET,
        titles=(_said(published), f"at {rate:g} requests/s per device"),
        path=path,
        marks=PUBLISHED if also else {},
    )


def _said(slo: Slo) -> str:
    return f"TTFT {slo.ttft_s:g} s, TPOT {slo.tpot_s * 1e3:g} ms"


def _row(workload: Workload, one: Compared) -> str:
    return (
        f"{workload.name:14} {_said(one.slo):28} {one.colocated_rate:5.2f} {one.colocated:24} "
        f"{one.whole_rate:5.2f} {one.disaggregated_rate:5.2f} {one.disaggregated:18} "
        f"{one.ratio:5.2f} {one.whole_ratio:5.2f}"
    )


def _json(one: Compared) -> dict[str, object]:
    return {
        "ttft_s": one.slo.ttft_s,
        "tpot_s": one.slo.tpot_s,
        "colocated": [one.colocated, round(one.colocated_rate, 3)],
        "whole_prompts": round(one.whole_rate, 3),
        "disaggregated": [one.disaggregated, round(one.disaggregated_rate, 3)],
    }


def _finite(found: NDArray[np.float64]) -> list[list[float | None]]:
    """For JSON; None: colocated keeps the SLO at no rate."""
    return [[round(x, 3) if np.isfinite(x) else None for x in row] for row in found.tolist()]


def main(argv: Sequence[str]) -> int:
    """Returns 1 where the claimed shape does not appear."""
    parser = Parser(prog="python -m bench.simulate.distserve", description=main.__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs"), help="where pictures go")
    parser.add_argument("--link", choices=sorted(LINKS), default="nvlink")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lowest", type=float, default=0.4, help="requests/s per device")
    parser.add_argument("--requests", type=int, default=400, help="of a run, at least")
    parser.add_argument("--seconds", type=float, default=60.0, help="the same")
    parser.add_argument("--quick", action="store_true", help="to see that it runs, no more")
    options = parser.parse_all(argv)
    maps_path: Path = options.out / "colocated-wins.png"
    try:
        reasons.must_be_drawable("--out", maps_path)
    except ValueError as error:
        parser.error(str(error))
    from bench import plots  # matplotlib is an extra

    print(
        f"{'requests/s per device':43} colocated{'':21} whole  disaggregated{'':11} gain over both"
    )
    strict: list[Compared] = []
    maps: dict[str, tuple[Grid, NDArray[np.float64]]] = {}
    told: dict[str, object] = {}
    for name, workload in WORKLOADS.items():
        grid, sweep = GRIDS[name], _sweep(workload, options)
        slos = (Slo(workload.ttft_s, workload.tpot_s), grid.strict)
        compared = [compare(sweep, slo) for slo in slos]
        for one in compared:
            print(_row(workload, one), flush=True)
        for layouts in (COLOCATED, DISAGGREGATED):  # how much they can do at all
            sweep.bisected(layouts, grid.loosest)
        strict.append(compared[-1])
        maps[name] = (grid, ratios(sweep, grid))
        told[name] = [_json(one) for one in compared]
        told[f"{name}_ratios"] = _finite(maps[name][1])
        also: tuple[Layout, ...] = ()
        if workload is CHAT:
            told["placed"] = placed = _placed(sweep, slos[0])
            for layout, shares in placed.items():
                print(f"{layout:32} {' '.join(f'{100 * share:6.1f} %' for share in shares)}")
            also = (PLACED,)
        _draw(sweep, compared, also, options.out / f"distserve-{name}.png")
    plots.ratio_maps(
        {name: (grid.ttfts_s, grid.tpots_s, found) for name, (grid, found) in maps.items()},
        maps_path,
    )
    passed = is_claimed_shape(strict, [found for _, found in maps.values()])
    print(json.dumps({"benchmark": "distserve", **told, "passed": passed}))
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
