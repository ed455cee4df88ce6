"""What a worker's process asks of the system: its CPUs, its parent's fate, its signals.

Must be called from the main thread, before others are started.
"""

import ctypes
import logging
import os
import signal
from collections.abc import Callable, Collection
from types import FrameType

from common.errors import SetupError
from common.spellings import spell_cpus
from common.values import LogLevel

_PR_SET_PDEATHSIG = 1
_MOST_CPUS = 8192  # that Linux can be built for


def pin(cpus: Collection[int] | None) -> None:
    """Run on these CPUs only; None: wherever the system puts us. Raises SetupError."""
    if cpus is not None:
        check_cpus(cpus)
        os.sched_setaffinity(0, cpus)


def check_cpus(cpus: Collection[int]) -> None:
    """Raises SetupError, naming those that there are, unless a process may be pinned to each."""
    there = _allowed_cpus()
    missing = set(cpus) - there
    if missing:
        raise SetupError(
            f"--cpus {spell_cpus(cpus)}: there is no CPU {spell_cpus(missing)} for this process; "
            f"there are {spell_cpus(there)}"
        )


def _allowed_cpus() -> set[int]:
    """All that this process could run on, be it pinned to fewer: the system alone knows them, and
    tells by what it makes of a wish for all."""
    pinned = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, range(_MOST_CPUS))
        return os.sched_getaffinity(0)
    finally:
        os.sched_setaffinity(0, pinned)


def die_with(parent: int) -> None:
    """SIGTERM comes when the thread that started this process ends, be it by SIGKILL; SIGHUP, which
    means something to that one alone, is ignored.

    Raises SetupError if `parent` is gone already.
    """
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    if ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0) != 0:
        raise SetupError("prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:  # it may have died before the call
        raise SetupError("the process that started this worker is gone")


def leave_joining_to_parent(level: LogLevel) -> None:
    """Who joins and who goes, the process that started this one tells at `info`, too: once is
    enough. At `debug` each tells."""
    if level == "info":
        logging.getLogger("common.engine.links").setLevel(logging.WARNING)


def on_stop(stop: Callable[[bool], None], parent: int | None) -> None:
    """SIGTERM calls `stop(at_once)`; so does SIGINT, unless a parent handles that for us.

    `at_once`: the parent has died, and with it whoever would take our results.
    """

    def handle(_number: int, _frame: FrameType | None) -> None:
        stop(parent is not None and os.getppid() != parent)

    signal.signal(signal.SIGTERM, handle)
    signal.signal(signal.SIGINT, handle if parent is None else signal.SIG_IGN)
