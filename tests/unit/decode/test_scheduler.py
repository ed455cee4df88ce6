from dataclasses import replace

import pytest

from common.messages import Limits, Resume
from decode.scheduler import (
    MAX_PASSED,
    Budget,
    Loss,
    Need,
    Refusal,
    Room,
    fits,
    in_order,
    need,
    refusal,
    retry_after_s,
    turn,
    turns,
    victim,
    whole_pages,
    whole_tokens,
)
from decode.state import Sample, Table, Transfer
from tests.unit.decode.builders import G, expect

LIMITS = Limits(
    n_pages=16, page_tokens=4, max_model_len=64, max_num_seqs=4, max_num_batched_tokens=64,
    max_waiting=2,
)  # fmt: skip
ROOM = Room(available_pages=10, claimed_pages=2, rest_pages=3, n_seqs=1, max_num_seqs=4)
BUDGET = Budget(budget_tokens=16, chunk_tokens=6, max_num_seqs=4)


def transfer(arrival: int = 0, n_samples: int = 1, **fields: int) -> Transfer:
    request = expect(samples=n_samples, **fields)  # type: ignore[arg-type]  ints only
    made = Transfer(request, G, arrival, whole_pages(request, 4))
    made.samples = [Sample(made, s.sample, 0, s.outputs) for s in request.samples]
    return made


def sample(arrival: int, *, gap: int = 1, n_prompt: int = 20) -> Sample:
    (made,) = transfer(arrival, prompt=n_prompt).samples
    made.table = Table(n_kv=n_prompt - gap)
    return made


# --- room ------------------------------------------------------------------------------------


def test_the_last_token_needs_no_page() -> None:
    assert whole_tokens(expect(6, max_tokens=3)) == 9
    assert whole_pages(expect(6, max_tokens=3), 4) == 2
    assert whole_pages(expect(6, max_tokens=4), 4) == 3


def test_max_tokens_counts_the_outputs_of_earlier_attempts() -> None:
    assert whole_tokens(expect(6, max_tokens=5, samples=(Resume(0, (1, 2, 3)),))) == 11


@pytest.mark.parametrize(
    ("n_prompt", "max_tokens", "n_samples", "shared", "expected"),
    [
        (6, 4, 1, 0, Need(claim_pages=2, rest_pages=1, n_seqs=1)),
        (6, 4, 1, 1, Need(claim_pages=1, rest_pages=1, n_seqs=1)),  # one page is here
        (8, 4, 1, 0, Need(claim_pages=3, rest_pages=0, n_seqs=1)),  # the next token needs a page
        (8, 1, 1, 0, Need(claim_pages=2, rest_pages=0, n_seqs=1)),  # there is no next token
        (6, 4, 5, 0, Need(claim_pages=6, rest_pages=1, n_seqs=5)),  # a last page for each
        (6, 1, 5, 0, Need(claim_pages=2, rest_pages=0, n_seqs=5)),
        (6, 4, 40, 0, Need(claim_pages=15, rest_pages=1, n_seqs=40)),  # all that the pool has
    ],
)
def test_what_a_request_needs(
    n_prompt: int, max_tokens: int, n_samples: int, shared: int, expected: Need
) -> None:
    asked = transfer(prompt=n_prompt, max_tokens=max_tokens, n_samples=n_samples)
    assert need(asked, n_prompt, n_samples, shared=shared, limits=LIMITS) == expected


@pytest.mark.parametrize(
    ("claim_pages", "rest_pages", "n_seqs", "expected"),
    [
        (5, 0, 1, True),  # 10 available - 2 claimed - 3 kept for the one that needs most
        (6, 0, 1, False),
        (4, 4, 1, True),  # now the newcomer needs most
        (5, 4, 1, False),
        (1, 0, 4, True),  # 4 sequences in a pass, and one more on its way
        (1, 0, 5, False),
    ],
)
def test_room_is_kept_for_one_sequence_to_finish(
    claim_pages: int, rest_pages: int, n_seqs: int, *, expected: bool
) -> None:
    asked = Need(claim_pages=claim_pages, rest_pages=rest_pages, n_seqs=n_seqs)
    assert fits(asked, ROOM) is expected


def test_one_request_alone_may_have_any_number_of_samples() -> None:
    assert fits(Need(claim_pages=1, rest_pages=0, n_seqs=128), replace(ROOM, n_seqs=0))


def test_recovering_before_new_and_first_come_first_served() -> None:
    queue = [transfer(0), transfer(1), transfer(2, attempt=2), transfer(3, attempt=3)]
    assert [t.arrival for t in in_order(queue)] == [2, 3, 0, 1]


def test_smallest_volume_first_among_those_that_came_at_once() -> None:
    queue = [transfer(n) for n in range(3)]
    for asked, volume in zip(queue, (30, 10, 20), strict=True):
        asked.turn = turn(5, volume, n_pages=16)
    assert [t.arrival for t in in_order(queue)] == [1, 2, 0]


def test_nobody_is_passed_after_its_turn() -> None:
    large = turn(5, 30, n_pages=16)
    assert large == 5 + MAX_PASSED * 30 / 16
    assert turn(4 + MAX_PASSED, 10, n_pages=16) < large
    assert turn(5 + MAX_PASSED * 2, 0, n_pages=16) > large


# --- a pass ----------------------------------------------------------------------------------


def with_gaps(samples: list[Sample]) -> list[tuple[Sample, int]]:
    return [(sample, sample.gap) for sample in samples]


def test_every_sequence_gets_a_token_before_a_prompt_gets_more() -> None:
    ready = [sample(0, gap=20), sample(1), sample(2, gap=20), sample(3)]
    chosen = turns(with_gaps(ready), {G: 99}, BUDGET)
    assert [(s.transfer.arrival, n) for s, n in chosen.rows] == [(0, 6), (1, 1), (2, 2), (3, 1)]


def test_where_nobody_decodes_the_oldest_prompts_have_all_of_a_pass() -> None:
    chosen = turns(with_gaps([sample(0, gap=9), sample(1, gap=20)]), {G: 99}, BUDGET)
    assert [n for _, n in chosen.rows] == [9, 7]


def test_what_may_draw_by_all_of_a_pass_needs_credit() -> None:
    chosen = turns(with_gaps([sample(0, gap=16), sample(1, gap=17)]), {G: 0}, BUDGET)
    assert [s.transfer.arrival for s in chosen.parked] == [0]


def test_the_budget_is_shared_oldest_first() -> None:
    ready = [sample(0), sample(1, gap=20), sample(2, gap=20)]
    chosen = turns(with_gaps(ready), {G: 99}, replace(BUDGET, budget_tokens=8))
    assert [n for _, n in chosen.rows] == [1, 6, 1]


def test_a_prompt_is_not_computed_beyond_its_end() -> None:
    chosen = turns(with_gaps([sample(0, gap=3)]), {G: 99}, BUDGET)
    assert [n for _, n in chosen.rows] == [3]


def test_the_oldest_have_the_seats() -> None:
    ready = [sample(n) for n in range(6)]
    assert len(turns(with_gaps(ready), {G: 99}, BUDGET).rows) == 4
    assert len(turns(with_gaps(ready), {G: 99}, replace(BUDGET, budget_tokens=3)).rows) == 3


def test_without_credit_only_what_draws_nothing_goes_on() -> None:
    ready = [sample(0), sample(1), sample(2, gap=20), sample(3, gap=3)]
    chosen = turns(with_gaps(ready), {G: 1}, BUDGET)
    assert [s.transfer.arrival for s, _ in chosen.rows] == [0, 2]
    assert [s.transfer.arrival for s in chosen.parked] == [1, 3]


def loss(arrival: int, tokens: int, pages: int, left: int) -> Loss:
    return Loss(
        sample(arrival),
        recompute_tokens=tokens,
        cost_s=tokens / 1000,
        free_pages=pages,
        n_left=left,
    )


@pytest.mark.parametrize(
    ("younger", "expected"),
    [
        ([loss(1, 40, 10, 9), loss(2, 40, 10, 9), loss(3, 40, 10, 8)], 2),  # of equals, the younger
        ([loss(1, 40, 10, 9), loss(2, 40, 10, 8)], 1),  # the later to end by itself
        ([loss(1, 39, 10, 9), loss(2, 40, 10, 9)], 1),  # less to compute again
        ([loss(1, 40, 11, 9), loss(2, 40, 10, 9)], 1),  # more pages
        ([loss(1, 40, 10, 9), loss(2, 0, 2, 1)], 2),  # nothing to compute again
        ([loss(1, 40, 10, 9), loss(2, 40, 0, 9)], 1),  # others keep all its pages
    ],
)
def test_the_cheapest_to_lose_gives_way(younger: list[Loss], expected: int) -> None:
    loser = victim(younger, [])
    assert loser is not None
    assert loser.sample.transfer.arrival == expected


def test_the_oldest_gives_way_to_nobody() -> None:
    assert victim([], []) is None


def test_a_parked_one_gives_way_first_whatever_its_age() -> None:
    parked = [loss(0, 9, 9, 9), loss(1, 9, 9, 9)]
    assert victim([loss(3, 0, 9, 9)], parked) is parked[1]


# --- refusals --------------------------------------------------------------------------------


def test_what_never_fits_is_refused_for_good() -> None:
    assert refusal(expect(60, max_tokens=4), [], LIMITS, 0.0) is None
    assert refusal(expect(60, max_tokens=5), [], LIMITS, 0.0) == Refusal(
        "65 tokens of 64 that fit the context", None
    )
    small = replace_limits(n_pages=5)
    assert refusal(expect(17, max_tokens=4), [], small, 0.0) is None
    assert refusal(expect(17, max_tokens=5), [], small, 0.0) == Refusal(
        "6 pages of 5 that the KV cache has", None
    )


def test_what_nobody_should_ask_for_is_refused() -> None:
    assert refusal(expect(()), [], LIMITS, 0.0) == Refusal("nothing to compute", None)
    assert refusal(expect(samples=()), [], LIMITS, 0.0) == Refusal("nothing to compute", None)
    two = (Resume(0, (1,)), Resume(1, (2,)))
    assert refusal(expect(samples=two), [], LIMITS, 0.0) == Refusal(
        "prefill computes the outputs of a single sample only", None
    )
    assert refusal(expect(samples=two, prefill=None), [], LIMITS, 0.0) is None


def test_a_full_queue_says_when_to_come_again() -> None:
    queue = [transfer(0), transfer(1)]
    assert refusal(expect(), queue[:1], LIMITS, 0.0) is None
    assert refusal(expect(), queue, LIMITS, 0.0) == Refusal("2 requests of 2 wait", 1.0)


def test_the_estimate_is_what_the_queue_may_say_and_bounded() -> None:
    queue = [transfer(n, n_samples=3, max_tokens=20) for n in range(2)]
    assert retry_after_s(queue, LIMITS, 0.1) == pytest.approx(120 / 4 * 0.1)
    assert retry_after_s(queue, LIMITS, 100.0) == 60.0


def replace_limits(**fields: int) -> Limits:
    return Limits(**{name: getattr(LIMITS, name) for name in LIMITS.__struct_fields__} | fields)
