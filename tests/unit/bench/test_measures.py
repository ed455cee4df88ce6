import pytest

from bench.client import Outcome
from bench.measures import (
    Goodput,
    attainment,
    duration_s,
    peak_concurrency,
    peak_tokens_per_s,
    statistics,
    summarise,
)


def outcome(
    *times_s: float, sent_s: float = 0.0, chunk_tokens: tuple[int, ...] = (), n_out: int = 0
) -> Outcome:
    """Well ended; one token a chunk unless it says otherwise."""
    return Outcome(
        index=0,
        scheduled_s=sent_s,
        sent_s=sent_s,
        ended_s=times_s[-1],
        chunk_times_s=list(times_s),
        chunk_tokens=list(chunk_tokens),
        input_tokens=10,
        output_tokens=n_out or len(times_s),
        counted_by="usage",
    )


def failed(kind: str = "http_429", ended_s: float = 9.0) -> Outcome:
    return Outcome(index=0, scheduled_s=0.0, sent_s=0.0, ended_s=ended_s, error=kind)


def cancelled(*times_s: float) -> Outcome:
    return Outcome(
        index=0,
        scheduled_s=0.0,
        sent_s=0.0,
        ended_s=1.0,
        chunk_times_s=list(times_s),
        cancelled=True,
    )


def test_one_request_by_hand() -> None:
    made = summarise([outcome(0.5, 0.7, 0.8, 1.1, sent_s=0.3)], None, 2.0)
    expected = {"ttft": 200, "ttst": 200, "tpot": 200, "e2el": 800, "client_queue_time": 0}
    for name, value_ms in expected.items():
        for key in ("mean", "median", "p90", "p95", "p99", "max"):
            assert made[f"{key}_{name}_ms"] == pytest.approx(value_ms), (key, name)
    assert made["mean_itl_ms"] == pytest.approx(200)
    assert made["median_itl_ms"] == pytest.approx(200)
    assert made["max_itl_ms"] == pytest.approx(300)
    assert made["completed"] == 1
    assert made["total_input_tokens"] == 10
    assert made["total_output_tokens"] == 4
    assert made["request_throughput"] == 0.5
    assert made["output_throughput"] == 2.0
    assert made["total_token_throughput"] == 7.0
    assert made["request_goodput"] is None
    assert made["slo_attainment"] is None


def test_a_single_token_has_no_tpot_and_no_gap_and_no_second() -> None:
    made = summarise([outcome(0.5), outcome(0.5, 0.6)], None, 1.0)
    assert made["mean_tpot_ms"] == made["max_itl_ms"] == pytest.approx(100)
    assert made["mean_ttst_ms"] == pytest.approx(100)
    assert made["mean_ttft_ms"] == pytest.approx(500)


def test_chunks_of_several_tokens_make_tpot_of_tokens_and_itl_of_chunks() -> None:
    made = summarise([outcome(1.0, 1.3, 1.6, n_out=7)], None, 2.0)
    assert made["mean_tpot_ms"] == pytest.approx(100)
    assert made["mean_itl_ms"] == pytest.approx(300)
    assert made["mean_ttst_ms"] == pytest.approx(300)  # nobody says where the second token was
    assert made["token_chunks"] == 3
    assert made["total_output_tokens"] == 7


def test_a_first_chunk_of_two_tokens_holds_the_second() -> None:
    assert outcome(1.0, 1.3, chunk_tokens=(2, 1), n_out=3).second_token_s == 1.0
    assert outcome(1.0, 1.3, chunk_tokens=(1, 2), n_out=3).second_token_s == 1.3
    assert outcome(1.0, 1.3).second_token_s == 1.3


def test_itl_is_of_all_gaps_of_all_requests() -> None:
    made = summarise([outcome(0.0, 0.1), outcome(0.0, 0.2, 0.4, 0.6)], None, 1.0)
    assert made["mean_itl_ms"] == pytest.approx(175)
    assert made["mean_tpot_ms"] == pytest.approx(150)


def test_what_failed_or_was_given_up_is_in_no_latency_but_is_counted() -> None:
    outcomes = [outcome(0.5, 0.6), failed(), failed("disconnect"), failed(), cancelled(0.1, 0.2)]
    made = summarise(outcomes, None, 1.0)
    assert (made["completed"], made["failed"], made["cancelled"]) == (1, 3, 1)
    assert made["errors_by_kind"] == {"http_429": 2, "disconnect": 1}
    assert made["max_ttft_ms"] == pytest.approx(500)
    assert made["total_output_tokens"] == 2


def test_time_in_the_client_is_apart_from_the_servers() -> None:
    late = outcome(1.5, 1.6, sent_s=1.0)
    late.scheduled_s = 0.25
    made = summarise([late], None, 2.0)
    assert made["mean_client_queue_time_ms"] == pytest.approx(750)
    assert made["mean_ttft_ms"] == pytest.approx(500)
    assert made["mean_e2el_including_client_queue_ms"] == pytest.approx(1350)


def test_goodput_wants_every_limit_kept_at_once() -> None:
    slo = Goodput(ttft_ms=200, tpot_ms=50, e2el_ms=400)
    outcomes = [
        outcome(0.2, 0.25, 0.3),  # on the limits
        outcome(0.201, 0.21),
        outcome(0.1, 0.16),
        outcome(0.1, *(0.1 + 0.05 * n for n in range(1, 8))),  # 450 ms in all
        outcome(0.1),
        failed(),
        cancelled(0.1),
    ]
    assert [slo.met_by(o) for o in outcomes] == [True, False, False, False, True, False, False]
    assert attainment(outcomes, slo) == pytest.approx(2 / 6)
    made = summarise(outcomes, slo, 4.0)
    assert made["request_goodput"] == 0.5
    assert made["slo_attainment"] == pytest.approx(2 / 6)


def test_a_limit_that_is_not_given_is_kept() -> None:
    assert Goodput(tpot_ms=1).met_by(outcome(99.0))
    assert attainment([], Goodput()) == 0.0


def test_percentiles_are_between_values_and_std_is_of_the_population() -> None:
    made = statistics("x", [0.001, 0.002, 0.003, 0.004], (50, 99.9))
    assert made["mean_x_ms"] == made["median_x_ms"] == made["p50_x_ms"] == pytest.approx(2.5)
    assert made["std_x_ms"] == pytest.approx(1.25**0.5)
    assert made["p99.9_x_ms"] == pytest.approx(3.997)


def test_nothing_measured_is_zeros() -> None:
    made = summarise([failed()], Goodput(ttft_ms=1), 0.0)
    assert made["mean_ttft_ms"] == made["request_throughput"] == made["request_goodput"] == 0.0
    assert duration_s([]) == 0.0
    assert duration_s([failed(ended_s=2.0), failed(ended_s=3.0)]) == 3.0


def test_the_peak_of_tokens_is_of_the_fullest_second_after_the_first_sending() -> None:
    outcomes = [
        outcome(10.1, 10.9, 11.1, sent_s=10.0),
        outcome(11.2, 11.3, sent_s=10.5, n_out=6),
        outcome(11.4, 11.5, sent_s=10.5, chunk_tokens=(1, 4), n_out=5),
    ]
    assert peak_tokens_per_s(outcomes) == 1 + 6 + 5
    assert peak_tokens_per_s([]) == 0.0


def test_the_peak_of_requests_does_not_count_one_that_ends_as_another_begins() -> None:
    outcomes = [outcome(2.0, sent_s=1.0), outcome(3.0, sent_s=2.0), outcome(2.5, sent_s=2.25)]
    assert peak_concurrency(outcomes) == 2
