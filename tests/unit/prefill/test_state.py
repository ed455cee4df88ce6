import pytest

from common.errors import InvariantBroken
from common.ids import InstanceId, TransferId
from common.messages import Prefill, Resume
from common.params import SamplingParams
from prefill.state import NEXT, Event, Phase, Prompt


def test_every_phase_can_reach_retired() -> None:
    ends = {Phase.RETIRED}
    for _ in Phase:
        ends |= {before for (before, _), after in NEXT.items() if after in ends}
    assert ends == set(Phase)


def test_every_phase_can_be_reached_from_waiting() -> None:
    reached = {Phase.WAITING}
    for _ in Phase:
        reached |= {after for (before, _), after in NEXT.items() if before in reached}
    assert reached == set(Phase)


def test_a_prompt_can_be_ended_in_every_phase_but_the_last() -> None:
    ended = {before for (before, event) in NEXT if event is Event.ENDED}
    assert ended == set(Phase) - {Phase.RETIRED}


def test_what_is_not_in_the_table_is_a_bug() -> None:
    request = Prefill(
        transfer=TransferId("t"),
        attempt=1,
        prompt=(1,),
        samples=(Resume(0),),
        params=SamplingParams(max_tokens=1, seed=0),
        decode=InstanceId("d"),
    )
    prompt = Prompt(request, InstanceId("g"), 0.0, 0.0, (1,), (), 0)
    with pytest.raises(InvariantBroken, match="t: released while waiting"):
        prompt.on(Event.RELEASED)
