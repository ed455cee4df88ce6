"""Who computes a prompt where both sides could: a handoff's price beside what running sequences
lose. Numbers are those of a small model on a core a worker.
"""

from dataclasses import replace

import pytest
from msgspec import structs

from common.engine.events import Note
from common.ids import InstanceId, PageHash, Role, TransferId
from common.messages import Prefill
from common.values import Disaggregate
from launch.gateway.router import Reason, Route, route
from launch.gateway.transfers import Slo
from launch.gateway.views import Demand, WorkerView
from tests.unit.gateway.builders import (
    D2,
    P2,
    Bench,
    D,
    P,
    R,
    T,
    accepted,
    failed,
    generate,
    hello,
    limits,
    refused,
    run,
    snapshot,
    tokens,
)

PAGE_TOKENS = 16
LIMITS = limits(n_pages=6000, page_tokens=PAGE_TOKENS, max_model_len=8192, max_num_seqs=64)
RATE = 1700.0
PAGES = tuple(PageHash(n.to_bytes(2, "big")) for n in range(500))


def worker(
    instance: InstanceId,
    *,
    running: int = 0,
    queued: int = 0,
    cached: int = 0,
    step_s: float = 0.012,
    rate: float = RATE,
) -> WorkerView:
    """`cached`: leading pages. `queued`: tokens of prompts."""
    made = WorkerView(hello(instance, LIMITS))
    told = snapshot(
        busy=running, queued_tokens=queued, step_s=step_s, tokens_per_s=rate, stored=PAGES[:cached]
    )
    assert made.take(structs.replace(told, n_pages=LIMITS.n_pages, free_pages=LIMITS.n_pages))
    return made


def demand(n_tokens: int, max_tokens: int = 128) -> Demand:
    return Demand(n_tokens=n_tokens, max_tokens=max_tokens, hashes=PAGES[: n_tokens // PAGE_TOKENS])


def chosen(
    asked: Demand, *views: WorkerView, disaggregate: Disaggregate = "auto", refused: str = ""
) -> Route:
    prefills = [v for v in views if v.instance.startswith("prefill")]
    decodes = [v for v in views if v.instance.startswith("decode")]
    found = route(asked, prefills, decodes, disaggregate=disaggregate, refused=(refused,))  # pyright: ignore[reportArgumentType] InstanceId
    assert found is not None
    return found


# --- what the flag says ----------------------------------------------------------------------


def test_always_never_and_auto() -> None:
    views = (worker(P, queued=100_000), worker(D))
    found = [chosen(demand(50), *views, disaggregate=flag) for flag in ("always", "never", "auto")]
    assert [(one.decision, one.reason) for one in found] == [
        ("remote", Reason.FLAG),
        ("local", Reason.FLAG),
        ("local", Reason.COST),
    ]


def test_never_goes_to_the_decode_worker_that_is_done_first() -> None:
    long = demand(2000)
    views = (worker(P), worker(D, running=2, queued=4000), worker(D2, running=3))
    assert chosen(long, *views, disaggregate="never").decode == D2


def test_without_prefill_workers_there_is_no_choice() -> None:
    for flag in ("always", "auto"):
        assert chosen(demand(50), worker(D), disaggregate=flag).reason is Reason.ONLY


# --- turns and short prompts -----------------------------------------------------------------


@pytest.mark.parametrize("n_new", [1, 20, 60])
def test_a_second_turn_of_a_few_tokens_stays_where_its_prefix_is(n_new: int) -> None:
    asked = demand(60 * PAGE_TOKENS + n_new)
    found = chosen(asked, worker(P, cached=40), worker(D, cached=60))
    assert (found.decision, found.decode_cached_tokens) == ("local", 960)


def test_a_second_turn_with_a_long_document_does_not() -> None:
    assert chosen(demand(2960), worker(P, cached=40), worker(D, cached=60)).prefill == P


def test_a_second_turn_stays_with_its_prefix_beside_an_idle_decode_worker() -> None:
    """A prefix is worth more than an empty worker."""
    views = (worker(P, queued=3000), worker(D, cached=60), worker(D2))
    assert chosen(demand(980), *views).decode == D


def test_a_short_prompt_may_stay_on_an_idle_decode_worker() -> None:
    assert chosen(demand(30), worker(P), worker(D)).decision == "local"


def test_a_long_one_goes_to_a_prefill_worker_that_is_as_idle() -> None:
    assert chosen(demand(2000), worker(P), worker(D)).prefill == P


def test_a_short_prompt_is_computed_beside_streams_only_to_save_more_than_they_lose() -> None:
    """50 tokens take 29 ms, 2.5 steps: 4 sequences lose 0.29 s, weighed by that."""
    busy = worker(D, running=4)
    assert chosen(demand(50), worker(P), busy).prefill == P
    assert chosen(demand(50), worker(P, queued=400), busy).prefill == P
    assert chosen(demand(50), worker(P, queued=800), busy).decision == "local"


# --- isolation -------------------------------------------------------------------------------


@pytest.mark.parametrize("step_s", [0.01, 0.02])
@pytest.mark.parametrize("running", [1, 4, 32])
def test_a_burst_of_long_prompts_does_not_reach_running_streams(
    running: int, step_s: float
) -> None:
    """8 prompts of 2,000 tokens at once: the last waits for 9 s."""
    prefill, decode = worker(P), worker(D, running=running, step_s=step_s)
    decode.own_requests = running
    for _ in range(8):
        found = chosen(demand(2000, max_tokens=8), prefill, decode)
        assert found.prefill == P
        take(found, prefill, decode, 2000)


@pytest.mark.parametrize("n_tokens", [400, 2000, 8000])
def test_long_prompts_keep_away_from_streams_until_prefill_is_hopelessly_behind(
    n_tokens: int,
) -> None:
    """A quarter of a minute of prompts before it."""
    views = (worker(P, queued=25_000), worker(D, running=8))
    assert chosen(demand(n_tokens), *views).prefill == P


def test_another_prefill_worker_that_is_free_takes_it_first() -> None:
    views = (worker(P, queued=50_000), worker(P2, queued=40), worker(D))
    assert chosen(demand(2000), *views).prefill == P2


def test_a_long_prefill_queue_and_an_idle_decode_worker() -> None:
    views = (worker(P, queued=8000), worker(D, running=4), worker(D2))
    assert chosen(demand(2000), *views) == Route(None, D2, 0, reason=Reason.COST)


def take(found: Route, prefill: WorkerView, decode: WorkerView, n_tokens: int) -> None:
    """As the gateway counts it."""
    name = TransferId(f"t{decode.own_requests}")
    decode.own_requests += 1
    view = decode
    if found.prefill is not None:
        view = prefill
        view.own_requests += 1
        decode.own_coming[name] = found.ttft_s
    view.own_prompt_tokens += n_tokens


def test_an_idle_decode_worker_takes_one_prompt_of_a_burst() -> None:
    """The first will only come when the second is computed there. Whoever is computed there would
    decode beside the next, and be disturbed."""
    prefill, decode = worker(P), worker(D)
    remote: list[bool] = []
    for _ in range(6):
        found = chosen(demand(1900, max_tokens=64), prefill, decode)
        remote.append(found.prefill is not None)
        take(found, prefill, decode, 2000)
    assert remote == [True, False, True, True, True, True]


def test_a_long_prompt_is_not_computed_where_short_ones_are_about_to_come() -> None:
    prefill, decode = worker(P, queued=2500), worker(D)
    assert chosen(demand(2000), prefill, decode).decision == "local"
    decode.own_requests = 1
    decode.own_coming = {TransferId("t"): 0.5}
    assert chosen(demand(2000), prefill, decode).prefill == P
    decode.own_coming = {TransferId("t"): 1.5}  # by then it is computed
    assert chosen(demand(2000), prefill, decode).decision == "local"
    asked = replace(demand(2000), now=0.5)
    assert chosen(asked, prefill, decode).prefill == P


def test_whoever_comes_to_decode_goes_where_no_prompt_is_computed() -> None:
    """A second turn that is worth little is no reason to decode beside a long prompt."""
    computing = worker(D, cached=2)
    computing.own_prompt_tokens = 2000
    asked = demand(600)
    assert chosen(asked, worker(P), computing, worker(D2), disaggregate="always").decode == D2
    computing.own_prompt_tokens = 0
    assert chosen(asked, worker(P), computing, worker(D2), disaggregate="always").decode == D


# --- what was never measured -----------------------------------------------------------------


def test_a_decode_worker_that_computed_no_prompt_is_taken_for_a_prefill_worker() -> None:
    """Of 100 tokens a second neither has a second for 2 prompts of 50."""
    slow = worker(P, rate=100.0, queued=50)
    assert chosen(demand(50), slow, worker(D, rate=0.0)).decision == "local"
    asked = replace(demand(50), ttft_s=0.4)
    assert not chosen(asked, slow, worker(D, rate=0.0)).in_time
    assert chosen(asked, slow, worker(D, rate=200.0)).in_time


def test_what_it_measures_since_then_counts() -> None:
    found = chosen(demand(400), worker(P, queued=300), worker(D, rate=0.0))
    assert found.decision == "local"
    assert chosen(demand(400), worker(P, queued=300), worker(D, rate=500.0)).prefill == P


def test_of_several_decode_workers_those_that_measured_tell_of_the_others() -> None:
    views = (worker(P, queued=300), worker(D, rate=0.0), worker(D2, rate=500.0, running=1))
    assert chosen(demand(400), *views).prefill == P


# --- SLOs ------------------------------------------------------------------------------------


def test_a_prompt_that_would_be_late_elsewhere_stays_if_it_is_in_time_there() -> None:
    asked = replace(demand(300), ttft_s=0.5)
    views = (worker(P, queued=1700), worker(D, running=2))
    assert chosen(demand(300), *views).prefill == P
    found = chosen(asked, *views)
    assert (found.decision, found.reason, found.in_time) == ("local", Reason.SLO, True)


def test_running_sequences_are_owed_what_they_state() -> None:
    """A page of prompt takes 9 ms, and is in every pass: 12 + 9 are more than 20."""
    asked = replace(demand(300), ttft_s=0.5)
    late, decode = worker(P, queued=1700), worker(D, running=2)
    decode.own_tpots_s[0.02] += 1
    found = chosen(asked, late, decode)  # as many missed: the cheaper
    assert (found.prefill, found.in_time, found.reason) == (P, False, Reason.COST)
    decode.own_tpots_s.clear()
    decode.own_tpots_s[0.04] += 1
    assert chosen(asked, late, decode).in_time


def test_a_free_prefill_worker_and_promises_that_a_local_prompt_would_break() -> None:
    decode = worker(D, cached=60)
    decode.own_tpots_s[0.02] += 1
    found = chosen(demand(965), worker(P, cached=40), decode)
    assert (found.prefill, found.reason) == (P, Reason.SLO)


def test_promises_make_passes_short_and_the_prompt_late() -> None:
    """(0.9 x 30 - 12) ms leave 25 tokens a pass: 12 passes for 300."""
    asked, decode = replace(demand(300), ttft_s=0.25), worker(D, running=2)
    late = worker(P, queued=1700)
    assert chosen(asked, late, decode).in_time
    decode.own_tpots_s[0.03] += 1
    assert not chosen(asked, late, decode).in_time


# --- who has refused -------------------------------------------------------------------------


def test_a_decode_worker_that_refused_decodes_what_others_compute() -> None:
    views = (worker(P, queued=900), worker(D))
    assert chosen(demand(50), *views).decision == "local"
    assert chosen(demand(50), *views, refused=D) == Route(P, D, 0, reason=Reason.ONLY)
    assert chosen(demand(50), worker(D), refused=D) == Route(None, D, 0, reason=Reason.ONLY)


def test_a_prefill_worker_that_refused_is_not_counted_on() -> None:
    asked, views = replace(demand(300), ttft_s=0.5), (worker(P), worker(D, running=1))
    assert chosen(asked, *views).prefill == P
    found = chosen(asked, *views, refused=P)
    assert (found.decision, found.in_time) == ("local", True)
    assert chosen(demand(300), *views, refused=P).prefill == P  # nothing is owed


# --- what follows from it --------------------------------------------------------------------


def test_a_local_prompt_is_expected_from_nobody_and_counted_where_it_is_computed() -> None:
    bench = Bench(disaggregate="auto")
    bench.submit()
    assert bench.opened == [("t1", 1, None, D)]
    assert bench.said(Prefill) == []
    why = {"request": R, "decision": "local", "reason": "cost"}
    assert bench.did(Note)[-1] == Note(T, 1, "routed", {**why, "decode": D})
    bench.hear(accepted())
    assert bench.is_admitted
    (decode,) = bench.core.fleet.of(Role.DECODE)
    assert decode.queued_tokens == 6
    bench.hear(tokens(run(0, 50)))
    assert decode.queued_tokens == 0


def test_whom_the_decode_worker_refuses_a_prefill_worker_may_compute() -> None:
    bench = Bench(disaggregate="auto")
    bench.submit(generate(slo=Slo(ttft_s=0.2)))
    bench.hear(refused(predicted_ttft_s=1.3))
    assert bench.error is None
    assert bench.opened == [("t1", 2, P, D)]


def test_whom_the_prefill_worker_refuses_a_decode_worker_may_compute() -> None:
    bench = Bench(disaggregate="auto")
    bench.hear(snapshot(2, busy=3))
    bench.submit(generate(slo=Slo(ttft_s=0.2)))
    assert bench.opened == [("t1", 1, P, D)]
    bench.hear(refused(predicted_ttft_s=1.3), sender=P)
    assert bench.error is None
    assert bench.opened == [("t1", 2, None, D)]


def test_a_prompt_whose_pass_failed_on_the_decode_side_is_handed_over() -> None:
    bench = Bench(disaggregate="auto")
    bench.submit()
    bench.hear(failed())
    assert bench.opened == [("t1", 2, P, D)]


def test_with_never_prefill_workers_are_left_alone() -> None:
    bench = Bench(P, D, disaggregate="never")
    bench.hear(snapshot(2, busy=3, queued_tokens=500))
    bench.submit()
    assert bench.opened == [("t1", 1, None, D)]
    assert bench.did(Note)[-1].fields["reason"] == "flag"
