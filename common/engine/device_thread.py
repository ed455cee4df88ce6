"""The threads that run passes, so that the loop around the core never waits for the device.

Must not know what a pass computes.
"""

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue

from common.engine.events import StepDone, StepFailed
from common.engine.plan import PassPlan, PassResult
from common.errors import InvariantBroken
from common.ids import StepId
from common.log import line

MOST_UNANSWERED = 2  # passes: one that runs, and the next

_Final = StepDone | StepFailed | InvariantBroken

_log = logging.getLogger(__name__)


class Passes(ABC):
    """Passes are run in order, finals come out. All calls come from the loop's thread."""

    def __init__(self, wake: Callable[[], None]) -> None:
        """`wake` is called from another thread when a final is there."""
        self._wake = wake
        self._plans: SimpleQueue[tuple[StepId, PassPlan, float] | None] = SimpleQueue()
        self._finals: deque[_Final] = deque()
        self._unanswered: deque[StepId] = deque()
        self._free_at = time.perf_counter()
        self._thread = threading.Thread(target=self._serve, name="device", daemon=True)
        self._thread.start()

    def launch(self, step: StepId, plan: PassPlan) -> None:
        """Start a pass, or leave it for when the one that runs is final."""
        if len(self._unanswered) == MOST_UNANSWERED:
            steps = " and ".join(map(str, self._unanswered))
            raise InvariantBroken(f"step {step} launched while {steps} are unanswered")
        self._unanswered.append(step)
        self._plans.put((step, plan, time.perf_counter()))

    def finals(self) -> list[StepDone | StepFailed]:
        """What has ended since the last call. Raises InvariantBroken if the pass did."""
        ended: list[StepDone | StepFailed] = []
        while self._finals:
            final = self._finals.popleft()
            if isinstance(final, InvariantBroken):
                raise final
            self._unanswered.popleft()
            ended.append(final)
        return ended

    def close(self, timeout_s: float) -> bool:
        """Let what was launched end. False: it has not within the time, and goes on."""
        self._plans.put(None)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    @abstractmethod
    def _serve(self) -> None:
        """Answer every plan, until None comes."""

    def _answer(
        self, job: tuple[StepId, PassPlan, float], result: Callable[[], PassResult]
    ) -> None:
        step, plan, launched_at = job
        final: _Final
        try:
            done = result()
            final = StepDone(step, done, self._free_at - max(launched_at, done.asked_at))
        except InvariantBroken as error:
            final = error
        except Exception as error:  # noqa: BLE001 - any: the core fails these sequences and goes on
            _log.exception(line("pass_failed", step=step, rows=plan.n_rows))
            final = StepFailed(step, f"{type(error).__name__}: {error}")
        self._free_at = time.perf_counter()
        self._finals.append(final)
        self._wake()


class DeviceThread(Passes):
    """One pass after the other, by one thread."""

    def __init__(self, run: Callable[[PassPlan], PassResult], wake: Callable[[], None]) -> None:
        """`run` computes a pass, and returns when its writes are complete and visible to other
        processes."""
        self._run = run
        super().__init__(wake)

    def _serve(self) -> None:
        while (job := self._plans.get()) is not None:
            self._answer(job, partial(self._run, job[1]))


Waiting = Callable[[], PassResult]
"""Returns when the pass's writes are complete and visible to other processes."""


class AsyncDeviceThread(Passes):
    """Of a device that goes on by itself: a pass is begun while the one before is computed, and a
    second thread waits for each to end."""

    def __init__(self, begin: Callable[[PassPlan], Waiting], wake: Callable[[], None]) -> None:
        """`begin` asks the device for a pass."""
        self._begin = begin
        self._begun: SimpleQueue[tuple[tuple[StepId, PassPlan, float], Waiting] | None]
        self._begun = SimpleQueue()
        super().__init__(wake)

    def _serve(self) -> None:
        waiting = threading.Thread(target=self._wait, name="device-waits", daemon=True)
        waiting.start()
        while (job := self._plans.get()) is not None:
            self._begun.put((job, self._asked_for(job[1])))
        self._begun.put(None)
        waiting.join()

    def _asked_for(self, plan: PassPlan) -> Waiting:
        try:
            return self._begin(plan)
        except Exception as error:  # noqa: BLE001 - told in the pass's turn, like any other
            return partial(_fail, error)

    def _wait(self) -> None:
        while (begun := self._begun.get()) is not None:
            self._answer(*begun)


def _fail(error: Exception) -> PassResult:
    raise error
