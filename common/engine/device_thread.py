"""The one thread that runs passes, so that the loop around the core never waits for the device.

Must not know what a pass computes.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue

from common.engine.events import StepDone, StepFailed
from common.engine.plan import PassPlan, PassResult
from common.errors import InvariantBroken
from common.ids import StepId
from common.log import line

_log = logging.getLogger(__name__)


class DeviceThread:
    """Passes go in one at a time, finals come out. All calls come from the loop's thread."""

    def __init__(self, run: Callable[[PassPlan], PassResult], wake: Callable[[], None]) -> None:
        """`run` computes a pass, and returns when its writes are complete and visible to other
        processes. `wake` is called from this thread when a final is there."""
        self._run = run
        self._wake = wake
        self._plans: SimpleQueue[tuple[StepId, PassPlan] | None] = SimpleQueue()
        self._finals: deque[StepDone | StepFailed | InvariantBroken] = deque()
        self._running: StepId | None = None
        self._thread = threading.Thread(target=self._serve, name="device", daemon=True)
        self._thread.start()

    def launch(self, step: StepId, plan: PassPlan) -> None:
        """Start a pass. The one before must be final."""
        if self._running is not None:
            raise InvariantBroken(f"step {step} launched while step {self._running} runs")
        self._running = step
        self._plans.put((step, plan))

    def finals(self) -> list[StepDone | StepFailed]:
        """What has ended since the last call. Raises InvariantBroken if the pass did."""
        ended: list[StepDone | StepFailed] = []
        while self._finals:
            final = self._finals.popleft()
            if isinstance(final, InvariantBroken):
                raise final
            self._running = None
            ended.append(final)
        return ended

    def close(self, timeout_s: float) -> bool:
        """Let the pass that runs end. False: it has not within the time, and runs on."""
        self._plans.put(None)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _serve(self) -> None:
        while (job := self._plans.get()) is not None:
            self._finals.append(self._compute(*job))
            self._wake()

    def _compute(self, step: StepId, plan: PassPlan) -> StepDone | StepFailed | InvariantBroken:
        try:
            return StepDone(step, self._run(plan))
        except InvariantBroken as error:
            return error
        except Exception as error:  # noqa: BLE001 - any: the core fails these sequences and goes on
            _log.exception(line("pass_failed", step=step, rows=plan.n_rows))
            return StepFailed(step, f"{type(error).__name__}: {error}")
