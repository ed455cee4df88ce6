"""The passes of a decode worker that are unanswered, and when the next one is to be planned.

Up to two: the next pass is planned while one is computed, as late as is safe, so that whoever
arrives meanwhile is in it. What that saves is the device's wait for a plan; where every core is
busy anyway, planning takes from computing what it saves. Decides when, never what.
"""

from collections import deque
from collections.abc import Iterable

from common.engine.events import StepDone, StepFailed
from common.engine.lead import Lead
from common.engine.reports import Pulse
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
        self._unanswered: deque[Pass] = deque()
        self._ahead: set[StepId] = set()  # of these: planned while another was computed
        self._next = StepId(0)
        self._lead = Lead(
            first_s=LEAD_FIRST_S,
            step_s=LEAD_STEP_S,
            least_s=LEAD_MIN_S,
            most_s=LEAD_MAX_S,
            most_share=LEAD_MAX_SHARE,
        )
        self._plan_at: float | None = None  # while the oldest is computed; None: not ahead
        self._in_vain = False  # while this step runs, there was nothing to plan ahead

    @property
    def idle(self) -> bool:
        return not self._unanswered

    @property
    def next(self) -> StepId:
        """The number of the next pass."""
        return self._next

    def may_plan(self, now: float) -> bool:
        """While one is computed: whether the next is to be planned now."""
        at = self._plan_at
        return at is not None and now >= at and len(self._unanswered) == 1

    @property
    def wake_at(self) -> float | None:
        """When to plan; None: not before something happens."""
        return None if self._in_vain or len(self._unanswered) != 1 else self._plan_at

    def launched(self, work: Pass | None, now: float) -> None:
        """What planning came to; None: nothing can run, not yet at least."""
        if work is None:
            self._in_vain = True
            return
        if self._unanswered:
            self._ahead.add(work.step)
        else:
            self._begin(work, now)
        self._unanswered.append(work)
        self._next = StepId(work.step + 1)

    def final(self, event: StepDone | StepFailed, now: float) -> Pass:
        """The oldest is; returns it."""
        if not self._unanswered or self._unanswered[0].step != event.step:
            raise InvariantBroken(f"step {event.step} is final and was not running")
        self._learn(event)
        work = self._unanswered.popleft()
        self._ahead.discard(work.step)
        self._pulse.end(now, len(event.result.rounds) if isinstance(event, StepDone) else 1)
        if self._unanswered:
            self._begin(self._unanswered[0], now)
        return work

    def _begin(self, work: Pass, now: float) -> None:
        self._in_vain = False
        self._pulse.begin(work.step, work.plan.n_rows, now)
        ends_at = self._pulse.ends_at if self._plan_ahead else None
        self._plan_at = None if ends_at is None else self._lead.plan_at(ends_at, now)

    def _learn(self, event: StepDone | StepFailed) -> None:
        if event.step in self._ahead:
            self._lead.learn(late=isinstance(event, StepDone) and event.ready_s < 0)
        elif len(self._unanswered) == 1 and self.wake_at is not None:
            self._lead.learn(late=True)  # the step ended, and the next was not planned

    def unread(self) -> dict[InstanceId, int]:
        """Tokens that will be drawn for each gateway; a few of them perhaps in vain."""
        drawn: dict[InstanceId, int] = {}
        for work in self._unanswered:
            for row in work.rows:
                if row.draws:
                    gateway = row.sample.transfer.gateway
                    n_drawn = len(row.draws) * work.plan.repeats
                    drawn[gateway] = drawn.get(gateway, 0) + n_drawn
        return drawn

    def check(self, samples: Iterable[Sample]) -> None:
        """Raise InvariantBroken unless the tables say what unanswered passes do to them."""
        ahead: dict[int, tuple[StepId | None, int, int]] = {}
        for work in self._unanswered:
            for row in work.rows:
                _, n_tokens, n_draws = ahead.get(id(row.table), (None, 0, 0))
                n_tokens += row.end - row.start
                ahead[id(row.table)] = (work.step, n_tokens, n_draws + bool(row.draws))
        for sample in samples:
            table = sample.table
            if (table.step, table.n_ahead, table.n_unread) != ahead.get(id(table), (None, 0, 0)):
                raise InvariantBroken(f"{sample.who}: {table} is not what steps do to it")
