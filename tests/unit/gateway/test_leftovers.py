"""Attempts that are over: for how long they may still be computed where they were."""

from common.ids import InstanceId, TransferId
from common.messages import Heartbeat, Listed, Phase, Progress
from launch.gateway.leftovers import Leftovers

P, OTHER = InstanceId("prefill-0"), InstanceId("prefill-1")
T, U = TransferId("t"), TransferId("u")


def beat(n_done: int, *listed: TransferId, age_s: float = 0.1) -> Heartbeat:
    rows = tuple(Listed(transfer, 1, Phase.ACCEPTED, ()) for transfer in listed)
    return Heartbeat(transfers=rows, progress=Progress(n_done, age_s, 0.2))


def left() -> Leftovers:
    one = Leftovers()
    one.ended(P, (T, 1))
    return one


def test_what_is_listed_is_there_and_what_is_not_has_two_passes_to_end() -> None:
    one = left()
    for heartbeat, there in (
        (beat(7, T), True),
        (beat(30, T), True),  # its End has not arrived
        (beat(31), True),
        (beat(32), True),
        (beat(33), False),
    ):
        one.heard(P, heartbeat)
        assert one.beside(P, U) == there


def test_a_worker_that_computes_nothing_has_ended_all() -> None:
    one = left()
    one.heard(P, beat(7, age_s=0.0))  # or a pass begins just now, of those that were launched
    assert one.beside(P, U)
    one.heard(P, beat(7, age_s=0.0))
    assert not one.beside(P, U)


def test_a_worker_whose_last_pass_ended_meanwhile_has_ended_all() -> None:
    one = left()
    one.heard(P, beat(7))
    one.heard(P, beat(8, age_s=0.0))
    assert one.beside(P, U)
    one.heard(P, beat(8, age_s=0.0))
    assert not one.beside(P, U)


def test_nobody_is_beside_itself() -> None:
    one = left()
    assert not one.beside(P, T)
    one.ended(P, (U, 3))
    assert one.beside(P, T)
    assert not one.beside(OTHER, T)


def test_with_a_worker_all_ends() -> None:
    one = left()
    one.gone(P)
    assert not one.beside(P, U)
    one.heard(P, beat(8))
    one.gone(P)
