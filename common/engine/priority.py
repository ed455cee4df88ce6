"""What a client's priority is worth in line: a head start. Pure."""

from math import copysign, log2


def levels(priority: int) -> float:
    """How far behind (above 0) or before (below 0) one of 0 a priority stands: 1 for 1, 2 for 3.

    Ascending with the priority, so that lower ones come first; and of few levels however large it
    is (31 for 2**31), so that whoever is passed for it has waited enough in the end.
    """
    return copysign(log2(1 + abs(priority)), priority)
