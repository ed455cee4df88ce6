"""The one thread that runs passes, so that the loop around the core never waits for the device.

Must not know what a pass computes.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue

from common.engine.events import StepDone, StepFailed
from common.engine.plan import PassPlan, PassResult
from common.errors import InvariantBroken
from common.ids import StepId
from common.log import line

MOST_UNANSWERED = 2  # passes: one that runs, and the next

_log = logging.getLogger(__name__)


class DeviceThread:
    """Passes are run in order, finals come out. All calls come from the loop's thread."""

    def __init__(self, run: Callable[[PassPlan], PassResult], wake: Callable[[], None]) -> None:
        """`run` computes a pass, and returns when its writes are complete and visible to other
        processes. `wake` is called from this thread when a final is there."""
        self._run = run
        self._wake = wake
        self._plans: SimpleQueue[tuple[StepId, PassPlan, float] | None] = SimpleQueue()
        self._finals: deque[StepDone | StepFailed | InvariantBroken] = deque()
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

    def _serve(self) -> None:
        while (job := self._plans.get()) is not None:
            self._finals.append(self._compute(*job))
            self._wake()

    def _compute(
        self, step: StepId, plan: PassPlan, launched_at: float
    ) -> StepDone | StepFailed | InvariantBroken:
        ready_s = self._free_at - launched_at
        try:
            return StepDone(step, self._run(plan), ready_s)
        except InvariantBroken as error:
            return error
        except Exception as error:  # noqa: BLE001 - any: the core fails these sequences and goes on
            _log.exception(line("pass_failed", step=step, rows=plan.n_rows))
            return StepFailed(step, f"{type(error).__name__}: {error}")
        finally:
            self._free_at = time.perf_counter()
