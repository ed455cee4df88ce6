"""The passes of a prefill worker that are unanswered, and when the next one is to be planned.

One; or up to two, where a device goes on by itself: the next is planned while one is computed, as
late as is safe, so that whoever arrives meanwhile is in it. Decides when, never what.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from common.engine.events import StepDone, StepFailed
from common.engine.lead import Lead
from common.engine.plan import PassPlan
from common.engine.reports import Pulse
from common.engine.unanswered import Unanswered
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
        lead = Lead(
            first_s=LEAD_FIRST_S,
            step_s=LEAD_STEP_S,
            least_s=LEAD_MIN_S,
            most_s=LEAD_MAX_S,
            most_share=LEAD_MAX_SHARE,
        )
        self._unanswered = Unanswered[Pass](lead)

    @property
    def idle(self) -> bool:
        return not self._unanswered.passes

    @property
    def next(self) -> StepId:
        """The number of the next pass."""
        return self._unanswered.next

    @property
    def tokens_behind(self) -> int:
        """Of prompts, in passes that are launched and not begun."""
        return sum(work.plan.n_rows for n, work in enumerate(self._unanswered.passes) if n)

    def may_plan(self, now: float) -> bool:
        """Whether the next pass is to be planned now."""
        return self.idle or self._unanswered.may_plan(now)

    @property
    def wake_at(self) -> float | None:
        """When to plan; None: not before something happens."""
        return self._unanswered.wake_at

    def nothing(self) -> None:
        """Was to be planned, not yet at least."""
        self._unanswered.nothing()

    def launched(self, work: Pass, spans: Sequence[tuple[int, int]], now: float) -> None:
        """`spans`: (position of the first token, tokens) of the pass's chunks."""
        self._pace.begin(work.plan.n_rows, sum(pairs(*span) for span in spans), now)
        if self._unanswered.launched(work):
            self._begin(work, now)

    def final(self, event: StepDone | StepFailed, now: float) -> Pass:
        """The oldest is; returns it."""
        work = self._unanswered.final(event)
        self._pulse.end(now)
        self._pace.end(now)
        if not self.idle:
            self._begin(self._unanswered.passes[0], now)
        return work

    def _begin(self, work: Pass, now: float) -> None:
        self._pulse.begin(work.step, work.plan.n_rows, now)
        self._unanswered.begun(self._pace.ends_at if self._plan_ahead else None, now)
