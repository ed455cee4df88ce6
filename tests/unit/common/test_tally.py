from bisect import bisect_left

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.samples import Sample

from common.tally import FLUSH_EVENTS, Tally

BUCKETS = (0.01, 0.1, 1.0)


def instruments() -> tuple[Counter, Histogram]:
    registry = CollectorRegistry()
    return Counter("t", "", registry=registry), Histogram(
        "h", "", buckets=BUCKETS, registry=registry
    )


def samples(*told: Counter | Histogram) -> list[Sample]:
    return [s for one in told for family in one.collect() for s in family.samples]


@given(st.lists(st.sampled_from([0.0, 0.01, 0.02, 0.1, 0.5, 1.0, 7.0])))
def test_instruments_are_told_what_they_would_have_seen(gaps: list[float]) -> None:
    tokens, histogram = instruments()
    tally = Tally(tokens, histogram, BUCKETS)
    seen, seen_gaps = instruments()
    for n, gap in enumerate(gaps):
        tally.add(n)
        tally.gap(gap)
        seen.inc(n)
        seen_gaps.observe(gap)
        if bisect_left(BUCKETS, gap) == 1:
            tally.flush()
    tally.flush()
    for told, expected in zip(samples(tokens, histogram), samples(seen, seen_gaps), strict=True):
        assert (told.name, told.labels) == (expected.name, expected.labels)
        if not told.name.endswith("_created"):
            assert abs(told.value - expected.value) < 1e-9


def test_they_are_told_now_and_then_even_if_nobody_asks() -> None:
    tokens, histogram = instruments()
    tally = Tally(tokens, histogram, BUCKETS)
    for _ in range(FLUSH_EVENTS - 1):
        tally.add(1)
    assert samples(tokens)[0].value == 0
    tally.add(1)
    assert samples(tokens)[0].value == FLUSH_EVENTS
