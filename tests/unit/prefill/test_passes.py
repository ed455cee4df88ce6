"""Passes: what they hold, how they fail, and whose pages are taken back."""

import numpy as np
import pytest

from common.engine.events import StepDone, StepFailed
from common.engine.plan import Drawn, PassResult
from common.errors import InvariantBroken
from common.ids import StepId
from common.messages import Failed, FailureKind, Handoff, Snapshot
from common.params import TokenLogprob
from tests.unit.prefill.builders import Bench, D, G, T, accept, ended, params, prefill, release


def test_chunks_are_batched_under_the_budget() -> None:
    bench = Bench(max_num_batched_tokens=8, chunk_tokens=5)
    bench.hear(prefill((10, 11, 12, 13, 14, 15), transfer="a"), prefill((20, 21), transfer="b"))
    assert bench.rows == [[20, 21], [10, 11, 12, 13, 14]]  # the shorter is due first
    assert bench.plan.len_B.tolist() == [2, 5]
    assert [d.transfer for d in bench.plan.draws] == ["b"]
    bench.done(50)
    assert bench.rows == [[15]]
    plan = bench.plan
    assert plan.positions_T.tolist() == [5]
    assert (plan.slots_T // 4).tolist() == [plan.tables_BM[0, 1]]
    assert (plan.slots_T % 4).tolist() == [1]


def test_a_prompts_pages_are_reserved_whole_with_its_first_chunk() -> None:
    bench = Bench(chunk_tokens=4)
    bench.hear(prefill(14))
    assert bench.pool.n_held == 4


def test_a_prompt_without_room_waits_for_it() -> None:
    bench = Bench(n_pages=4)
    bench.hear(prefill(13, deadline_s=0.1), prefill((90, 91, 92, 93, 94), transfer="u"))
    assert len(bench.rows) == 1
    bench.done(50)
    assert bench.launched is None
    bench.hear(accept(), sender=D)
    assert bench.launched is None
    bench.hear(release(), sender=D)
    assert bench.rows == [[90, 91, 92, 93, 94]]


def test_a_pass_that_raised_fails_its_prompts_and_no_others() -> None:
    bench = Bench(max_num_batched_tokens=6)
    bench.computed(prefill((7, 8), transfer="before"), 50)
    bench.hear(prefill((1, 2, 3)), prefill((4, 5, 6), transfer="u"), prefill((9,), transfer="w"))
    assert [row[0] for row in bench.rows] == [9, 1, 4]
    bench.raised("no memory")
    failed = [(f.transfer, f.kind, f.detail, f.peer) for f in bench.said(Failed, G)]
    kind = FailureKind.COMPUTE
    assert failed == [(t, kind, "no memory", None) for t in ("w", T, "u")]
    assert bench.pool.n_held == 1  # that of the one before
    bench.hear(ended(), ended("u"), ended("w"), ended("before"))
    assert bench.core.idle


def test_what_a_failed_pass_wrote_is_not_found() -> None:
    bench = Bench(chunk_tokens=4)
    bench.hear(prefill(9))
    bench.done()
    bench.raised("no memory")
    bench.hear(prefill(9, attempt=2))
    assert bench.rows == [[5, 6, 7, 8]]


def test_pages_of_an_ended_prompt_wait_for_the_pass_that_writes_them() -> None:
    bench = Bench(n_pages=4)
    bench.hear(prefill(14))
    bench.hear(ended())
    bench.hear(prefill((90,), transfer="u"))
    assert bench.pool.n_held == 4
    bench.done(50)
    assert not bench.runs
    assert bench.rows == [[90]]


def test_a_final_that_belongs_to_no_pass_is_a_bug() -> None:
    bench = Bench()
    with pytest.raises(InvariantBroken, match="step 0"):
        bench.take(StepDone(StepId(0), PassResult()))
    bench.hear(prefill(3))
    with pytest.raises(InvariantBroken, match="step 7"):
        bench.take(StepFailed(StepId(7), "?"))


# --- whose pages are taken back --------------------------------------------------------------


def crowded() -> Bench:
    """A pool of 8: two computed prompts, not accepted, hold a page each; t needs all."""
    bench = Bench(n_pages=8, max_model_len=40)
    for name, token in (("a", 70), ("b", 80)):
        bench.computed(prefill((token, token + 1, token + 2), transfer=name), 50)
    bench.hear(prefill(32, deadline_s=1.0))
    assert bench.launched is None
    return bench


def test_a_prompt_that_decode_waits_for_takes_pages_of_unaccepted_ones() -> None:
    bench = crowded()
    bench.hear(accept(), sender=D)
    assert bench.rows == [list(range(1, 17))]
    assert bench.notes == ["context_begin"]
    bench.done()
    bench.done(50)
    assert len(bench.said(Handoff, D)) == 1
    bench.hear(release(), sender=D)
    assert sorted(bench.rows) == [[70, 71, 72], [80, 81, 82]]  # those set back, again
    bench.done(50, 50)
    assert [(run.transfer, run.tokens) for run in bench.runs] == [("a", (50,)), ("b", (50,))]


def test_while_there_is_other_work_it_takes_them_when_it_is_overdue() -> None:
    bench = Bench(n_pages=8, chunk_tokens=2)
    bench.computed(prefill((70, 71), transfer="a"), 50)
    bench.hear(prefill((80, 81, 82, 83, 84, 85, 86), transfer="x"), accept("x"))
    bench.hear(accept("x"), sender=D)
    bench.hear(prefill(24, deadline_s=1.0))  # 6 pages of the 5 that are left
    bench.hear(accept(), sender=D)
    bench.done()
    assert bench.rows == [[82, 83]]
    bench.now = 1.0
    bench.done()
    assert bench.rows == [[84, 85], [1, 2]]


def test_what_was_set_back_is_computed_as_if_for_the_first_time() -> None:
    """In two passes again, its scores once."""
    bench = Bench(n_pages=8, max_model_len=40, chunk_tokens=4)
    scores = tuple(TokenLogprob(token, -1.0, 1, (), ()) for token in (71, 72, 73, 74))

    def compute() -> None:
        assert len(bench.rows[0]) == 4
        bench.done(result=PassResult(scores=(scores[:4],)))
        assert bench.runs == []
        bench.done(result=PassResult(drawn=(Drawn(token=50),)))

    bench.hear(prefill((70, 71, 72, 73, 74), transfer="a", sampling=params(prompt_logprobs=0)))
    compute()
    (first,) = bench.runs
    bench.hear(prefill(32, deadline_s=1.0))
    bench.hear(accept(), sender=D)
    while T not in [draw.transfer for draw in bench.plan.draws]:
        bench.done()
    bench.done(50)
    bench.hear(release(), sender=D)
    compute()
    assert bench.runs == [first]
    assert first.prompt_logprobs == (None, *scores)


def test_nobody_is_set_back_where_that_would_not_do() -> None:
    bench = Bench(n_pages=8, max_model_len=40)
    bench.computed(prefill((70, 71, 72), transfer="a"), 50)
    bench.computed(prefill((80, 81, 82), transfer="b"), 50)
    bench.hear(accept("a"), sender=D)
    bench.hear(prefill(32))
    bench.hear(accept(), sender=D)
    assert bench.launched is None
    bench.hear(accept("b"), sender=D)
    assert len(bench.said(Handoff, D)) == 1  # b has its pages still
    bench.hear(release("a"), release("b"), sender=D)
    assert bench.rows == [list(range(1, 17))]


def test_one_that_decode_does_not_wait_for_takes_nothing() -> None:
    bench = crowded()
    bench.now = 5.0
    bench.take()
    assert bench.launched is None


def test_accepted_ones_keep_their_pages() -> None:
    bench = crowded()
    bench.hear(accept("a"), accept("b"), accept(), sender=D)
    bench.now = 5.0
    bench.take()
    assert bench.launched is None
    bench.hear(release("a"), release("b"), sender=D)
    assert bench.rows == [list(range(1, 17))]


def test_one_that_is_set_back_can_be_accepted_and_is_owed_in_turn() -> None:
    bench = crowded()
    bench.hear(accept(), sender=D)
    bench.hear(accept("a"), sender=D)
    (ready,) = bench.told(D)
    assert (ready.transfer, ready.pages) == ("a", ())  # pyright: ignore[reportAttributeAccessIssue] PagesReady
    bench.done()
    bench.done(50)
    bench.hear(release(), sender=D)
    bench.done(*(50 for _ in bench.plan.draws))
    assert [h.transfer for h in bench.said(Handoff, D)] == ["a"]


def test_pages_that_are_shared_do_not_count_as_freed() -> None:
    """t needs 15 pages of 16. b has 2, but frees one: a must give way, too."""
    bench = Bench()
    for name in ("a", "b"):
        bench.computed(prefill((70, 71, 72, 73, 74), transfer=name), 50)
    assert bench.pool.n_held == 3
    bench.hear(prefill(60))
    bench.hear(accept(), sender=D)
    assert len(bench.rows) == 1


# --- what is told of load --------------------------------------------------------------------


def snapshot(bench: Bench) -> Snapshot:
    (message,) = bench.said(Snapshot, G)
    return message


def test_snapshots_tell_load_and_prefixes() -> None:
    bench = Bench(chunk_tokens=4)
    first = Bench(peers=(G,)).said(Snapshot, G)
    assert [(s.sequence, s.whole, s.free_pages, s.stored) for s in first] == [(1, True, 16, ())]
    bench.hear(prefill(9), prefill(9, transfer="u"))
    bench.now = 0.1
    bench.done()
    told = snapshot(bench)
    assert (told.whole, told.running, told.waiting) == (False, 1, 1)
    assert told.queued_tokens == 1 + 9  # beyond what the running pass adds
    assert len(told.stored) == 1
    assert told.free_pages == 13
    assert (told.step_s, told.tokens_per_s) == (0.1, 0.0)  # so few rows tell no rate


def test_load_is_not_counted_more_often_than_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    counted: list[float] = []
    load = bench.core._load
    monkeypatch.setattr(bench.core, "_load", lambda: (counted.append(bench.now), load())[1])
    for step in range(100):
        bench.now = step * 0.001
        bench.hear(prefill(3, transfer=f"t{step}"))
    assert len(counted) <= 3


def test_pages_are_conserved_at_random() -> None:
    """A storm of everything; every step is checked, and in the end nothing is held."""
    draw = np.random.default_rng(0)
    bench = Bench(n_pages=12, chunk_tokens=5, max_num_batched_tokens=9, max_waiting=50)
    for n in range(300):
        bench.now += 0.02
        name = f"t{draw.integers(20)}"
        attempt = int(n // 30)
        match int(draw.integers(6)):
            case 0 | 1:
                bench.hear(prefill(int(draw.integers(1, 40)), transfer=name, attempt=attempt))
            case 2:
                bench.hear(accept(name, attempt), sender=D)
            case 3:
                bench.hear(release(name, attempt), sender=D)
            case 4:
                bench.hear(ended(name, attempt))
            case _ if bench.launched is not None:
                bench.done(*(50 for _ in bench.plan.draws))
            case _:
                bench.take()
    for n in range(20):
        bench.hear(ended(f"t{n}", 99))
    if bench.launched is not None:
        bench.done(*(50 for _ in bench.plan.draws))
    assert bench.core.idle
    assert bench.pool.n_held == 0
