import pytest

from common.errors import InvariantBroken
from decode.state import NEXT, Event, Phase, Transfer, diagram
from tests.unit.decode.builders import G, expect


def test_every_phase_can_reach_the_end() -> None:
    reach = {Phase.ENDED}
    while more := {a for (a, _), b in NEXT.items() if b in reach} - reach:
        reach |= more
    assert reach == set(Phase)


def test_every_phase_is_left_by_the_gateways_end_at_once() -> None:
    assert all(NEXT[phase, Event.ENDED] is Phase.ENDED for phase in Phase if phase != Phase.ENDED)
    assert not any(phase is Phase.ENDED for phase, _ in NEXT)


def test_failed_is_sticky() -> None:
    assert [event for phase, event in NEXT if phase is Phase.FAILED] == [Event.ENDED]


def test_a_pair_outside_the_table_is_a_bug() -> None:
    transfer = Transfer(expect(), G, 0, 2)
    with pytest.raises(InvariantBroken, match="t: joined while queued"):
        transfer.on(Event.JOINED)


def test_the_diagram_has_a_line_for_every_row() -> None:
    lines = diagram().splitlines()
    assert lines[:3] == [
        "stateDiagram-v2",
        "    [*] --> queued",
        "    queued --> calling: admitted",
    ]
    assert len(lines) == 2 + len(NEXT)
