"""The passes that a worker has launched and that are not final, and when the next is to be planned.
Part of the cores.

Up to two: the next is planned while one is computed, as late as is safe. Decides when, never what.
"""

from collections import deque
from typing import Generic, Protocol, TypeVar

from common.engine.events import StepDone, StepFailed
from common.engine.lead import Lead
from common.errors import InvariantBroken
from common.ids import StepId


class Numbered(Protocol):
    @property
    def step(self) -> StepId: ...


P = TypeVar("P", bound=Numbered)


class Unanswered(Generic[P]):
    """Oldest first. A pass begins when it is launched or the one before it is final."""

    def __init__(self, lead: Lead) -> None:
        self.passes: deque[P] = deque()
        self.next = StepId(0)
        self._lead = lead
        self._was_ahead: deque[bool] = deque()  # of each: planned while another was computed
        self._plan_at: float | None = None  # while the oldest is computed; None: not ahead
        self._in_vain = False  # while it is, there was nothing to plan ahead

    def may_plan(self, now: float) -> bool:
        """While one is computed: whether the next is to be planned now."""
        at = self._plan_at
        return at is not None and now >= at and len(self.passes) == 1

    @property
    def wake_at(self) -> float | None:
        """When to plan; None: not before something happens."""
        return None if self._in_vain or len(self.passes) != 1 else self._plan_at

    def nothing(self) -> None:
        """Was to be planned, not yet at least."""
        self._in_vain = True

    def launched(self, work: P) -> bool:
        """Whether it begins: nothing is computed before it."""
        self._was_ahead.append(bool(self.passes))
        self.passes.append(work)
        self.next = StepId(work.step + 1)
        return len(self.passes) == 1

    def begun(self, ends_at: float | None, now: float) -> None:
        """The oldest has. `ends_at`: as is predicted; None: nothing is planned meanwhile."""
        self._in_vain = False
        self._plan_at = None if ends_at is None else self._lead.plan_at(ends_at, now)

    def final(self, event: StepDone | StepFailed) -> P:
        """The oldest is; returns it. Raises InvariantBroken if the event is another's."""
        if not self.passes or self.passes[0].step != event.step:
            raise InvariantBroken(f"step {event.step} is final and was not running")
        if self._was_ahead.popleft():
            self._lead.learn(late=isinstance(event, StepDone) and event.ready_s < 0)
        elif self.wake_at is not None:  # it ended, and the next was not planned
            self._lead.learn(late=True)
        return self.passes.popleft()
