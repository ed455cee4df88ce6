"""How many requests are in progress, counted for all gateways of a server together.

Bounds are numbered: 0 is the server's, n + 1 that of API key n. Must not know what is done at a
bound: whoever asks for a place does.
"""

import mmap
from pathlib import Path

ALL = 0
_COUNT_BYTES = 8


def of_key(number: int) -> int:
    """The bound of that API key."""
    return number + 1


class Places:
    """One gateway's: each counts its own, and sees what the others have.

    Counted first and looked at then, so that two gateways that take the last place at one moment
    may both be refused it, and never both have it. Used by the event loop's thread.
    """

    def __init__(self, n_keys: int = 0, *, shared: Path | None = None, gateway: int = 0) -> None:
        """`shared`: what `make_shared` has made, for as many keys."""
        self._n_bounds = n_keys + 1
        if shared is None:
            self._counts = memoryview(bytearray(self._n_bounds * _COUNT_BYTES)).cast("q")
        else:
            with shared.open("r+b") as file:
                self._counts = memoryview(mmap.mmap(file.fileno(), 0)).cast("q")
        self._first = gateway * self._n_bounds
        self.clear(gateway)

    def take(self, bound: int, limit: int) -> bool:
        """True: it is taken, to be given back. False: so many are."""
        self._counts[self._first + bound] += 1
        if self.taken(bound) <= limit:
            return True
        self.give_back(bound)
        return False

    def taken(self, bound: int) -> int:
        return sum(self._counts[bound :: self._n_bounds])

    def give_back(self, bound: int) -> None:
        self._counts[self._first + bound] -= 1

    def clear(self, gateway: int) -> None:
        """What it had, its end has given back."""
        for at in range(gateway * self._n_bounds, (gateway + 1) * self._n_bounds):
            self._counts[at] = 0


def make_shared(path: Path, n_gateways: int, n_keys: int) -> None:
    """A file of counts, for `Places` of each."""
    path.write_bytes(bytes(n_gateways * (n_keys + 1) * _COUNT_BYTES))
