"""The passes of a prefill worker that are unanswered, and when the next one is to be planned.

One; or up to two, where a device goes on by itself: the next is planned while one is computed, as
late as is safe, so that whoever arrives meanwhile is in it. Decides when, never what.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from common.engine.events import StepDone, StepFailed
from common.engine.lead import Lead
from common.engine.plan import PassPlan
from common.engine.reports import Pulse
from common.errors import InvariantBroken
from common.ids import StepId
from prefill.pace import Pace, pairs
from prefill.scheduler import Chunk

LEAD_FIRST_S = 5e-3
LEAD_STEP_S = 1e-3
LEAD_MIN_S = 1e-3
LEAD_MAX_S = 5e-2
LEAD_MAX_SHARE = 0.3  # of a pass


@dataclass(frozen=True, slots=True)
class Pass:
    """What a Launch is for."""

    step: StepId
    chunks: tuple[Chunk, ...]
    plan: PassPlan


class Steps:
    """Oldest first. A pass begins when it is launched or the one before it is final."""

    def __init__(self, pulse: Pulse, pace: Pace, *, plan_ahead: bool) -> None:
        self._pulse = pulse
        self._pace = pace
        self._plan_ahead = plan_ahead
        self._unanswered: deque[Pass] = deque()
        self._ahead: set[StepId] = set()  # of these: planned while another was computed
        self._next = 0
        self._lead = Lead(
            first_s=LEAD_FIRST_S,
            step_s=LEAD_STEP_S,
            least_s=LEAD_MIN_S,
            most_s=LEAD_MAX_S,
            most_share=LEAD_MAX_SHARE,
        )
        self._plan_at: float | None = None  # while the oldest is computed; None: not ahead
        self._in_vain = False  # while it is, there was nothing to plan ahead

    @property
    def idle(self) -> bool:
        return not self._unanswered

    @property
    def next(self) -> StepId:
        """The number of the next pass."""
        return StepId(self._next)

    @property
    def tokens_behind(self) -> int:
        """Of prompts, in passes that are launched and not begun."""
        return sum(work.plan.n_rows for n, work in enumerate(self._unanswered) if n)

    def may_plan(self, now: float) -> bool:
        """Whether the next pass is to be planned now."""
        if not self._unanswered:
            return True
        at = self._plan_at
        return at is not None and now >= at and len(self._unanswered) == 1

    @property
    def wake_at(self) -> float | None:
        """When to plan; None: not before something happens."""
        return None if self._in_vain or len(self._unanswered) != 1 else self._plan_at

    def nothing(self) -> None:
        """Was to be planned, not yet at least."""
        self._in_vain = True

    def launched(self, work: Pass, spans: Sequence[tuple[int, int]], now: float) -> None:
        """`spans`: (position of the first token, tokens) of the pass's chunks."""
        self._pace.begin(work.plan.n_rows, sum(pairs(*span) for span in spans), now)
        if self._unanswered:
            self._ahead.add(work.step)
        self._unanswered.append(work)
        self._next += 1
        if len(self._unanswered) == 1:
            self._begin(now)

    def final(self, event: StepDone | StepFailed, now: float) -> Pass:
        """The oldest is; returns it."""
        if not self._unanswered or self._unanswered[0].step != event.step:
            raise InvariantBroken(f"step {event.step} is final and was not running")
        self._learn(event)
        work = self._unanswered.popleft()
        self._ahead.discard(work.step)
        self._pulse.end(now)
        self._pace.end(now)
        if self._unanswered:
            self._begin(now)
        return work

    def _begin(self, now: float) -> None:
        self._in_vain = False
        work = self._unanswered[0]
        self._pulse.begin(work.step, work.plan.n_rows, now)
        ends_at = self._pace.ends_at if self._plan_ahead else None
        self._plan_at = None if ends_at is None else self._lead.plan_at(ends_at, now)

    def _learn(self, event: StepDone | StepFailed) -> None:
        if event.step in self._ahead:
            self._lead.learn(late=isinstance(event, StepDone) and event.ready_s < 0)
        elif self.wake_at is not None:  # it ended, and the next was not planned
            self._lead.learn(late=True)
