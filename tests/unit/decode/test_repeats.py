"""A pass may be computed again while its batch stays as it is, and no longer."""

from common.engine.plan import Drawn, PassResult
from common.messages import Heartbeat, Listed, Phase
from common.params import FinishReason
from tests.unit.decode.builders import Bench, Blind, G, P, T, ended, expect, handoff, run

MOST = 10


def bench(*, n_pages: int = 16, plan_ahead: bool = False) -> Bench:
    return Bench(
        n_pages=n_pages,
        most_repeats=MOST,
        plan_ahead=plan_ahead,
        cache=False,
        foresight=Blind(),
    )


def rounds(*drawn: tuple[int, ...]) -> PassResult:
    first, *again = (tuple(Drawn(token=token) for token in one) for one in drawn)
    return PassResult(drawn=first, again=tuple(again))


def test_a_pass_of_those_who_decode_may_be_repeated() -> None:
    one = bench()
    one.decoding(expect(6, max_tokens=30), 1, 2)
    assert one.plan.repeats == MOST
    assert one.plan.tables_BM.shape == (
        1,
        4,
    )  # 7 tokens with KV, and 9 that are drawn before the last


def test_all_that_was_drawn_is_said_and_the_next_pass_goes_on_from_there() -> None:
    one = bench()
    one.decoding(expect(6, max_tokens=30), 1, 2)
    one.done(result=rounds((51,), (52,), (53,)))
    assert one.runs == [run(1, 51, 52, 53)]
    assert one.plan.tokens_T.tolist() == [53]
    assert one.plan.positions_T.tolist() == [9]


def test_an_end_token_ends_it_whatever_was_drawn_after() -> None:
    one = bench()
    one.decoding(expect(6, max_tokens=30, end=(0,)), 1, 2)
    one.done(result=rounds((51,), (0,), (53,)))
    assert one.runs == [run(1, 51, 0, finish=FinishReason.STOP)]
    assert one.pool.n_held == 0


def test_nobody_ends_by_its_length_before_the_last_time() -> None:
    one = bench()
    one.decoding(expect(6, max_tokens=30), 1, 2)
    one.done(51)
    one.decoding(expect(6, transfer="u", max_tokens=5), 3, 4)
    one.done(52)  # what ran as it joined
    assert one.plan.repeats == 4
    one.done(result=rounds((61, 71), (62, 72), (63, 73), (64, 74)))
    assert {r.transfer: r.finish for r in one.runs} == {"t": None, "u": FinishReason.LENGTH}


def test_pages_that_were_not_needed_come_back() -> None:
    one = bench()
    one.decoding(expect(6, max_tokens=30), 1, 2)
    assert one.pool.n_held == 4
    one.hear(expect(6, transfer="u", prefill=None), sender=G)
    one.done(result=rounds((51,), (52,)))  # 8 tokens have KV
    assert one.plan.repeats == 1  # a prompt is in it
    assert one.pool.n_held == 3 + 2


def test_who_joins_or_leaves_changes_the_batch() -> None:
    one = bench(n_pages=40)
    one.decoding(expect(6, max_tokens=30), 1, 2)
    assert not one.core.batch_changes
    one.hear(expect(6, transfer="u", max_tokens=30))
    assert not one.core.batch_changes
    one.hear(handoff(3, 4, transfer="u"), sender=P)
    assert not one.core.batch_changes
    one.pulled()
    assert one.core.batch_changes
    one.done(51)
    assert one.plan.n_rows == 2
    assert not one.core.batch_changes
    one.hear(ended(transfer="u"))
    assert one.core.batch_changes


def test_room_that_is_promised_lets_nobody_draw_far_ahead() -> None:
    one = bench(n_pages=10)
    for page, transfer in enumerate(("t", "u")):
        one.decoding(expect(4, transfer=transfer, max_tokens=20), page)
        one.done(*range(51, 51 + one.plan.n_rows))
    assert one.plan.len_B.tolist() == [7, 5]
    assert one.plan.repeats == MOST  # four pages each
    one.hear(expect(4, transfer="v", max_tokens=20))
    one.done(53, 54)  # v has room now: its prompt's page, and the next
    assert one.plan.len_B.tolist() == [8, 6]
    assert one.plan.repeats == MOST // 2


def test_what_is_planned_ahead_is_not_repeated() -> None:
    one = bench(plan_ahead=True)
    one.decoding(expect(6, max_tokens=30), 1, 2)
    assert one.plan.repeats == 1


def test_a_gateways_credit_is_kept() -> None:
    one = bench()
    one.decoding(expect(6, max_tokens=30), 1, 2)
    row = Listed(T, 1, Phase.DECODING, ((0, 0),))
    one.hear(Heartbeat(transfers=(row,), credit_tokens=4))
    one.done(51)
    assert one.plan.repeats == 2  # 50 and 51 were said, and not acknowledged
