"""What a worker's process asks of the system: its CPUs, its parent's fate, its signals.

Must be called from the main thread, before others are started.
"""

import ctypes
import os
import signal
from collections.abc import Callable, Collection
from types import FrameType

from common.errors import SetupError

_PR_SET_PDEATHSIG = 1


def pin(cpus: Collection[int] | None) -> None:
    """Run on these CPUs only; None: wherever the system puts us. Raises SetupError."""
    if cpus is None:
        return
    try:
        os.sched_setaffinity(0, cpus)
    except OSError as error:
        allowed = sorted(os.sched_getaffinity(0))
        raise SetupError(f"--cpus {sorted(cpus)}: {error.strerror}; there are {allowed}") from error


def die_with(parent: int) -> None:
    """SIGTERM comes when the thread that started this process ends, be it by SIGKILL.

    Raises SetupError if `parent` is gone already.
    """
    if ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0) != 0:
        raise SetupError("prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:  # it may have died before the call
        raise SetupError("the process that started this worker is gone")


def on_stop(stop: Callable[[bool], None], parent: int | None) -> None:
    """SIGTERM calls `stop(at_once)`; so does SIGINT, unless a parent handles that for us.

    `at_once`: the parent has died, and with it whoever would take our results.
    """

    def handle(_number: int, _frame: FrameType | None) -> None:
        stop(parent is not None and os.getppid() != parent)

    signal.signal(signal.SIGTERM, handle)
    signal.signal(signal.SIGINT, handle if parent is None else signal.SIG_IGN)
