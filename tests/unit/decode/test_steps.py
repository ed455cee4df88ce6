"""When the next pass is planned: a little before the running one should end, as learnt."""

import numpy as np
import pytest

from common.engine.events import StepDone
from common.engine.plan import PassPlan, PassResult
from common.engine.reports import Pulse
from common.errors import InvariantBroken
from common.ids import StepId
from decode.passes import Pass
from decode.steps import LEAD_MAX_S, LEAD_MAX_SHARE, LEAD_MIN_S, Steps

STEP_S = 0.02
NONE = np.zeros(0, np.int64)
PLAN = PassPlan(
    tokens_T=np.zeros(4, np.int64),
    positions_T=NONE,
    slots_T=NONE,
    start_B1=NONE.astype(np.int32),
    len_B=NONE.astype(np.int32),
    tables_BM=np.zeros((0, 0), np.int32),
)


class Worker:
    def __init__(self, *, plan_ahead: bool = True) -> None:
        self.steps = Steps(Pulse(), plan_ahead=plan_ahead)
        self.now = 0.0
        self.launch()
        self.done()

    def launch(self) -> None:
        self.steps.launched(Pass(self.steps.next, (), PLAN), self.now)

    def done(self, *, ready_s: float = 0.001, step: int | None = None) -> None:
        """The oldest takes its time."""
        self.now += STEP_S
        number = StepId(self.steps.next - 1 if step is None else step)
        self.steps.final(StepDone(number, PassResult(), ready_s), self.now)

    @property
    def lead_s(self) -> float:
        """Before the end of the step that begins now."""
        assert self.steps.wake_at is not None
        return self.now + STEP_S - self.steps.wake_at

    def ahead(self, ready_s: float) -> None:
        """A pass, and one that is planned while it is computed."""
        self.launch()
        first = self.steps.next - 1
        self.launch()
        self.done(step=first)
        self.done(ready_s=ready_s)


def test_plans_that_come_too_late_are_made_earlier_and_the_others_later() -> None:
    worker = Worker()
    worker.launch()
    before_s = worker.lead_s
    worker.done()  # and no plan was there
    worker.launch()
    later_s = worker.lead_s
    assert later_s > before_s
    worker.launch()
    worker.done(step=worker.steps.next - 2)
    worker.done(ready_s=0.001)
    worker.launch()
    assert before_s < worker.lead_s < later_s


@pytest.mark.parametrize(("ready_s", "lead_s"), [(-0.001, LEAD_MAX_S), (0.001, LEAD_MIN_S)])
def test_the_lead_is_bounded(ready_s: float, lead_s: float) -> None:
    worker = Worker()
    for _ in range(100):
        worker.ahead(ready_s)
    worker.launch()
    assert worker.lead_s == pytest.approx(min(lead_s, LEAD_MAX_SHARE * STEP_S))


def test_two_may_be_unanswered_and_end_in_order() -> None:
    worker = Worker()
    worker.launch()
    assert worker.steps.may_plan(worker.now + STEP_S)
    worker.launch()
    assert not worker.steps.may_plan(worker.now + STEP_S)
    assert worker.steps.wake_at is None
    with pytest.raises(InvariantBroken, match="step 2 is final and was not running"):
        worker.done(step=2)


def test_where_nothing_could_be_planned_only_news_are_a_reason_to_try_again() -> None:
    worker = Worker()
    worker.launch()
    worker.steps.launched(None, worker.now)
    assert worker.steps.wake_at is None
    assert worker.steps.may_plan(worker.now + STEP_S)


def test_no_pass_is_planned_ahead_unless_it_is_asked_for() -> None:
    worker = Worker(plan_ahead=False)
    worker.launch()
    assert worker.steps.wake_at is None
    assert not worker.steps.may_plan(worker.now + STEP_S)
