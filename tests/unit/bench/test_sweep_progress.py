"""What a sweep says of each point: attainment, and between which rates the answer lies."""

from bench import sweep_progress
from bench.client import Outcome
from bench.comparison import Design
from bench.measures import Goodput
from bench.search import Limits
from bench.store import Point, Setting

SLO = Goodput(ttft_ms=150, tpot_ms=12.5)
DESIGN = Design(
    servers=("a", "b"),
    rounds=3,
    targets=(0.9, 0.5),
    scales=(1.0,),
    limits=Limits(tolerance=0.1),
    n_solo=1,
    n_requests=10,
)


def point(rate: float | None, n_good: int, *, server: str = "a", error: str = "") -> Point:
    """Of ten requests so many keep the SLO; the others come late, or fail."""
    part = "solo" if rate is None else "search"
    setting = Setting(part=part, server=server, round=1, rate=rate, n_requests=10)
    good, late = [0.1, 0.11], [0.2, 0.21]
    outcomes = [
        Outcome(index=k, scheduled_s=0, sent_s=0, ended_s=1, chunk_times_s=good, output_tokens=2)
        if k < n_good
        else Outcome(
            index=k,
            scheduled_s=0,
            sent_s=0,
            ended_s=1,
            chunk_times_s=[] if error else late,
            output_tokens=2,
            error=error,
        )
        for k in range(10)
    ]
    return Point(setting=setting, began=0, outcomes=tuple(outcomes))


def test_the_slo() -> None:
    assert sweep_progress.limits(SLO) == "TTFT ≤ 150 ms, TPOT ≤ 12.5 ms"


def test_a_point_with_its_attainment_and_what_is_left() -> None:
    points = [point(8, 10), point(12, 3), point(10, 7), point(1, 0, server="b")]
    line = sweep_progress.of_point(DESIGN, points, SLO, points[2])
    assert line == (
        "a-search-round-1-rate-10-n-10; 70.0 % keep the SLO; "
        "TTFT 100.0 ms, p99 200.0, TPOT 10.00 ms, p99 10.00; "
        "round 2 of 3, so far: 50 % kept at 10, lost at 12; 90 % kept at 8, lost at 10"
    )


def test_a_search_that_is_over_says_so() -> None:
    points = [point(10, 10), point(11, 0)]
    line = sweep_progress.of_point(DESIGN, points, SLO, points[1])
    assert line.endswith(
        "so far: 50 % kept at 10, lost at 11, found; 90 % kept at 10, lost at 11, found"
    )


def test_one_side_alone() -> None:
    (kept,) = [point(10, 10)]
    line = sweep_progress.of_point(DESIGN, [kept], SLO, kept)
    assert line.endswith("90 % kept at 10, lost at no rate yet")
    (lost,) = [point(10, 0)]
    line = sweep_progress.of_point(DESIGN, [lost], SLO, lost)
    assert line.endswith("90 % lost at 10, kept at no rate yet")


def test_nothing_answered_is_no_latency_of_zero() -> None:
    failed = point(10, 0, error="http_500")
    line = sweep_progress.of_point(DESIGN, [failed], SLO, failed)
    assert "0.0 % keep the SLO; nothing was answered, http_500 10 times; round 2" in line


def test_before_the_slo_is_known_there_are_latencies_alone() -> None:
    alone = point(None, 10)
    line = sweep_progress.of_point(DESIGN, [alone], None, alone)
    assert line == "a-solo-round-1-n-10; TTFT 100.0 ms, p99 100.0, TPOT 10.00 ms, p99 10.00"
