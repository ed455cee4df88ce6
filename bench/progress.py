"""How far a load is: a bar on a terminal, plain lines elsewhere, both on stderr."""

import sys
import time
from types import TracebackType

from tqdm import tqdm

from bench.client import Outcome

LINE_EVERY_S = 5.0


class Progress:
    """A context; `advance` as each request ends."""

    def __init__(self, n_requests: int, what: str, *, bar: bool = True) -> None:
        self._n_requests = n_requests
        self._what = what
        self._done = self._failed = 0
        self._began_s = self._shown_s = time.monotonic()
        shown = bar and sys.stderr.isatty()
        self._bar = tqdm(total=n_requests, desc=what, unit="req") if shown else None

    def __enter__(self) -> "Progress":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.close()
        else:
            self._line()

    def advance(self, outcome: Outcome) -> None:
        self._done += 1
        self._failed += bool(outcome.error)
        if self._bar is not None:
            if self._failed:
                self._bar.set_postfix(failed=self._failed, refresh=False)
            self._bar.update()
        elif time.monotonic() - self._shown_s >= LINE_EVERY_S:
            self._line()

    def _line(self) -> None:
        self._shown_s = time.monotonic()
        print(
            f"{self._what}: {self._done} of {self._n_requests} requests, "
            f"{self._failed} failed, {self._shown_s - self._began_s:.0f} s",
            file=sys.stderr,
        )
