from itertools import pairwise

import numpy as np
from msgspec import structs

from common.engine.events import Launch, Note
from common.engine.plan import Draw, Drawn, PassResult, ScorePrompt
from common.messages import Failed, Resume, TokenRun
from common.params import FinishReason, TokenLogprob
from tests.unit.decode.builders import Bench, Blind, T, U, ended, expect, run


def rows(bench: Bench) -> list[list[int]]:
    """Token ids of each sequence in the running pass."""
    plan = bench.plan
    starts = plan.start_B1.tolist()
    return [plan.tokens_T[a:b].tolist() for a, b in pairwise(starts)]


def finish(bench: Bench, token: int = 50) -> None:
    """Run until nothing runs."""
    while bench.launched:
        bench.done(*(token for _ in bench.plan.draws))


def test_a_decode_step_feeds_the_newest_token_to_its_place() -> None:
    bench = Bench()
    bench.decoding(expect(6, max_tokens=9), 0, 1)
    table = bench.plan.tables_BM[0].tolist()
    request = expect(6, max_tokens=9)
    plan = bench.plan
    assert plan.tokens_T.tolist() == [50]
    assert plan.positions_T.tolist() == [6]
    assert plan.slots_T.tolist() == [table[1] * 4 + 2]
    assert plan.start_B1.tolist() == [0, 1]
    assert plan.len_B.tolist() == [7]
    assert plan.draws == (
        Draw(
            transfer=T,
            attempt=1,
            sample=0,
            index=1,
            row=0,
            params=request.params,
            prompt=request.prompt,
            outputs=(50,),
        ),
    )
    assert (plan.scores, plan.copies) == ((), ())
    assert {plan.tokens_T.dtype, plan.positions_T.dtype, plan.slots_T.dtype} == {np.dtype("int64")}
    bench.done(51)
    assert bench.runs == [run(1, 51)]
    bench.done(52)
    assert bench.plan.positions_T.tolist() == [8]
    assert bench.plan.tables_BM.shape == (1, 3)


def test_there_is_one_pass_at_a_time() -> None:
    bench = Bench()
    bench.decoding(expect(6, max_tokens=9), 0, 1)
    bench.hear(expect(6, transfer="u", prefill=None))
    assert not bench.did(Launch)
    bench.done(51)
    assert rows(bench) == [[51], [1, 2, 3, 4, 5, 6][4:]]  # its first page is here


def test_prompts_beside_who_decodes_get_one_chunk_and_alone_all_of_a_pass() -> None:
    bench = Bench(chunk_tokens=5, max_num_batched_tokens=16, cache=False)
    bench.hear(expect(3, prefill=None, max_tokens=4))
    bench.hear(expect(12, transfer="u", prefill=None, max_tokens=2))
    bench.done(60)
    assert rows(bench) == [[60], [1, 2, 3, 4, 5]]
    assert [(d.row, d.index) for d in bench.plan.draws] == [(0, 1)]
    bench.done(61)
    assert rows(bench) == [[61], [6, 7, 8, 9, 10]]
    bench.hear(ended())
    bench.done(62)
    assert rows(bench) == [[11, 12]]
    assert [(d.row, d.index) for d in bench.plan.draws] == [(1, 0)]
    bench.hear(expect(20, transfer="v", prefill=None))
    bench.hear(ended("u"))
    bench.done(50)
    assert rows(bench) == [list(range(1, 17))]


def test_the_budget_bounds_a_pass() -> None:
    bench = Bench(chunk_tokens=8, max_num_batched_tokens=10, max_num_seqs=3, cache=False)
    for n in range(4):
        bench.hear(expect(20, transfer=f"t{n}", prefill=None, max_tokens=1))
    bench.done()
    assert [len(row) for row in rows(bench)] == [8, 1, 1]


def test_samples_draw_their_first_tokens_from_one_row() -> None:
    bench = Bench()
    bench.hear(expect(6, samples=3, prefill=None))
    assert rows(bench) == [[1, 2, 3, 4, 5, 6]]
    assert [(d.sample, d.row) for d in bench.plan.draws] == [(0, 5), (1, 5), (2, 5)]
    bench.done(50, 51, 52)
    assert bench.runs == [run(0, 50 + n, sample=n, cached=0) for n in range(3)]
    assert rows(bench) == [[50], [51], [52]]
    assert len(bench.plan.copies) == 2


def test_the_others_go_on_when_the_first_sample_ends_at_once() -> None:
    bench = Bench()
    bench.hear(expect(6, samples=2, prefill=None, end=(0,)))
    bench.done(0, 51)
    assert bench.runs[0].finish is FinishReason.STOP
    assert rows(bench) == [[51]]
    assert bench.plan.copies == ()
    assert bench.plan.tables_BM.shape == (1, 2)


def test_samples_with_outputs_of_their_own_are_computed_one_by_one() -> None:
    samples = (Resume(0, (60,)), Resume(2, ()), Resume(3, (61, 62)))
    bench = Bench(chunk_tokens=16)
    bench.hear(expect(6, attempt=2, samples=samples, prefill=None, max_tokens=9))
    assert rows(bench) == [[1, 2, 3, 4, 5, 6, 60]]
    bench.done(70)
    assert rows(bench) == [[70], [5, 6], [5, 6, 61, 62]]  # they found the first page
    bench.done(71, 72, 73)
    assert [(r.sample, r.index) for r in bench.runs] == [(0, 2), (2, 0), (3, 2)]


def test_a_prefix_that_is_here_is_not_computed() -> None:
    bench = Bench(chunk_tokens=16)
    bench.hear(expect(8, prefill=None, max_tokens=2))
    finish(bench)
    bench.hear(expect(11, transfer="u", prefill=None))
    assert rows(bench) == [[9, 10, 11]]
    bench.done(50)
    assert bench.runs == [run(0, 50, transfer="u", cached=8)]


def test_at_least_the_last_token_is_computed() -> None:
    bench = Bench(chunk_tokens=16)
    bench.hear(expect(8, prefill=None, max_tokens=2))
    finish(bench)
    bench.hear(expect(8, transfer="u", prefill=None))
    assert rows(bench) == [[5, 6, 7, 8]]


def test_an_answer_is_a_prefix_too() -> None:
    bench = Bench(chunk_tokens=16)
    bench.hear(expect(6, prefill=None, max_tokens=4))
    finish(bench, 50)  # the KV of the last of four is never written
    bench.hear(expect((1, 2, 3, 4, 5, 6, 50, 50, 50, 50, 9), transfer="u", prefill=None))
    assert rows(bench) == [[50, 50, 9]]


def test_two_prompts_of_one_prefix_compute_it_once() -> None:
    bench = Bench(max_num_batched_tokens=9)
    bench.hear(expect(10, prefill=None), expect(11, transfer="u", prefill=None))
    assert rows(bench) == [[1, 2, 3, 4, 5, 6, 7, 8]]  # u waits for both pages
    bench.done()
    assert rows(bench) == [[9, 10], [9, 10, 11]]


def test_prompts_without_a_prefix_cache_are_computed_each() -> None:
    bench = Bench(cache=False)
    bench.hear(expect(10, prefill=None), expect(11, transfer="u", prefill=None))
    assert [len(row) for row in rows(bench)] == [10, 11]


def test_prompt_logprobs_compute_the_whole_prompt() -> None:
    bench = Bench(chunk_tokens=4, max_num_batched_tokens=4)
    bench.hear(expect(6, prefill=None, max_tokens=1))
    finish(bench)
    bench.hear(expect(6, transfer="u", prefill=None, prompt_logprobs=2, max_tokens=3))
    assert rows(bench) == [[1, 2, 3, 4]]
    assert bench.plan.scores == (
        ScorePrompt(transfer=U, attempt=1, first_row=0, targets=(2, 3, 4, 5), n_top=2),
    )
    scores = tuple(TokenLogprob(token, -1.0, 1, (), ()) for token in (2, 3, 4, 5, 6))
    bench.done(result=PassResult(scores=(scores[:4],)))
    (score,) = bench.plan.scores
    assert (score.first_row, score.targets) == (0, (6,))
    bench.done(result=PassResult(drawn=(Drawn(token=50),), scores=(scores[4:],)))
    (only,) = bench.runs
    assert only.prompt_logprobs == (None, *scores)
    assert only.cached_tokens == 0
    assert bench.plan.scores == ()


def test_logprobs_travel_with_their_tokens() -> None:
    bench = Bench()
    bench.hear(expect(prefill=None, logprobs=1))
    logprob = TokenLogprob(50, -0.5, 1, (50,), (-0.5,))
    bench.done(result=PassResult(drawn=(Drawn(token=50, logprob=logprob),)))
    assert bench.runs[0].logprobs == (logprob,)


def test_a_prompt_of_one_token_and_pages_of_one_token() -> None:
    bench = Bench(page_tokens=1)
    bench.hear(expect(1, prefill=None, max_tokens=3))
    assert rows(bench) == [[1]]
    bench.done(50)
    assert bench.plan.positions_T.tolist() == [1]
    bench.done(51)
    bench.done(52)
    assert bench.runs == [run(2, 52, finish=FinishReason.LENGTH)]
    assert bench.launched is None


# --- when pages run out ----------------------------------------------------------------------


def two_in_a_pool_for_one_and_a_half() -> Bench:
    bench = Bench(n_pages=8, cache=False, foresight=Blind())
    for name in ("t1", "t2"):
        bench.hear(expect(8, transfer=name, prefill=None, max_tokens=13))
        bench.done(*(50 for _ in bench.plan.draws))
    return bench


def test_the_youngest_gives_way_and_comes_back_with_the_same_tokens() -> None:
    bench = two_in_a_pool_for_one_and_a_half()
    said: dict[str, list[int]] = {"t1": [50, 50], "t2": []}
    names: list[str] = []
    first_rows: list[list[int]] = []
    while bench.launched:
        draws = bench.plan.draws
        first_rows += [row for row in rows(bench) if len(row) > 1]
        bench.done(*(60 + d.index for d in draws))
        for got in bench.runs:
            assert got.index == len(said[got.transfer])
            said[got.transfer] += got.tokens
        names += [f"{n.transfer} {n.name}" for n in bench.did(Note) if "decoding" not in n.name]
    assert said["t2"] == [60 + n for n in range(13)]
    assert names == ["t2 context_end", "t2 preempted", "t2 resumed"]
    assert first_rows[1][:8] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert bench.pool.n_held == 0


def test_one_that_cannot_grow_waits_for_the_older() -> None:
    """It keeps what it has: an older one takes it when it must."""
    bench = Bench(n_pages=10, chunk_tokens=16, cache=False, foresight=Blind())
    bench.hear(expect(8, transfer="t1", prefill=None, max_tokens=13))
    bench.done(50)
    bench.hear(expect(11, transfer="t2", prefill=None, max_tokens=13))
    waits = 0
    while bench.launched:
        waits += len(bench.plan.draws) == 1 and bench.pool.n_available == 0
        bench.done(*(60 for _ in bench.plan.draws))
        assert not [note for note in bench.did(Note) if note.name == "preempted"]
    assert waits == 1
    assert bench.pool.n_held == 0


def test_published_pages_of_a_preempted_sequence_are_found_again() -> None:
    bench = Bench(n_pages=9, chunk_tokens=16, foresight=Blind())
    bench.hear(expect(8, transfer="t1", prefill=None, max_tokens=17))
    bench.done(50)
    bench.hear(expect(tuple(range(20, 28)), transfer="t2", prefill=None, max_tokens=17))
    resumed: list[int] = []
    while bench.launched:
        draws = bench.plan.draws
        bench.done(*(60 for _ in draws))
        if any(n.name == "resumed" for n in bench.did(Note)):
            resumed = rows(bench)[-1]
    assert 0 < len(resumed) < 12


def test_what_a_preempted_prompt_had_scored_is_scored_again() -> None:
    bench = Bench(n_pages=8, chunk_tokens=1, cache=False)
    bench.hear(*(expect(4, transfer=name, prefill=None, max_tokens=9) for name in "ab"))
    while bench.pool.n_held < 4:
        bench.done(*(50 for _ in bench.plan.draws))
    bench.hear(expect(8, transfer="u", prefill=None, max_tokens=2, prompt_logprobs=0))
    names: list[str] = []
    runs: list[TokenRun] = []
    while bench.launched:
        scores = tuple(
            tuple(TokenLogprob(t, 0.0, 1, (), ()) for t in score.targets)
            for score in bench.plan.scores
        )
        drawn = tuple(Drawn(token=50) for _ in bench.plan.draws)
        bench.done(result=PassResult(drawn=drawn, scores=scores))
        runs += [got for got in bench.runs if got.transfer == U and got.index == 0]
        names += [note.name for note in bench.did(Note) if note.transfer == U]
    assert names[:2] == ["preempted", "resumed"]
    (first,) = runs
    assert first.prompt_logprobs is not None
    assert [s and s.token for s in first.prompt_logprobs] == [None, *range(2, 9)]


def test_more_samples_than_the_pool_can_hold_at_once_all_end() -> None:
    bench = Bench(n_pages=4, max_num_seqs=3, max_num_batched_tokens=8)
    bench.hear(expect(6, samples=12, prefill=None, max_tokens=6))
    said: dict[int, list[int]] = {n: [] for n in range(12)}
    while bench.launched:
        bench.done(*(60 + d.sample for d in bench.plan.draws))
        for got in bench.runs:
            said[got.sample] += got.tokens
    assert said == {n: [60 + n] * 6 for n in range(12)}
    bench.hear(ended())
    assert bench.core.idle


def test_who_is_to_be_alone_takes_turns_with_all_the_others() -> None:
    bench = Bench()
    bench.hear(expect((1, 1), transfer="a", prefill=None, max_tokens=9))
    suspect = structs.replace(
        expect((2, 2), transfer="b", prefill=None, max_tokens=9, samples=2), alone=True
    )
    bench.hear(suspect, expect((3, 3), transfer="c", prefill=None, max_tokens=9))
    seen: list[set[str]] = []
    for _ in range(6):
        seen.append({str(draw.transfer) for draw in bench.plan.draws})
        bench.done(*(50 for _ in bench.plan.draws))
    assert seen == [{"a"}, {"b"}, {"a", "c"}, {"b"}, {"a", "c"}, {"b"}]
    assert len(bench.plan.draws) == 2


def test_a_failure_says_whether_somebody_shared_the_pass() -> None:
    bench = Bench()
    bench.hear(expect((1, 1), transfer="a", prefill=None))
    bench.hear(expect((2, 2), transfer="b", prefill=None), expect((3, 3), prefill=None))
    bench.raised("boom")
    assert [failed.alone for failed in bench.said(Failed)] == [True]
    bench.raised("boom")
    assert [failed.alone for failed in bench.said(Failed)] == [False, False]
