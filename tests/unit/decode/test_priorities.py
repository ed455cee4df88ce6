"""Priorities: a head start in line, a place in a full queue, and who gives way last."""

from msgspec.structs import replace

from common.messages import Accept, Refused
from decode.scheduler import MAX_PASSED, PRIORITY_PASSES, Loss, turn, victim
from tests.unit.decode.builders import Bench, G, P, ended, expect
from tests.unit.decode.test_scheduler import loss


def test_a_level_is_worth_so_many_passes() -> None:
    assert turn(5, 30, 16, 1) == turn(5, 30, 16) + PRIORITY_PASSES
    assert turn(5, 30, 16, -3) == turn(5, 30, 16) - 2 * PRIORITY_PASSES


def test_whoever_is_passed_has_waited_enough_in_the_end() -> None:
    last = turn(0, 16, 16, 2**31 - 1)
    assert turn(62 * PRIORITY_PASSES + MAX_PASSED + 1, 0, 16, -(2**31)) > last


def test_a_request_of_a_lower_number_is_let_in_first() -> None:
    """However large it is, and though it came last."""
    bench = Bench(n_pages=8)
    bench.hear(expect(28, transfer="full", max_tokens=4))
    for name, n_tokens, priority in (("small", 4, 0), ("late", 4, 9), ("large", 20, -1)):
        bench.hear(expect(n_tokens, transfer=name, max_tokens=4, priority=priority))
    assert not bench.said(Accept, P)
    bench.hear(ended("full"))
    names = [accept.transfer for accept in bench.said(Accept, P)]
    assert names == ["large", "small", "late"][: len(names)]
    assert names


def test_a_full_queue_has_a_place_for_one_that_is_more_urgent() -> None:
    bench = Bench(n_pages=3, max_waiting=2)
    for n in range(3):
        bench.hear(expect(transfer=f"t{n}"))  # the first has the room, two wait
    for name, priority, refused in (("urgent", -1, 0), ("as urgent", -1, 1), ("no more", 0, 1)):
        bench.hear(expect(transfer=name, priority=priority))
        assert len(bench.said(Refused, G)) == refused, name


def of_priority(priority: int, made: Loss) -> Loss:
    transfer = made.sample.transfer
    transfer.request = replace(transfer.request, priority=priority)
    return made


def test_the_least_urgent_gives_way_whatever_it_costs() -> None:
    cheap, dear = of_priority(0, loss(1, 1, 10, 9)), of_priority(2, loss(2, 40, 10, 9))
    assert victim([cheap, dear], []) is dear
    in_vain = of_priority(9, loss(3, 40, 0, 9))  # others keep all its pages
    assert victim([cheap, dear, in_vain], []) is dear
    assert victim([in_vain], []) is in_vain


def test_of_parked_ones_too() -> None:
    parked = [of_priority(n, loss(n, 9, 9, 9)) for n in (1, 3, 2)]
    assert victim([], parked) is parked[1]
    equals = [loss(n, 9, 9, 9) for n in range(2)]
    assert victim([], equals) is equals[1]  # the younger
