"""The arithmetic of the isolation measurement, on streams whose gaps are known."""

import pytest

from bench.client import Outcome
from bench.disturbance import Round, gaps, same_tokens, summarise, verdict


def stream(*times_s: float) -> Outcome:
    return Outcome(index=0, scheduled_s=0, sent_s=0, chunk_times_s=list(times_s))


def made(before_s: float, during_s: float, *, alone_s: float = 1, loaded_s: float = 1) -> Round:
    """Every gap the same."""
    return Round(
        alone_ttfts=(alone_s, 3 * alone_s),
        loaded_ttfts=(loaded_s, 3 * loaded_s),
        before=((-1.0, before_s), (-0.5, before_s)),
        during=((0.5, during_s), (1.0, during_s)),
        control=((0.5, during_s / 2), (1.0, during_s / 2)),
        burst_s=2.0,
        cpu_before={"decode-0": 0.5},  # in the 1 s since the first of two gaps
        cpu={"decode-0": 0.5},
        noise=1.1,
    )


def test_gaps_belong_to_the_time_they_end_in() -> None:
    streams = [stream(1, 2, 4, 7), stream(3.5, 4.5)]
    assert gaps(streams, 4, 2, 4.5) == ((-2, 1), (0, 2))
    assert gaps(streams, 4, 4.5, 8) == ((0.5, 1), (3, 3))


def test_the_control_is_of_the_same_tokens() -> None:
    disturbed = [stream(1, 2, 3, 10, 20, 21)]
    undisturbed = [stream(1, 2, 3, 4, 5.5, 6.5)]
    assert gaps(disturbed, 0, 4, 20.5) == ((10, 7), (20, 10))
    assert same_tokens(disturbed, undisturbed, 4, 20.5) == ((4, 1), (5.5, 1.5))


def test_ratios_are_taken_within_a_round_and_their_median_told() -> None:
    rounds = [made(0.01, 0.02), made(0.10, 0.11), made(0.01, 0.05)]
    numbers = summarise(rounds)
    assert numbers["itl_ratio_by_round"] == pytest.approx([2, 1.1, 5])
    assert numbers["itl_ratio"] == pytest.approx(2)
    assert numbers["itl_ratio_of_same_tokens"] == pytest.approx(2)
    assert numbers["itl_spread_before"] == pytest.approx(1)
    assert numbers["p99_itl_during_ms"] == pytest.approx(50)


def test_cpu_time_is_compared_by_token() -> None:
    assert summarise([made(1, 1)])["decode_cpu_per_token_ratio"] == pytest.approx(2)


def test_ttft_is_compared_by_means() -> None:
    assert summarise([made(1, 1, alone_s=1, loaded_s=1.1)])["ttft_ratio"] == pytest.approx(1.1)


def test_the_verdict_names_the_colocated_server_that_disturbs_least() -> None:
    apart = summarise([made(0.01, 0.0125)])
    colocated = {"a": summarise([made(0.01, 0.08)]), "b": summarise([made(0.01, 0.03)])}
    told = verdict(apart, colocated)
    assert told["colocated_best"] == "b"
    assert told["colocated_itl_ratio"] == pytest.approx(3)
    assert told["kept"] == {"itl_ratio": False, "itl_spread_before": True, "ttft_ratio": True}
    assert verdict(apart, {})["colocated_best"] is None
