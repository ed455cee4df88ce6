"""What a client's priority is worth, or having been accepted: a head start in line, a place where a
queue is full. Pure.
"""

from collections.abc import Sequence
from math import copysign, log2

RECOVERING_SHARE = 4  # times as long for whoever was accepted: as if so many workers died at once
URGENT_SHARE = 4  # a queue is longer by 1/4 for whoever is more urgent than some that wait


def levels(priority: int) -> float:
    """How far behind (above 0) or before (below 0) one of 0 a priority stands: 1 for 1, 2 for 3.

    Ascending with the priority, so that lower ones come first; and of few levels however large it
    is (31 for 2**31), so that whoever is passed for it has waited enough in the end.
    """
    return copysign(log2(1 + abs(priority)), priority)


def most_waiting(max_waiting: int) -> int:
    """Of a queue that is bounded by `max_waiting`, whoever waits in it."""
    return _most_of_new(max_waiting) + RECOVERING_SHARE * max_waiting


def _most_of_new(max_waiting: int) -> int:
    """Whatever their priorities are."""
    return max_waiting + -(-max_waiting // URGENT_SHARE)


def is_full(
    priority: int, waiting: Sequence[int], max_waiting: int, *, recovering: bool = False
) -> bool:
    """Whether a queue has no place for one of that priority. `waiting`: the priorities in it.

    Less urgent ones are not counted, as if each gave its place, up to a bound of their own: what
    was accepted is kept. `recovering`: it was, by workers that it has lost; such ones have places
    of their own.
    """
    if recovering:
        return len(waiting) >= most_waiting(max_waiting)
    n_before = sum(other <= priority for other in waiting)
    return n_before >= max_waiting or len(waiting) >= _most_of_new(max_waiting)
