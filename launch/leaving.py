"""The end of a process that serves: what its threads still compute is not waited for.

Must not be used where a thread writes something that has to be whole.
"""

import asyncio
import logging
import os
import sys
import threading
import time
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import uvloop

_GRACE_S = 0.5  # for threads that have nothing to do to end by themselves


class _Unwaited(ThreadPoolExecutor):
    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: ARG002, FBT001, FBT002 - the base's
        super().shutdown(wait=False, cancel_futures=True)


def run(main: Coroutine[Any, Any, int]) -> int:
    """As `uvloop.run`, but for the work of `asyncio.to_thread`: it may outlast the loop."""

    async def within() -> int:
        asyncio.get_running_loop().set_default_executor(_Unwaited())
        return await main

    return uvloop.run(within())


def left(code: int) -> int:
    """The exit code. Ends the process with it where a thread that Python would wait for is busy:
    nothing in Python ends a thread. Whatever must be cleaned up is, by now."""
    deadline = time.monotonic() + _GRACE_S
    others = [one for one in threading.enumerate() if not one.daemon]
    others.remove(threading.current_thread())
    for thread in others:
        thread.join(max(0.0, deadline - time.monotonic()))
    if any(one.is_alive() for one in others):
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code
