"""The next pass is planned while one is computed: what it goes on with, who is in it, what drops
out, and that nobody is told of it before it is final."""

import pytest

from common.engine.events import StepDone
from common.engine.plan import PassPlan, PassResult
from common.errors import InvariantBroken
from common.ids import StepId
from common.messages import Failed, Handoff, PagesReady, Resync, Snapshot
from prefill.steps import LEAD_MAX_SHARE, LEAD_MIN_S
from tests.unit.prefill.builders import Bench, D, G, T, accept, ended, prefill, release

PASS_S = 0.1
LONG = 30


def done(bench: Bench, *tokens: int, ready_s: float = 0.001) -> None:
    """The running pass took its time."""
    bench.now = max(bench.now, bench.began_at + PASS_S)
    bench.done(*tokens, ready_s=ready_s)


def plan_ahead(bench: Bench) -> PassPlan:
    """Let time pass until the next pass is planned."""
    assert len(bench.unanswered) == 1
    while len(bench.unanswered) == 1:
        assert bench.wake_at is not None
        assert bench.wake_at < bench.began_at + PASS_S
        bench.tick(bench.wake_at - bench.now)
    return bench.unanswered[1].plan


def nearly_done(bench: Bench) -> None:
    """The running pass: all timers ring that there are."""
    while bench.wake_at is not None and bench.wake_at < bench.began_at + PASS_S:
        bench.tick(bench.wake_at - bench.now)
    bench.tick(bench.began_at + 0.999 * PASS_S - bench.now)


def computing(**of: object) -> Bench:
    """A long prompt is, by chunks of 8 tokens; decode has accepted it; it is known what a pass
    takes, and the second has just begun."""
    bench = Bench(plan_ahead=True, chunk_tokens=8, max_num_batched_tokens=8, **of)  # type: ignore[arg-type]
    bench.hear(prefill(LONG))
    bench.hear(accept(), sender=D)
    nearly_done(bench)
    assert len(bench.unanswered) == 1  # it is not known what a pass takes
    done(bench)
    assert len(bench.unanswered) == 1
    return bench


def told_pages(bench: Bench) -> list[int]:
    """How many pages are announced in the last step's messages, in all."""
    return [len(message.pages) for message in bench.said(PagesReady, D)]


def test_the_next_chunk_is_launched_while_the_one_before_it_is_computed() -> None:
    bench = computing()
    plan = plan_ahead(bench)
    assert plan.positions_T.tolist() == list(range(16, 24))
    assert plan.len_B.tolist() == [24]
    assert not len(plan.unread_rows_U)  # it takes no token of the pass before
    done(bench)
    assert bench.plan is plan


def test_pages_are_announced_when_their_own_pass_is_final() -> None:
    bench = computing()
    plan_ahead(bench)
    assert told_pages(bench) == []
    done(bench)
    assert told_pages(bench) == [4]
    plan = plan_ahead(bench)
    assert [d.row for d in plan.draws] == [5]  # the prompt's end
    done(bench)
    assert told_pages(bench) == [6]
    assert bench.said(Handoff, D) == []
    done(bench, 50)
    (handoff,) = bench.said(Handoff, D)
    assert len(handoff.pages) == 8
    assert [run.tokens for run in bench.runs] == [(50,)]
    bench.hear(release(), sender=D)
    assert bench.pool.n_held == 0
    assert bench.core.idle


def test_whoever_comes_before_it_is_planned_is_in_it() -> None:
    bench = computing()
    bench.tick(0.5 * PASS_S)
    bench.hear(prefill((90, 91), transfer="u", deadline_s=0.01))
    assert len(bench.unanswered) == 1
    plan = plan_ahead(bench)
    assert plan.tokens_T.tolist()[:2] == [90, 91]


def test_whoever_comes_when_there_was_nothing_to_plan_is_planned_at_once() -> None:
    bench = Bench(plan_ahead=True, n_pages=64)
    bench.computed(prefill(6, transfer="b"), 50)
    bench.hear(prefill(8))
    done(bench, 50)
    bench.hear(prefill(8, transfer="u"))
    nearly_done(bench)
    assert len(bench.unanswered) == 1  # all of it is in the running pass
    bench.hear(prefill((7, 8, 9), transfer="v"))
    assert bench.unanswered[1].plan.tokens_T.tolist() == [7, 8, 9]
    bench.hear(prefill((4, 5, 6), transfer="w"))  # two are enough
    assert len(bench.unanswered) == 2


def test_without_leave_there_is_one_pass_at_a_time() -> None:
    bench = Bench(chunk_tokens=8, max_num_batched_tokens=8)
    bench.hear(prefill(LONG))
    done(bench)
    nearly_done(bench)
    assert len(bench.unanswered) == 1


# --- who drops out -------------------------------------------------------------------------------


def test_pages_of_an_aborted_prompt_are_kept_until_the_last_pass_that_writes_them() -> None:
    bench = computing(n_pages=8)
    plan_ahead(bench)
    bench.hear(ended(), prefill((70, 71), transfer="u"))
    assert bench.pool.n_available == 0
    done(bench)
    assert bench.pool.n_available == 0
    assert len(bench.unanswered) == 1  # nobody could begin
    done(bench)
    assert bench.pool.n_held == 1
    assert bench.rows == [[70, 71]]
    assert bench.said(PagesReady) == []


def test_a_pass_that_fails_takes_its_prompts_out_of_the_next_one() -> None:
    """Who shares that one goes on; pages are kept until it is final."""
    bench = Bench(plan_ahead=True, chunk_tokens=8, max_num_batched_tokens=12, n_pages=64)
    bench.hear(prefill(LONG))
    done(bench)
    bench.hear(prefill((70, 71, 72), transfer="u", deadline_s=0.01))
    plan = plan_ahead(bench)
    assert plan.len_B.tolist() == [3, 24]
    held = bench.pool.n_held
    bench.raised("no memory")
    assert [(f.transfer, f.detail) for f in bench.said(Failed, G)] == [(T, "no memory")]
    assert bench.pool.n_held == held
    done(bench, 50)
    assert [(run.transfer, run.tokens) for run in bench.runs] == [("u", (50,))]
    assert bench.pool.n_held == 1
    assert bench.said(Failed) == []


def test_both_passes_may_fail_and_a_prompt_fails_once() -> None:
    bench = computing()
    plan_ahead(bench)
    bench.raised("no memory")
    assert len(bench.said(Failed, G)) == 1
    bench.raised("no memory")
    assert bench.said(Failed, G) == []
    bench.hear(ended())
    assert bench.pool.n_held == 0
    assert bench.core.idle


def test_finals_come_in_the_order_of_launches() -> None:
    bench = computing()
    plan_ahead(bench)
    with pytest.raises(InvariantBroken, match="was not running"):
        bench.take(StepDone(StepId(bench.unanswered[1].step), PassResult()))


# --- when ----------------------------------------------------------------------------------------


def lead_s(bench: Bench) -> float:
    """Of the pass that is planned next, before the running one should end."""
    plan_ahead(bench)
    return bench.began_at + PASS_S - bench.now


@pytest.mark.parametrize("ready_s", [-0.001, 0.001])
def test_the_lead_is_learnt_and_bounded(ready_s: float) -> None:
    bench = Bench(plan_ahead=True, chunk_tokens=8, max_num_batched_tokens=8, n_pages=512,
                  max_model_len=2000)  # fmt: skip
    bench.hear(prefill(1700))
    done(bench)
    first_s = last_s = lead_s(bench)
    for _ in range(100):
        done(bench, ready_s=ready_s)
        last_s = lead_s(bench)
    if ready_s < 0:
        assert last_s == pytest.approx(LEAD_MAX_SHARE * PASS_S)
    else:
        assert last_s == pytest.approx(LEAD_MIN_S, abs=1e-6)
    assert LEAD_MIN_S < first_s < LEAD_MAX_SHARE * PASS_S


def test_a_first_token_is_predicted_behind_both_passes() -> None:
    """Of which the second is not begun; a deadline between the two ends is not met."""
    within_s = {}
    for ahead in (True, False):
        bench = Bench(plan_ahead=ahead, chunk_tokens=16, max_num_batched_tokens=16)
        bench.hear(prefill(60))
        done(bench)
        nearly_done(bench)
        assert len(bench.unanswered) == 1 + ahead
        bench.now = bench.began_at + 0.95 * PASS_S
        within_s[ahead] = bench.core._passes.pace.rest_s(bench.now)
    assert within_s == {
        True: pytest.approx(1.05 * PASS_S, rel=0.01),
        False: pytest.approx(0.05 * PASS_S, rel=0.05),
    }


def test_tokens_of_a_pass_that_has_not_begun_are_queued() -> None:
    """Whoever routes prompts counts what is before them."""
    queued: dict[bool, int] = {}
    for ahead in (True, False):
        bench = Bench(plan_ahead=ahead, chunk_tokens=8, max_num_batched_tokens=8)
        bench.hear(prefill(LONG))
        done(bench)
        nearly_done(bench)
        bench.hear(Resync())
        (snapshot,) = bench.said(Snapshot, G)
        queued[ahead] = snapshot.queued_tokens
    assert queued == {True: LONG - 16, False: LONG - 16}
