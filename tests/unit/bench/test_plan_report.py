"""The tables of `baton plan`: every figure in its row and under its name."""

from dataclasses import replace

from bench import plan_report
from bench.measures import Goodput
from bench.simulate.planner import Found, Outcome, Point, Verified
from bench.simulate.plans import Plan
from tests.unit.bench.simulate.devices import task

TASK = task(60, 10, Goodput(ttft_ms=200, tpot_ms=20), n_devices=2, n_requests=10)


def verified(prefills: int, curve: dict[float, float]) -> Verified:
    """`curve`: attainment by rate."""
    points = [
        Point(rate=rate, attainment=share, ttft_ms=1, tpot_ms=1, completed=rate)
        for rate, share in curve.items()
    ]
    plan = Plan(
        prefills=prefills,
        decodes=2 - prefills,
        prefill_tokens=512,
        chunk_tokens=512,
        max_num_seqs=8,
    )
    found = Found(plan=plan, target=0.9, n_requests=1000, points=points)
    return Verified(surveyed=found, cores=found, model=replace(found))


# The best of the split plan lies 2 % above the best of the colocated one.
SPLIT = verified(1, {6.0: 1.0, 10.2: 0.95, 10.8: 0.5})
COLOCATED = verified(0, {6.12: 1.0, 10.0: 0.93, 10.5: 0.2})


def tables(outcome: Outcome) -> dict[str, list[list[str]]]:
    """By title: rows of cells, the header first."""
    text = plan_report.text(TASK, outcome)
    made: dict[str, list[list[str]]] = {}
    for part in text.split("\n\n"):
        title, *rows = part.splitlines()
        made[title.partition(",")[0]] = [row.split("  ") for row in rows]
    return {
        title: [[cell.strip() for cell in row if cell.strip()] for row in rows]
        for title, rows in made.items()
    }


def test_a_plan_is_shown_with_the_rate_it_keeps_and_the_one_it_does_not() -> None:
    shown = tables(
        Outcome(surveyed=[COLOCATED.surveyed, SPLIT.surveyed], verified=[SPLIT, COLOCATED])
    )
    assert shown["the best by the real schedulers"] == [
        ["prefill:decode", "requests/s", "not at", "a device", "model off by"],
        ["1:1", "10.2", "10.8", "5.1", "0.0"],
        ["colocated", "10", "10.5", "5", "0.0"],
    ]


def test_a_plan_that_keeps_every_rate_has_none_that_it_does_not() -> None:
    always = verified(0, {6.0: 1.0, 10.0: 0.95})
    shown = tables(Outcome(surveyed=[always.surveyed], verified=[always]))
    assert shown["the best by the real schedulers"][1][2] == "-"


def test_attainment_stands_at_the_rate_that_it_was_seen_at() -> None:
    shown = tables(
        Outcome(surveyed=[COLOCATED.surveyed, SPLIT.surveyed], verified=[SPLIT, COLOCATED])
    )
    assert shown["predicted SLO attainment"] == [
        ["requests/s", "1:1", "colocated"],
        ["6", "100.0", "-"],
        ["6.12", "-", "100.0"],
        ["10", "-", "93.0"],
        ["10.2", "95.0", "-"],
        ["10.5", "-", "20.0"],
        ["10.8", "50.0", "-"],
    ]
