"""Stated TTFTs: who is refused at once, and how short prompts come through behind long ones."""

from dataclasses import dataclass, field

import pytest

from common.messages import Accepted, Refused
from tests.unit.prefill.builders import Bench, D, G, T, accept, ended, prefill

# --- early rejection -------------------------------------------------------------------------


def measured() -> Bench:
    """A worker that computes 60 tokens a second."""
    bench = Bench()
    bench.hear(prefill(6, transfer="first"))
    bench.now += 0.1
    bench.done(50)
    bench.hear(ended("first"))
    return bench


def ask(bench: Bench, n: int, *, first: int = 50, transfer: str = T, deadline_s: float) -> None:
    request = prefill(
        tuple(range(first, first + n)),
        transfer=transfer,
        deadline_s=deadline_s,
        refuse_if_late=True,
    )
    bench.hear(request)


def refused(bench: Bench) -> tuple[str, float | None, float | None]:
    (answer,) = bench.said(Refused, G)
    predicted_s = answer.predicted_ttft_s
    return answer.reason, answer.retry_after_s, predicted_s and round(predicted_s, 6)


def test_a_prompt_that_would_miss_its_deadline_is_refused_at_once() -> None:
    bench = measured()
    ask(bench, 12, deadline_s=0.19)
    text = "first token predicted in 0.20 s, owed in 0.19 s"
    assert refused(bench) == (text, None, 0.2)
    assert bench.notes == []
    assert bench.core.idle
    ask(bench, 12, deadline_s=0.2)
    assert bench.said(Accepted, G)


def test_what_is_due_before_it_is_computed_before_it() -> None:
    bench = Bench(chunk_tokens=4, max_num_batched_tokens=4)
    bench.hear(prefill(4, transfer="first"))
    bench.now = 0.1
    bench.done(50)  # 40 a second
    ask(bench, 12, transfer="ahead", deadline_s=0.5)  # 4 of it run, 8 wait
    ask(bench, 12, first=70, deadline_s=0.55)
    assert refused(bench)[2] == 0.6  # 0.1 + (8 + 12) / 40
    ask(bench, 12, first=70, deadline_s=0.45)  # due before those 8
    assert bench.said(Accepted, G)


def test_the_running_pass_is_waited_for() -> None:
    bench = measured()
    bench.hear(prefill((7, 8, 9, 10, 11, 12), transfer="long"))  # 0.1 s
    bench.now += 0.03
    ask(bench, 3, deadline_s=0.119)
    assert refused(bench)[2] == 0.12
    ask(bench, 3, deadline_s=0.121)
    assert bench.said(Accepted, G)


def test_what_is_cached_is_not_counted() -> None:
    bench = measured()
    ask(bench, 7, first=1, deadline_s=0.06)  # 3 of 7: a page of 4 is here
    assert bench.said(Accepted, G)


def test_what_decode_holds_is_not_counted() -> None:
    bench = measured()
    late = prefill(tuple(range(50, 57)), deadline_s=0.06, refuse_if_late=True)
    bench.hear(late)
    assert refused(bench)[2] == pytest.approx(7 / 60, abs=1e-6)
    request = prefill(tuple(range(50, 57)), deadline_s=0.06, refuse_if_late=True, decode_cached=4)
    bench.hear(request)
    assert bench.said(Accepted, G)


def test_whoever_was_promised_an_answer_is_served_however_late() -> None:
    bench = measured()
    bench.hear(prefill(tuple(range(50, 62)), attempt=2, deadline_s=-3.0))
    assert bench.said(Accepted, G)
    assert len(bench.rows[0]) == 12  # and what is left of its time cuts no pass


@pytest.mark.parametrize("stated", [True, False])
def test_predictions_that_were_too_hopeful_are_made_room_for(*, stated: bool) -> None:
    """The passes are as slow where nothing was predicted; then no prediction has erred."""
    bench = measured()
    for n in range(10):  # of the first 0.2 s are predicted, and it takes 0.48
        tokens = tuple(range(100 * n, 100 * n + 12))
        if stated:
            ask(bench, 12, first=tokens[0], transfer=f"a{n}", deadline_s=2.0)
        else:
            bench.hear(prefill(tokens, transfer=f"a{n}"))
        bench.now += 0.48
        bench.done(50)
        bench.hear(ended(f"a{n}"))
    for n in (70, 80, 90):  # 1 runs, 2 are ahead
        tokens = tuple(range(100 * n, 100 * n + 12))
        bench.hear(prefill(tokens, transfer=f"b{n}", deadline_s=0.5))
    ask(bench, 12, first=99_000, deadline_s=2.0)  # in 1.98 s
    assert bool(bench.said(Refused, G)) is stated


def test_passes_that_are_much_smaller_say_nothing() -> None:
    """The 30 tokens come in passes of 16, and would take 3 s: that few were slow does not tell
    that passes will be as short as a quarter of the 2.4 s, 6 tokens at 10 a second."""
    for n_measured, is_refused in ((1, False), (3, False), (4, True)):
        bench = Bench()
        bench.hear(prefill(n_measured, transfer="first"))
        bench.now = 0.1 * n_measured
        bench.done(50)
        ask(bench, 30, deadline_s=2.4)
        assert bool(bench.said(Refused, G)) is is_refused


def test_a_pass_that_was_too_long_is_the_last_one() -> None:
    """Whoever is refused for it alone is expected to come again."""
    bench = measured()
    bench.hear(prefill(tuple(range(100, 148)), transfer="document"))
    assert len(bench.rows[0]) == 16  # 0.27 s, of which 4 tokens would have been short enough
    ask(bench, 2, deadline_s=0.2)
    assert bench.said(Refused, G)
    bench.now += 0.2
    bench.done()
    assert len(bench.rows[0]) == 4


def test_who_could_never_be_in_time_cuts_no_pass() -> None:
    bench = measured()
    bench.hear(prefill(tuple(range(100, 148)), transfer="document"))
    ask(bench, 12, deadline_s=0.2)
    assert bench.said(Refused, G)
    bench.now += 0.2
    bench.done()
    assert len(bench.rows[0]) == 16


# --- short prompts behind a long one ---------------------------------------------------------

PASS_S = 0.005  # what a pass costs, beside its tokens
DOCUMENT, QUESTION = 3000, 16
EVERY_S = 0.3


@dataclass
class Seen:
    """Of a run in virtual time."""

    ttft_s: list[float] = field(default_factory=list[float])  # of the questions
    rows: list[int] = field(default_factory=list[int])  # of every pass
    pass_s: list[float] = field(default_factory=list[float])
    document_s: float = 0.0


def questions_behind_a_document(
    ttft_s: float | None, token_s: float = 0.001, pair_s: float = 0.0
) -> Seen:
    """A question every so often while a document is computed, each with that TTFT stated."""
    bench = Bench(
        n_pages=400,
        page_tokens=16,
        max_model_len=4000,
        max_num_batched_tokens=2048,
        chunk_tokens=512,
        max_waiting=99,
    )
    bench.hear(prefill(200, transfer="before"), prefill(DOCUMENT, transfer="document"))
    bench.hear(accept("before"), accept("document"), sender=D)
    seen, asked, ends_at = Seen(), dict[str, float](), PASS_S + 200 * token_s
    next_at, n = 0.1, 0
    while not seen.document_s:
        if next_at < ends_at:
            bench.now, next_at, n = next_at, next_at + EVERY_S, n + 1
            words = tuple(range(5000 + 100 * n, 5000 + 100 * n + QUESTION))
            asked[f"q{n}"] = bench.now
            bench.hear(prefill(words, transfer=f"q{n}", deadline_s=ttft_s, refuse_if_late=True))
            assert bench.said(Accepted, G)
            bench.hear(accept(f"q{n}"), sender=D)
            continue
        bench.now = ends_at
        rows = bench.plan.n_rows
        seen.rows.append(rows)
        drawn = [draw.transfer for draw in bench.plan.draws]
        bench.done(*(50 for _ in drawn))
        seen.ttft_s += [bench.now - asked[name] for name in drawn if name in asked]
        seen.document_s = bench.now if "document" in drawn else 0.0
        if bench.launched is not None:
            attended = int(bench.plan.positions_T.sum())
            took_s = PASS_S + bench.plan.n_rows * token_s + attended * pair_s
            seen.pass_s.append(took_s)
            ends_at = bench.now + took_s
    return seen


def test_behind_a_document_a_question_has_its_first_token_in_time() -> None:
    """Where a TTFT is stated; else it waits for passes as long as the operator allows."""
    stated = questions_behind_a_document(0.2)
    assert max(stated.ttft_s) < 0.2
    assert len(stated.ttft_s) > 8
    assert max(stated.rows[3:]) <= 48  # 0.2 s / 4 at 1,000 a second, in whole pages
    silent = questions_behind_a_document(None)
    assert max(silent.ttft_s) > 0.5
    assert max(silent.rows) > 500
    assert stated.document_s < 1.35 * silent.document_s  # a pass more costs what a pass costs


def test_the_tighter_the_ttft_the_shorter_the_passes() -> None:
    loose, tight = questions_behind_a_document(0.8), questions_behind_a_document(0.1)
    assert max(loose.ttft_s) < 0.8
    assert max(tight.ttft_s[1:]) < 0.1  # the first came before anything was known
    assert 150 < max(loose.rows[3:]) <= 200
    assert max(tight.rows[3:]) <= 25 + 16


def test_also_behind_a_document_that_is_overdue_itself() -> None:
    """At 250 tokens a second its 3,000 take 12 s, and were owed in 6.5."""
    seen = questions_behind_a_document(0.8, token_s=0.004)
    assert seen.document_s > 12
    assert len(seen.ttft_s) > 40
    assert max(seen.ttft_s[3:]) < 0.8  # those before came behind a pass of 200
    silent = questions_behind_a_document(None, token_s=0.004)
    assert max(silent.ttft_s) > 2
    assert seen.document_s < 1.35 * silent.document_s


def test_the_deeper_a_document_the_shorter_its_chunks() -> None:
    """Its last tokens cost four times as much as its first."""
    seen = questions_behind_a_document(0.4, pair_s=1e-6)
    assert max(seen.ttft_s[1:]) < 0.4
    assert max(seen.pass_s[3:]) < 0.13  # until passes have shown what depth costs
    assert max(seen.pass_s[len(seen.pass_s) // 2 :]) < 0.1 + 2 * PASS_S
    silent = questions_behind_a_document(None, pair_s=1e-6)
    assert max(silent.pass_s) > 1.5
    assert seen.document_s < 1.35 * silent.document_s
