"""Pages of whoever gives way go to host memory and come back; or they are computed again."""

import pytest

from common.engine.events import Cancel, Note, Pull, Spill, TicketFinal
from common.errors import InvariantBroken
from common.ids import PageId
from decode.scheduler import first_short, pages_ahead
from decode.state import Sample, Table
from tests.unit.decode.builders import Bench, Blind, H, ended, expect
from tests.unit.decode.test_scheduler import sample

OLD, YOUNG = "old", "young"
N_PAGES = 7  # of 4 tokens: one whole request, and another's beginning


def two(*, host_pages: int = 9, plan_ahead: bool = False) -> Bench:
    """Two that have a prompt of 6 tokens each, and were let in though they cannot both finish."""
    bench = Bench(
        n_pages=N_PAGES,
        cache=False,
        foresight=Blind(),
        host_pages=host_pages,
        plan_ahead=plan_ahead,
    )
    for name in (OLD, YOUNG):
        bench.hear(expect(6, transfer=name, prefill=None, max_tokens=12))
    return bench


def until_one_gives_way(bench: Bench) -> list[Note]:
    """Passes go by. Returns what was noted with the last one."""
    while not (notes := [n for n in bench.did(Note) if n.name == "preempted"]):
        bench.done(*(7 for _ in bench.plan.draws))
    return notes


def spilling() -> tuple[Bench, Spill]:
    bench = two()
    until_one_gives_way(bench)
    (spill,) = bench.did(Spill)
    return bench, spill


def final(bench: Bench, ticket: Spill | Pull, *, ok: bool = True) -> None:
    bench.take(TicketFinal(ticket.ticket, ok, "" if ok else "torn"))


def go_on_until(bench: Bench, kind: type[Pull] | type[Note], name: str = "") -> Pull | Note:
    """Passes go by until something is done."""
    while True:
        for action in bench.did(kind):
            if isinstance(action, Pull) or action.name == name:
                return action
        bench.done(*(7 for _ in bench.plan.draws))


def finish(bench: Bench) -> None:
    """Whatever runs ends, the young one last; then no page is held, here or there."""
    assert bench.host is not None
    while bench.launched:
        bench.done(*(7 for _ in bench.plan.draws))
    for name in (OLD, YOUNG):
        bench.hear(ended(name))
    assert bench.core.idle
    assert bench.pool.n_held == bench.host.pool.n_held == 0


def test_the_younger_is_spilled_before_a_page_is_lacking() -> None:
    bench, spill = spilling()
    assert bench.host is not None
    (note,) = [n for n in bench.did(Note) if n.name == "preempted"]
    assert (note.transfer, note.fields) == (YOUNG, {"sample": 0, "how": "host", "pages": 3})
    assert [bench.pool.generation(ref.page) for ref, _ in spill.copies] == [
        ref.generation for ref, _ in spill.copies
    ]
    assert len(bench.plan.len_B) == 1  # the older one goes on meanwhile
    assert bench.pool.n_held == 7  # until it is final, the younger one's pages are
    assert bench.host.pool.n_held == 3
    final(bench, spill)
    assert bench.pool.n_held == 4


def test_it_comes_back_when_there_is_room_and_nothing_is_computed_again() -> None:
    bench, spill = spilling()
    final(bench, spill)
    pull = go_on_until(bench, Pull)
    assert isinstance(pull, Pull)
    assert (pull.peer, [ref.page for ref, _ in pull.copies]) == (
        H,
        [page for _, page in spill.copies],
    )
    while bench.launched:
        bench.done(*(7 for _ in bench.plan.draws))
    bench.take(TicketFinal(pull.ticket, ok=True))
    (note,) = bench.did(Note)
    assert (note.transfer, note.name) == (YOUNG, "resumed")
    assert bench.plan.n_rows == 1
    assert bench.plan.tables_BM[0, :3].tolist() == [page for _, page in pull.copies]
    finish(bench)


@pytest.mark.parametrize("ok", [True, False])
def test_one_that_ends_while_it_is_spilled_leaves_nothing(ok: bool) -> None:  # noqa: FBT001
    bench, spill = spilling()
    bench.hear(ended(YOUNG))
    assert bench.did(Cancel) == [Cancel(spill.ticket)]
    assert bench.pool.n_held == 7
    final(bench, spill, ok=ok)
    assert bench.pool.n_held == 4
    finish(bench)


def test_one_that_ends_in_host_memory_leaves_nothing() -> None:
    bench, spill = spilling()
    final(bench, spill)
    bench.hear(ended(YOUNG))
    assert not bench.did(Cancel)
    finish(bench)


@pytest.mark.parametrize("ok", [True, False])
def test_one_that_ends_on_its_way_back_leaves_nothing(ok: bool) -> None:  # noqa: FBT001
    bench, spill = spilling()
    final(bench, spill)
    pull = go_on_until(bench, Pull)
    assert isinstance(pull, Pull)
    bench.hear(ended(YOUNG))
    assert bench.did(Cancel) == [Cancel(pull.ticket)]
    final(bench, pull, ok=ok)
    finish(bench)


def test_a_spill_that_fails_is_computed_again() -> None:
    bench, spill = spilling()
    final(bench, spill, ok=False)
    note = go_on_until(bench, Note, "resumed")
    assert isinstance(note, Note)
    assert note.transfer == YOUNG
    assert not bench.did(Pull)
    finish(bench)


def test_what_cannot_be_pulled_back_is_computed_again() -> None:
    bench, spill = spilling()
    final(bench, spill)
    pull = go_on_until(bench, Pull)
    assert isinstance(pull, Pull)
    while bench.launched:
        bench.done(*(7 for _ in bench.plan.draws))
    bench.take(TicketFinal(pull.ticket, ok=False, detail="torn"))
    assert [n.name for n in bench.did(Note)] == ["resumed"]
    assert bench.plan.n_rows > 1
    finish(bench)


def test_what_does_not_fit_into_host_memory_is_computed_again() -> None:
    bench = two(host_pages=2)
    (note,) = until_one_gives_way(bench)
    assert note.fields["how"] == "recompute"
    assert not bench.did(Spill)
    finish(bench)


def test_without_host_memory_pages_are_taken_when_they_lack_and_no_earlier() -> None:
    bench = two(host_pages=0)
    (note,) = until_one_gives_way(bench)
    assert note.fields == {"sample": 0, "how": "recompute", "pages": 3}
    assert bench.pool.n_held == 5


def test_while_a_pass_is_planned_ahead_nobody_is_spilled() -> None:
    """Its pages are written by the pass that is unanswered: it waits for that, and then goes."""
    bench = two(plan_ahead=True)
    for _ in range(20):
        bench.tick(0.01)
        if bench.did(Spill):
            break
        bench.done(*(7 for _ in bench.plan.draws))
        if bench.did(Spill):
            break
    assert len(bench.did(Spill)) == 1
    assert len(bench.unanswered) == 1


def test_the_spilled_are_let_in_before_the_new() -> None:
    bench, spill = spilling()
    final(bench, spill)
    bench.hear(expect(6, transfer="new", prefill=None, max_tokens=2))
    begun = [n for n in bench.did(Note) if n.name == "context_begin"]
    assert not begun
    pull = go_on_until(bench, Pull)
    assert isinstance(pull, Pull)
    assert pull.peer == H


def test_host_pages_that_nobody_has_are_found_by_the_check() -> None:
    bench, _ = spilling()
    assert bench.host is not None
    bench.host.pool.take(1)
    with pytest.raises(InvariantBroken, match="pages are held"):
        bench.core.check()


# --- the watermark ---------------------------------------------------------------------------


def growing(n_pages: int, n_kv: int, claim: int = 0, *, left: int = 9) -> Sample:
    one = sample(0, gap=1)
    one.table = Table([PageId(0)] * n_pages, n_kv, claim=claim)
    one.transfer.request = expect(n_kv + 1, max_tokens=left)
    one.outputs = ()
    return one


@pytest.mark.parametrize(
    ("n_pages", "n_kv", "claim", "left", "n_passes", "expected"),
    [
        (2, 5, 0, 9, 3, 0),  # up to 8 tokens fit
        (2, 5, 0, 9, 4, 1),
        (2, 5, 1, 9, 4, 0),  # promised
        (2, 5, 0, 3, 4, 0),  # it ends before
        (2, 8, 0, 9, 1, 1),
        (2, 8, 0, 9, 5, 2),
    ],
)
def test_pages_that_are_taken_within_some_passes(
    n_pages: int, n_kv: int, claim: int, left: int, n_passes: int, expected: int
) -> None:
    one = growing(n_pages, n_kv, claim, left=left)
    assert pages_ahead(one, n_passes, page_tokens=4) == expected


def test_who_is_short_first() -> None:
    a, b, c = (sample(n) for n in range(3))
    assert first_short([(a, 1), (b, 1), (c, 0)], 2) is None
    assert first_short([(a, 1), (b, 1), (c, 0)], 1) is b
    assert first_short([(a, 1), (b, 0), (c, 1)], 1) is c
    assert first_short([(a, 0), (b, 0), (c, 1)], 0) is c
