"""The passes of a decode worker that are unanswered, and when the next one is to be planned.

Up to two: the next pass is planned while one is computed, as late as is safe, so that whoever
arrives meanwhile is in it. What that saves is the device's wait for a plan; where every core is
busy anyway, planning takes from computing what it saves. Decides when, never what.
"""

from collections.abc import Iterable

from common.engine.events import StepDone, StepFailed
from common.engine.lead import Lead
from common.engine.reports import Pulse
from common.engine.unanswered import Unanswered
from common.errors import InvariantBroken
from common.ids import InstanceId, StepId
from decode.passes import Pass
from decode.state import Sample

LEAD_FIRST_S = 1e-3
LEAD_STEP_S = 2e-4
LEAD_MIN_S = 2e-4
LEAD_MAX_S = 5e-3
LEAD_MAX_SHARE = 0.3  # of a step


class Steps:
    """Oldest first. A step begins when it is launched or the one before it is final."""

    def __init__(self, pulse: Pulse, *, plan_ahead: bool) -> None:
        self._pulse = pulse
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

    def may_plan(self, now: float) -> bool:
        """While one is computed: whether the next is to be planned now."""
        return self._unanswered.may_plan(now)

    @property
    def wake_at(self) -> float | None:
        """When to plan; None: not before something happens."""
        return self._unanswered.wake_at

    def launched(self, work: Pass | None, now: float) -> None:
        """What planning came to; None: nothing can run, not yet at least."""
        if work is None:
            self._unanswered.nothing()
        elif self._unanswered.launched(work):
            self._begin(work, now)

    def final(self, event: StepDone | StepFailed, now: float) -> Pass:
        """The oldest is; returns it."""
        work = self._unanswered.final(event)
        self._pulse.end(now, len(event.result.rounds) if isinstance(event, StepDone) else 1)
        if not self.idle:
            self._begin(self._unanswered.passes[0], now)
        return work

    def _begin(self, work: Pass, now: float) -> None:
        self._pulse.begin(work.step, work.plan.n_rows, now)
        self._unanswered.begun(self._pulse.ends_at if self._plan_ahead else None, now)

    def unread(self) -> dict[InstanceId, int]:
        """Tokens that will be drawn for each gateway; a few of them perhaps in vain."""
        drawn: dict[InstanceId, int] = {}
        for work in self._unanswered.passes:
            for row in work.rows:
                if row.draws:
                    gateway = row.sample.transfer.gateway
                    n_drawn = len(row.draws) * work.plan.repeats
                    drawn[gateway] = drawn.get(gateway, 0) + n_drawn
        return drawn

    def check(self, samples: Iterable[Sample]) -> None:
        """Raise InvariantBroken unless the tables say what unanswered passes do to them."""
        ahead: dict[int, tuple[StepId | None, int, int]] = {}
        for work in self._unanswered.passes:
            for row in work.rows:
                _, n_tokens, n_draws = ahead.get(id(row.table), (None, 0, 0))
                n_tokens += row.end - row.start
                ahead[id(row.table)] = (work.step, n_tokens, n_draws + bool(row.draws))
        for sample in samples:
            table = sample.table
            if (table.step, table.n_ahead, table.n_unread) != ahead.get(id(table), (None, 0, 0)):
                raise InvariantBroken(f"{sample.who}: {table} is not what steps do to it")
