"""Stated TTFTs where prompts are computed here: who is refused at once, and told what."""

import msgspec
import pytest

from common.engine.pace import Pace
from common.engine.plan import Drawn, PassResult
from common.messages import Accepted, Expect, Refused
from decode.lateness import IDLE, Load, prompts_s
from tests.unit.decode.builders import Bench, G, ended, expect

BASE_S, ROW_S = 0.004, 0.001


def done(bench: Bench) -> None:
    """The running pass took what its rows cost."""
    drawn = tuple(Drawn(token=50) for _ in bench.plan.draws)
    bench.done(result=PassResult(drawn=drawn, seconds=BASE_S + ROW_S * bench.plan.n_rows))


def owed(ttft_s: float, prompt: int = 150, transfer: str = "t") -> Expect:
    plain = expect(prompt, transfer=transfer, prefill=None, max_tokens=200)
    return msgspec.structs.replace(plain, deadline_s=ttft_s, refuse_if_late=True)


def worker(*, largest: int = 200, cache: bool = False) -> Bench:
    """It is idle, and has computed a prompt of that length."""
    bench = Bench(
        n_pages=400,
        max_model_len=400,
        max_num_batched_tokens=256,
        chunk_tokens=128,
        cache=cache,
    )
    bench.hear(expect(largest, transfer="before", prefill=None, max_tokens=100))
    for _ in range(10):
        done(bench)
    bench.hear(ended("before"))
    while bench.unanswered:
        done(bench)
    return bench


def refused(bench: Bench) -> Refused:
    (answer,) = bench.said(Refused, G)
    return answer


def test_a_prompt_that_takes_too_long_by_itself_need_not_come_again() -> None:
    bench = worker()
    bench.hear(owed(0.15))
    assert refused(bench).retry_after_s is None
    assert refused(bench).predicted_ttft_s == pytest.approx(0.154, rel=0.01)
    assert bench.core.idle
    bench.hear(owed(0.16))
    assert bench.said(Accepted, G)


def test_one_that_is_late_for_what_is_ahead_may_come_again() -> None:
    bench = worker()
    for n in range(8):
        bench.hear(expect(200, transfer=f"a{n}", prefill=None, max_tokens=2))
    bench.hear(owed(0.2))
    assert refused(bench).predicted_ttft_s == pytest.approx(1.5, rel=0.15)
    assert refused(bench).retry_after_s == pytest.approx(1.3, rel=0.15)


def test_beside_answers_a_prompt_takes_more_passes() -> None:
    bench = worker()
    bench.hear(expect(3, transfer="answer", prefill=None, max_tokens=100))
    done(bench)
    bench.hear(owed(0.157))  # two passes, a row of each is the answer's: 0.160
    assert refused(bench).retry_after_s == 1.0


def test_what_is_cached_is_not_counted() -> None:
    bench = worker(cache=True)
    bench.hear(owed(0.05))
    assert bench.said(Accepted, G)


def test_where_no_pass_was_comparable_nobody_is_refused() -> None:
    for largest, is_refused in ((30, False), (40, True)):
        bench = worker(largest=largest)
        bench.hear(owed(0.01))
        assert bool(bench.said(Refused, G)) is is_refused


def test_whoever_was_promised_an_answer_is_served_however_late() -> None:
    bench = worker()
    bench.hear(msgspec.structs.replace(owed(-3.0), refuse_if_late=False))
    assert bench.said(Accepted, G)


def test_a_prediction_counts_passes_rows_and_context() -> None:
    pace = Pace()
    for rows, context in ((1, 1), (1, 300), (50, 60), (100, 100), (100, 400), (200, 200)) * 2:
        pace.learn(rows, context, 0.01 + 1e-3 * rows + 1e-5 * context)
    assert prompts_s(pace, (0, 100), IDLE, 100) == pytest.approx(0.01 + 0.1 + 0.001, rel=1e-3)
    # Two passes of 100 rows: they end at 100 and at 200.
    assert prompts_s(pace, (0, 200), IDLE, 100) == pytest.approx(0.22 + 0.003, rel=1e-3)
    load = Load([(0, 100)], 10, 500)  # two passes, each beside 10 rows of 500 tokens
    assert prompts_s(pace, (0, 100), load, 100) == pytest.approx(0.24 + 0.002 + 0.01, rel=1e-3)


def test_predictions_that_were_too_hopeful_are_made_room_for() -> None:
    bench = worker()
    bench.now = 1.0  # when nothing was owed yet, it was 0
    for n in range(10):  # 0.154 s is predicted, and it takes twice as long
        bench.hear(owed(0.5, transfer=f"a{n}"))
        bench.now += 0.308
        done(bench)
        bench.hear(ended(f"a{n}"))
        while bench.unanswered:
            done(bench)
    bench.hear(owed(0.16, transfer="alone"))  # nothing is ahead: it is let in
    assert not bench.said(Refused, G)
    bench.hear(owed(0.2, transfer="behind"))  # 0.16 s are predicted: it would have been let in
    assert refused(bench).predicted_ttft_s == pytest.approx(0.162, rel=0.01)


def test_the_same_is_let_in_where_predictions_held() -> None:
    bench = worker()
    bench.hear(owed(0.16, transfer="alone"))
    bench.hear(owed(0.2, transfer="behind"))
    assert not bench.said(Refused, G)
