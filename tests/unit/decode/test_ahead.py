"""The next pass is planned while one is computed: what it names, what it leaves, what drops out."""

import numpy as np
import pytest

from common.engine.events import Launch, Note
from common.engine.plan import PassPlan
from common.errors import InvariantBroken
from common.messages import Failed, Heartbeat, Listed, Phase
from common.params import FinishReason
from tests.unit.decode.builders import Bench, Blind, G, T, ended, expect, run

STEP_S = 0.01


def done(bench: Bench, *tokens: int) -> None:
    """The running pass took its time."""
    bench.now = max(bench.now, bench.began_at + STEP_S)
    bench.done(*tokens)


def plan_ahead(bench: Bench) -> PassPlan:
    """Let time pass until the next pass is planned."""
    assert len(bench.unanswered) == 1
    while len(bench.unanswered) == 1:
        assert bench.wake_at is not None
        assert bench.wake_at < bench.began_at + STEP_S
        bench.tick(bench.wake_at - bench.now)
    return bench.unanswered[1].plan


def decoding(**of: object) -> Bench:
    """One sequence decodes, a pass of it has just begun, and it is known how long that takes."""
    bench = Bench(plan_ahead=True, **of)  # type: ignore[arg-type]
    bench.decoding(expect(6, max_tokens=9, end=(0,)), 0, 1)
    done(bench, 51)
    assert len(bench.unanswered) == 1
    return bench


def test_the_next_pass_names_the_token_that_is_not_read_yet() -> None:
    bench = decoding()
    plan = plan_ahead(bench)
    assert plan.unread_rows_U.tolist() == [0]
    assert plan.unread_draws_U.tolist() == [0]
    assert plan.positions_T.tolist() == [8]
    assert plan.len_B.tolist() == [9]
    (draw,) = plan.draws
    assert (draw.index, draw.outputs, draw.row) == (3, (50, 51), 0)
    done(bench, 52)
    assert bench.runs == [run(2, 52)]
    assert bench.plan is plan
    done(bench, 53)
    assert bench.runs == [run(3, 53)]


def test_it_is_planned_a_little_before_the_running_one_should_end() -> None:
    bench = decoding()
    bench.tick(0.5 * STEP_S)
    assert len(bench.unanswered) == 1
    bench.tick(0.45 * STEP_S)
    assert len(bench.unanswered) == 2


def test_whoever_arrives_meanwhile_is_in_it() -> None:
    bench = decoding()
    bench.tick(0.5 * STEP_S)
    bench.hear(expect(3, transfer="u", prefill=None))
    assert not bench.did(Launch)
    plan = plan_ahead(bench)
    assert plan.start_B1.tolist() == [0, 1, 4]
    assert plan.tokens_T.tolist() == [0, 1, 2, 3]
    assert plan.unread_rows_U.tolist() == [0]


def test_a_pass_that_ends_early_is_followed_at_once() -> None:
    bench = decoding()
    bench.now += 0.5 * STEP_S
    bench.done(52)
    assert len(bench.unanswered) == 1
    assert bench.plan.tokens_T.tolist() == [52]
    assert not len(bench.plan.unread_rows_U)


def test_nothing_is_planned_past_an_end_that_is_known_beforehand() -> None:
    bench = Bench(plan_ahead=True)
    bench.decoding(expect(6, max_tokens=3), 0, 1)
    done(bench, 51)
    bench.tick(0.99 * STEP_S)
    assert len(bench.unanswered) == 1
    done(bench, 52)
    assert bench.runs == [run(2, 52, finish=FinishReason.LENGTH)]
    assert bench.launched is None


def test_a_row_in_vain_is_dropped_and_its_pages_wait_for_it() -> None:
    bench = decoding()
    plan_ahead(bench)
    done(bench, 0)
    assert bench.runs == [run(2, 0, finish=FinishReason.STOP)]
    assert bench.pool.n_held == 3
    done(bench, 77)
    assert bench.runs == []
    assert bench.pool.n_held == 0
    assert bench.launched is None


def test_an_aborted_one_is_dropped_from_both_passes() -> None:
    bench = decoding()
    plan_ahead(bench)
    bench.hear(ended())
    done(bench, 52)
    assert bench.runs == []
    assert bench.pool.n_held == 3
    done(bench, 53)
    assert bench.runs == []
    assert bench.pool.n_held == 0


def test_a_pass_that_raises_fails_those_in_the_next_one_too() -> None:
    bench = decoding()
    plan_ahead(bench)
    bench.raised("broken")
    assert [f.transfer for f in bench.said(Failed, G)] == [T]
    bench.raised("reads what was not drawn")
    assert bench.said(Failed) == []
    assert bench.pool.n_held == 0


def test_credit_counts_what_is_not_read_yet() -> None:
    bench = decoding()
    row = Listed(T, 1, Phase.DECODING, ((0, 2),))
    bench.hear(Heartbeat(transfers=(row,), credit_tokens=1))
    bench.tick(0.99 * STEP_S)
    assert len(bench.unanswered) == 1
    done(bench, 52)
    assert bench.launched is None
    bench.hear(Heartbeat(transfers=(row,), credit_tokens=9))
    assert len(bench.unanswered) == 1


def test_samples_of_one_prompt_go_on_when_it_is_computed() -> None:
    bench = decoding()
    bench.hear(expect(3, transfer="u", prefill=None, samples=2))
    plan_ahead(bench)
    done(bench, 52)
    bench.hear(expect(4, transfer="v", prefill=None))
    bench.now = bench.began_at + 0.99 * STEP_S
    bench.take()
    done(bench, 53, 60, 61)
    while len(bench.plan.draws) < 4:
        done(bench, *(70 for _ in bench.plan.draws))
    assert {(d.transfer, d.sample) for d in bench.plan.draws} >= {("u", 0), ("u", 1)}


def test_nobody_gives_way_to_what_is_planned_ahead() -> None:
    bench = Bench(n_pages=8, cache=False, foresight=Blind(), plan_ahead=True)
    for name in ("t1", "t2"):
        bench.hear(expect(8, transfer=name, prefill=None, max_tokens=13))
        done(bench, *(50 for _ in bench.plan.draws))
    preempted = 0
    while bench.launched:
        if len(bench.unanswered) == 1:
            bench.now = bench.began_at + 0.99 * STEP_S
            bench.take()
            assert not [n for n in bench.did(Note) if n.name == "preempted"]
        done(bench, *(60 for _ in bench.plan.draws))
        preempted += len([n for n in bench.did(Note) if n.name == "preempted"])
    assert preempted == 1
    assert bench.pool.n_held == 0


def test_without_it_there_is_one_pass_at_a_time() -> None:
    bench = Bench()
    bench.decoding(expect(6, max_tokens=9), 0, 1)
    done(bench, 51)
    bench.tick(0.99 * STEP_S)
    assert len(bench.unanswered) == 1


def test_check_finds_a_table_that_is_not_what_passes_make_of_it() -> None:
    bench = decoding()
    plan_ahead(bench)
    bench.core.check()
    compute = bench.core._compute
    compute.holds.active[0].table.n_ahead += 1
    with pytest.raises(InvariantBroken, match="is not what steps do to it"):
        bench.core.check()


def test_no_plan_before_anything_is_known_of_steps() -> None:
    bench = Bench(plan_ahead=True)
    bench.decoding(expect(6, max_tokens=9), 0, 1)
    bench.tick(0.99 * STEP_S)
    assert len(bench.unanswered) == 1
    assert np.array_equal(bench.plan.tokens_T, [50])
