"""How the programs under `bench` that measure the engine itself end: with an exit status, and one
line where their operator must act.

Must not catch what is a bug: that keeps its traceback.
"""

import sys
from collections.abc import Callable, Sequence

from bench.exits import INTERRUPTED_EXIT, USAGE_EXIT
from bench.server import NotReady
from common.errors import SetupError


def exit_status(main: Callable[[Sequence[str]], int], argv: Sequence[str]) -> int:
    """That of `main`; 2 where what it was given is no model, or no server starts with it."""
    try:
        return main(argv)
    except (SetupError, NotReady) as error:
        print(f"error: {error}", file=sys.stderr)
        return USAGE_EXIT
    except KeyboardInterrupt:
        return INTERRUPTED_EXIT
