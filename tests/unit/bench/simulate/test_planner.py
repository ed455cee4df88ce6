"""Whether the planner asks for what is obviously right, and says what cannot be had."""

from collections.abc import Sequence
from itertools import pairwise

import msgspec
import pytest

from bench.measures import Goodput
from bench.simulate import planner
from bench.simulate.plan_task import Task, candidates, most_at_once, refusal
from bench.simulate.planner import Found, Outcome, Point, Verified
from bench.simulate.plans import Plan
from tests.unit.bench.simulate.devices import DEVICE, task


def best(surveyed: Sequence[Found]) -> Plan:
    return max(surveyed[1:], key=lambda found: found.rate).plan


def test_long_prompts_and_short_answers_call_for_prefill_workers() -> None:
    surveyed = planner.survey(task(1000, 8, Goodput(ttft_ms=2000, tpot_ms=50)))
    assert (best(surveyed).prefills, best(surveyed).decodes) == (3, 1)


def test_short_prompts_and_long_answers_call_for_decode_workers() -> None:
    surveyed = planner.survey(task(30, 200, Goodput(ttft_ms=500, tpot_ms=30)))
    assert (best(surveyed).prefills, best(surveyed).decodes) == (1, 3)


def test_every_ratio_of_few_devices_is_searched_beside_colocated() -> None:
    surveyed = planner.survey(task(100, 20, Goodput(ttft_ms=500, tpot_ms=30), n_requests=50))
    assert [found.plan.name for found in surveyed] == ["colocated", "1:3", "2:2", "3:1"]
    assert all(found.rate > 0 for found in surveyed)


def test_of_many_devices_the_peak_is_found_without_them_all() -> None:
    slo = Goodput(ttft_ms=500, tpot_ms=30)
    surveyed = planner.survey(task(100, 20, slo, n_devices=20, n_requests=120))
    known = [found.plan.prefills for found in surveyed[1:]]
    assert known == sorted(set(known))
    assert len(known) < 19
    at = known.index(best(surveyed).prefills)
    around = known[max(0, at - 1) : at + 2]
    assert all(b - a == 1 for a, b in pairwise(around))


def test_a_tpot_bounds_the_batch_and_limits_lie_around_it() -> None:
    asked = task(100, 20, Goodput(tpot_ms=15))
    n = most_at_once(asked)
    seconds = DEVICE.decode.fixed_s + n * (8e-4 + 110 * 1e-6)
    assert seconds <= 0.015 < seconds + 8e-4 + 110 * 1e-6
    seqs = {plan.max_num_seqs for plan in candidates(asked, 2)}
    assert min(seqs) <= n <= max(seqs)
    assert {plan.chunk_tokens for plan in candidates(asked, 2)} == {512}
    assert len({plan.chunk_tokens for plan in candidates(asked, 0)}) > 1


@pytest.mark.parametrize(
    ("slo", "told"),
    [
        (Goodput(ttft_ms=10), "ttft:10 cannot be kept: alone on idle devices 90 % of the requests "
         "have their first token within 45.45 ms; ask for ttft:46 or more"),
        (Goodput(ttft_ms=100, tpot_ms=7), "tpot:7 cannot be kept"),
        (Goodput(e2el_ms=100), "e2el:100 cannot be kept"),
        (Goodput(ttft_ms=10, tpot_ms=7, e2el_ms=9_000), "--goodput ttft:10 tpot:7 cannot be kept: "
         "alone on idle devices 90 % of the requests have their first token within 45.45 ms, a "
         "token after the first within 7.91 ms; ask for ttft:46 tpot:8 or more"),
    ],
)  # fmt: skip
def test_an_slo_that_is_missed_alone_is_refused_with_what_can_be_had(
    slo: Goodput, told: str
) -> None:
    assert told in (refusal(task(100, 20, slo)) or "")


def test_an_slo_that_is_kept_alone_is_not_refused() -> None:
    assert refusal(task(100, 20, Goodput(ttft_ms=46, tpot_ms=9))) is None


def test_a_request_that_fits_no_device_is_refused() -> None:
    asked = task(1000, 20, Goodput(ttft_ms=1000))
    small = msgspec.structs.replace(DEVICE, n_pages=60)
    why = refusal(Task(**{**vars(asked), "device": small}))
    assert why is not None
    assert "1000 tokens in and 20 out does not fit a device's KV cache of 960 tokens" in why


# --- the real cores ------------------------------------------------------------------------------


def test_the_best_and_colocated_are_verified_and_shown_at_the_same_rates() -> None:
    asked = task(60, 10, Goodput(ttft_ms=200, tpot_ms=20), n_devices=2, n_requests=60)
    outcome = planner.search(asked, n_verified=40)
    assert [one.cores.plan.name for one in outcome.verified] == ["1:1", "colocated"]
    assert outcome.n_requests == 40
    assert outcome.split is not None
    assert outcome.best.rate == max(one.rate for one in outcome.verified) > 0
    for part in planner.CURVE:
        for one in outcome.verified:
            apart = [abs(p.rate / (part * outcome.best.rate) - 1) for p in one.cores.points]
            assert min(apart) < 0.15
    for one in outcome.verified:
        rates = [point.rate for point in one.cores.points]
        assert rates == sorted(rates)
        assert rates == [point.rate for point in one.model.points]


def test_one_device_is_colocated() -> None:
    asked = task(60, 10, Goodput(ttft_ms=200, tpot_ms=20), n_devices=1, n_requests=30)
    outcome = planner.search(asked, n_verified=20)
    assert outcome.split is None
    assert outcome.best is outcome.colocated


def found(name: int, rate: float) -> Found:
    plan = Plan(prefills=name, decodes=2, prefill_tokens=1, chunk_tokens=1, max_num_seqs=1)
    points = [
        Point(rate=at, attainment=share, ttft_ms=1, tpot_ms=1, completed=at)
        for at, share in ((rate, 1.0), (rate * 1.01, 0.0))
    ]
    return Found(plan=plan, target=0.9, n_requests=10, points=points)


@pytest.mark.parametrize(("rate", "reversed_pairs"), [(5.0, 1), (9.9, 0), (20.0, 0)])
def test_a_ranking_that_the_cores_reverse_is_told(rate: float, reversed_pairs: int) -> None:
    a = Verified(surveyed=found(1, 11.0), cores=found(1, rate), model=found(1, rate))
    b = Verified(surveyed=found(0, 9.0), cores=found(0, 10.0), model=found(0, 10.0))
    outcome = Outcome(surveyed=[b.surveyed, a.surveyed], verified=[a, b])
    assert len(outcome.reversed_pairs) == reversed_pairs
