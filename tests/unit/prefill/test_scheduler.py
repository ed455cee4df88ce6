from dataclasses import replace

from msgspec import structs

from prefill.pace import Cost, Limit
from prefill.scheduler import (
    MayStart,
    Room,
    due_at,
    order,
    plan,
    to_set_back,
)
from prefill.state import Phase, Prompt
from tests.unit.prefill.prompts import EVEN, computed, prompt, stating

ROOM = Room(
    budget_tokens=100,
    chunk_tokens=40,
    limit=None,
    max_num_seqs=8,
    page_tokens=10,
    available_pages=100,
    unaccepted_pages=0,
    n_pages=100,
    owed_at=0.0,
)


def running(name: str, n: int, done: int) -> Prompt:
    made = prompt(name, n)
    made.phase, made.done, made.planned = Phase.RUNNING, done, done
    return made


def anybody(_: Prompt) -> bool:
    return True


def ends(
    queue: list[Prompt], room: Room = ROOM, may_start: MayStart = anybody
) -> list[tuple[str, int]]:
    return [(chunk.prompt.transfer, chunk.end) for chunk in plan(queue, room, may_start)]


def set_back(queue: list[Prompt], room: Room, may_start: MayStart = anybody) -> list[str]:
    return [victim.transfer for victim in to_set_back(queue, room, may_start)]


def test_a_prompt_is_cut_to_the_chunk_and_the_pass_to_the_budget() -> None:
    queue = [prompt("a", 90), prompt("b", 30), prompt("c", 90)]
    assert ends(queue) == [("a", 40), ("b", 30), ("c", 30)]


def test_a_running_prompt_goes_on_where_it_is() -> None:
    assert ends([running("a", 90, 40)]) == [("a", 80)]
    assert ends([running("a", 90, 80)]) == [("a", 90)]


def alone(made: Prompt) -> Prompt:
    made.request = structs.replace(made.request, alone=True)
    return made


def test_who_is_to_be_alone_has_a_pass_of_its_own_when_it_is_its_turn() -> None:
    queue = [prompt("a"), alone(prompt("b")), prompt("c"), alone(prompt("d"))]
    assert ends(queue) == [("a", 30), ("c", 30)]
    assert ends(queue[1:]) == [("b", 30)]
    computed = running("a", 30, 30)
    computed.phase = Phase.COMPUTED
    assert ends([computed, *queue[1:]]) == [("b", 30)]


def test_where_others_cannot_run_who_is_to_be_alone_does_and_the_other_way_round() -> None:
    queue = [prompt("a"), alone(prompt("b"))]
    assert ends(queue, may_start=lambda p: p.transfer == "b") == [("b", 30)]
    assert ends(queue[::-1], may_start=lambda p: p.transfer == "a") == [("a", 30)]


# --- where somebody may have to wait for the pass --------------------------------------------

SHORT = replace(ROOM, budget_tokens=1000, chunk_tokens=500, limit=Limit(0.03, EVEN))


def test_a_pass_that_is_waited_for_takes_so_long_over_all_prompts() -> None:
    queue = [stating("question", 20), prompt("document", 400), prompt("another", 400)]
    assert ends(queue, SHORT) == [("question", 20), ("document", 10)]
    assert ends([prompt("a", 400), prompt("b", 400)], SHORT) == [("a", 30)]
    assert ends([running("document", 400, 10)], SHORT) == [("document", 40)]


def test_what_a_token_attends_to_counts() -> None:
    room = replace(SHORT, limit=Limit(0.03, Cost(0.0, 0.00001)))
    assert ends([prompt("a", 400)], room) == [("a", 70)]  # 70 * 35 pairs of 3,000
    assert ends([running("a", 400, 100)], room) == [("a", 120)]  # 20 * 110


def test_what_the_operator_allows_is_a_bound_still() -> None:
    queue = [prompt("a", 400), prompt("b", 400)]
    assert ends(queue, replace(SHORT, chunk_tokens=20)) == [("a", 20)]
    assert ends(queue, replace(SHORT, budget_tokens=25)) == [("a", 23)]  # half, and a page


def test_who_states_a_deadline_has_half_of_the_pass_however_overdue_others_are() -> None:
    document, overdue = running("document", 400, 10), prompt("overdue", 400)
    questions = [stating("b", 14), stating("c", 14)]
    got = [("document", 20), ("b", 14)]  # and not a page for c
    assert ends([document, *questions], SHORT) == got
    assert ends([document, overdue, *questions], SHORT) == got
    assert ends([*questions, document], SHORT) == [("b", 14), ("c", 14), ("document", 20)]


def test_others_have_also_what_nobody_else_needs() -> None:
    document, overdue = running("document", 400, 10), prompt("overdue", 400)
    assert ends([document, stating("b", 5)], SHORT) == [("document", 30), ("b", 5)]
    assert ends([document, overdue], SHORT) == [("document", 40)]
    near = replace(SHORT, chunk_tokens=12)
    assert ends([document, stating("b", 5)], near) == [("document", 22), ("b", 5)]
    near = replace(SHORT, budget_tokens=18)
    assert ends([document, stating("b", 5)], near) == [("document", 23), ("b", 5)]


def test_others_have_no_more_than_is_left() -> None:
    document = prompt("document", 400)
    room = replace(SHORT, limit=Limit(0.06, EVEN), chunk_tokens=50)
    assert ends([stating("b", 45), document, stating("c", 5)], room) == [
        ("b", 45),
        ("document", 10),
        ("c", 5),
    ]
    assert ends([stating("b", 40), document], SHORT) == [("b", 30)]


def test_half_of_the_tokens_is_theirs_too() -> None:
    room = replace(ROOM, limit=Limit(10.0, EVEN))
    overdue = [prompt(name, 400) for name in ("x", "y", "z")]
    assert ends([*overdue, stating("b", 20)], room) == [("x", 40), ("y", 40), ("b", 20)]
    assert ends(overdue, room) == [("x", 40), ("y", 40)]
    assert ends([stating("b", 35), *overdue], room) == [("b", 35), ("x", 40), ("y", 25)]


def test_a_page_is_the_least_and_nobody_starves_for_it() -> None:
    tight = replace(SHORT, limit=Limit(0.004, EVEN))
    document = running("document", 400, 10)
    assert ends([document, stating("b", 14)], tight) == [("document", 20), ("b", 10)]
    assert ends([document, stating("b", 4), stating("c", 14)], tight) == [
        ("document", 20),
        ("b", 4),
    ]


def test_a_prompt_that_is_alone_is_not_split_for_a_small_rest() -> None:
    assert ends([prompt("a", 45)], SHORT) == [("a", 45)]
    assert ends([prompt("a", 46)], SHORT) == [("a", 30)]
    assert ends([stating("a", 45)], SHORT) == [("a", 45)]
    assert ends([running("a", 75, 30)], SHORT) == [("a", 75)]
    assert ends([prompt("a", 45)], replace(SHORT, chunk_tokens=44)) == [("a", 30)]
    assert ends([prompt("a", 45)], replace(SHORT, budget_tokens=44)) == [("a", 30)]


def test_one_that_is_not_alone_is() -> None:
    assert ends([prompt("a", 45), prompt("b", 5)], SHORT) == [("a", 20), ("b", 5)]
    fetching = prompt("fetching", 30)
    fetching.phase = Phase.FETCHING
    assert ends([prompt("a", 45), fetching], SHORT) == [("a", 30)]
    done = computed("done", 30, accepted=False, due=0.0)
    assert ends([done, prompt("a", 45)], SHORT) == [("a", 45)]


def test_the_number_of_prompts_in_a_pass_is_bounded() -> None:
    queue = [prompt(name, 5) for name in "abcd"]
    assert ends(queue, replace(ROOM, max_num_seqs=2)) == [("a", 5), ("b", 5)]


def test_a_prompt_without_room_is_passed_until_it_is_overdue() -> None:
    queue = [prompt("big", 90, due=1.0), prompt("small", 10, due=2.0)]
    assert ends(queue, replace(ROOM, available_pages=5)) == [("small", 10)]
    assert ends(queue, replace(ROOM, available_pages=5, owed_at=1.5)) == []


def test_an_overdue_prompt_without_room_does_not_stop_those_that_run() -> None:
    queue = [prompt("big", 90, due=1.0), running("on", 30, 10)]
    assert ends(queue, replace(ROOM, available_pages=5, owed_at=1.5)) == [("on", 30)]


def test_unaccepted_prompts_hold_a_quarter_of_the_pool_at_most() -> None:
    queue = [prompt(name, 100, accepted=False) for name in "abcd"]
    room = replace(ROOM, budget_tokens=1000)
    assert ends(queue, room) == [("a", 40), ("b", 40)]  # 10 pages each, of 25
    assert ends([prompt("e", 100), *queue], replace(room, unaccepted_pages=20)) == [("e", 40)]


def test_one_unaccepted_prompt_may_start_however_long_it_is() -> None:
    assert ends([prompt("a", 800, accepted=False)]) == [("a", 40)]


def test_the_earliest_due_comes_first_and_ties_go_by_arrival() -> None:
    queue = [prompt("c", due=3.0), prompt("b", arrived=2.0), prompt("a", arrived=1.0)]
    assert [p.transfer for p in sorted(queue, key=order)] == ["a", "b", "c"]


def test_a_short_question_passes_a_long_document_but_not_for_ever() -> None:
    document = due_at(0.0, 100_000, None)
    assert due_at(10.0, 100, None) < document < due_at(300.0, 100, None)
    assert due_at(5.0, 100_000, 2.0) == 7.0


def test_an_owed_prompt_takes_pages_from_those_that_decode_has_not_accepted() -> None:
    idle = [computed(name, 30, accepted=False, due=d) for d, name in enumerate("abc")]
    read = computed("read", 30, accepted=True, due=9.0)
    owed = prompt("owed", 80, due=4.0)
    room = replace(ROOM, available_pages=4, owed_at=5.0)
    assert set_back([*idle, owed, read], room) == ["c", "b"]


def test_nobody_is_set_back_before_somebody_is_owed() -> None:
    idle = computed("a", 30, accepted=False, due=0.0)
    room = replace(ROOM, available_pages=0, owed_at=5.0)
    assert set_back([idle, prompt("later", 30, due=6.0)], room) == []
    assert set_back([idle, prompt("unaccepted", 30, accepted=False)], room) == []


def test_nobody_is_set_back_for_one_that_waits_for_something_else_than_pages() -> None:
    idle = computed("a", 30, accepted=False, due=0.0)
    owed = prompt("owed", 30, due=1.0)
    room = replace(ROOM, available_pages=0, owed_at=5.0)
    assert set_back([idle, owed], room) == ["a"]
    assert set_back([idle, owed], room, lambda p: p is not owed) == []


def test_one_that_decode_has_not_accepted_never_stands_before_one_that_it_has() -> None:
    queue = [prompt("waits", 90, due=1.0, accepted=False), prompt("accepted", 10, due=2.0)]
    assert ends(queue, replace(ROOM, available_pages=5, owed_at=3.0)) == [("accepted", 10)]


def test_an_owed_prompt_comes_before_one_that_decode_has_not_accepted() -> None:
    queue = [prompt("not accepted", 30, due=1.0, accepted=False), prompt("owed", 90, due=2.0)]
    room = replace(ROOM, available_pages=10)
    assert ends(queue, replace(room, owed_at=1.5)) == [("not accepted", 30)]
    assert ends(queue, replace(room, owed_at=2.5)) == [("owed", 40)]
    short = replace(room, available_pages=8)
    assert ends(queue, replace(short, owed_at=1.5)) == [("not accepted", 30)]
    assert ends(queue, replace(short, owed_at=2.5)) == []  # else it would be set back for ever


def test_what_waits_for_something_else_than_pages_holds_nobody_up() -> None:
    queue = [prompt("owed", 90, due=1.0), prompt("b", 30, due=2.0)]
    room = replace(ROOM, available_pages=5, owed_at=3.0)
    assert ends(queue, room) == []
    assert ends(queue, room, lambda p: p.transfer != "owed") == [("b", 30)]


def test_whether_it_may_start_is_asked_only_of_those_that_there_is_room_for() -> None:
    asked: list[str] = []

    def asking(asking: Prompt) -> bool:
        asked.append(asking.transfer)
        return asking.transfer != "b"

    queue = [prompt("a", 10), prompt("big", 90), prompt("b", 10), prompt("c", 10), prompt("d", 10)]
    room = replace(ROOM, available_pages=2)
    assert ends(queue, room, asking) == [("a", 10), ("c", 10)]
    assert asked == ["a", "b", "c"]


def test_a_prompt_that_is_computed_or_fetched_has_no_chunk() -> None:
    fetching = prompt("fetching", 30)
    fetching.phase = Phase.FETCHING
    queue = [computed("computed", 30, accepted=True, due=0.0), fetching, prompt("c", 10)]
    assert ends(queue) == [("c", 10)]


def test_no_more_are_set_back_than_are_needed() -> None:
    idle = [computed(name, 30, accepted=False, due=d) for d, name in enumerate("abc")]
    owed = prompt("owed", 70, due=4.0)
    room = replace(ROOM, available_pages=4, owed_at=5.0)  # 3 pages short, and c has 3
    assert set_back([*idle, owed], room) == ["c"]


def test_nobody_is_set_back_where_all_of_them_would_not_do() -> None:
    idle = [computed(name, 30, accepted=False, due=0.0) for name in "ab"]
    owed = prompt("owed", 90, due=1.0)
    room = replace(ROOM, available_pages=3, owed_at=5.0)
    assert set_back([*idle, owed], room) == ["b", "a"]
    assert set_back([*idle, owed], replace(room, available_pages=2)) == []
