"""What a run of chaos does is a function of its seed."""

from itertools import islice

import pytest

from bench.chaos.plan import (
    LONG_S,
    PROMPT_TOKENS,
    SHORT_S,
    Fault,
    Kind,
    Struck,
    Worker,
    asks,
    faults,
    prompts,
    target,
)

P, Q, D = (Worker(role, pid, "i") for role, pid in (("prefill", 7), ("prefill", 3), ("decode", 9)))


def test_a_seed_says_all() -> None:
    def made(seed: int) -> object:
        planned = faults(seed, seconds=60, every_s=5, kinds=list(Kind))
        return planned, prompts(seed, 8), list(islice(asks(seed, 2, 8), 9))

    assert made(3) == made(3)
    assert made(3) != made(4)
    assert list(islice(asks(3, 1, 8), 9)) != list(islice(asks(3, 2, 8), 9))


def test_faults_come_at_their_times_and_are_over_when_the_run_is() -> None:
    planned = faults(1, seconds=600, every_s=5, kinds=list(Kind))
    assert [fault.at_s for fault in planned] == [5 * n for n in range(1, 120)]
    assert [fault.number for fault in planned] == list(range(119))
    assert max(fault.at_s + fault.lasts_s for fault in planned) <= 600
    assert {(fault.kind, fault.is_long) for fault in planned} == {
        (Kind.KILL, False),
        *((kind, is_long) for kind in (Kind.STOP, Kind.CUT) for is_long in (False, True)),
    }
    for fault in planned:
        lasting = (SHORT_S[fault.kind], LONG_S) if fault.kind in SHORT_S else ((0.0, 0.0),)
        ends = fault.at_s + fault.lasts_s == 600
        assert ends or any(low <= fault.lasts_s <= high for low, high in lasting)


def test_only_kinds_that_were_asked_for() -> None:
    planned = faults(1, seconds=100, every_s=1, kinds=[Kind.STOP, Kind.KILL])
    assert {fault.kind for fault in planned} == {Kind.STOP, Kind.KILL}


@pytest.mark.parametrize(("pick", "worker"), [(0.0, D), (0.4, Q), (0.99, P)])
def test_a_fault_befalls_one_of_the_workers_whatever_their_order(
    pick: float, worker: Worker
) -> None:
    fault = Fault(0, 5.0, Kind.KILL, 0.0, pick)
    assert target(fault, [P, Q, D], frozenset()) == target(fault, [D, P, Q], frozenset()) == worker


def test_a_worker_is_spared_while_another_fault_lasts() -> None:
    fault = Fault(0, 5.0, Kind.KILL, 0.0, 0.0)
    assert target(fault, [P, Q, D], frozenset({9})) == Q
    assert target(fault, [P, D], frozenset({7, 9})) is None


def test_a_fault_that_was_done_says_what_when_and_to_whom() -> None:
    stopped = Struck(Fault(4, 25.0, Kind.STOP, 2.5, 0.1), Worker("decode", 9, "c0ffee" * 5), 25.04)
    assert str(stopped) == "fault 4 (stop decode worker c0ffeec0 at 25.0 s for 2.5 s)"
    killed = Struck(Fault(5, 30.0, Kind.KILL, 0.0, 0.1), D, 30.0)
    assert str(killed) == "fault 5 (kill decode worker i at 30.0 s)"


def test_prompts_are_of_all_lengths_and_both_ways_of_sampling() -> None:
    made = prompts(1, 24)
    assert {len(prompt.request.prompt) for prompt in made} == set(PROMPT_TOKENS)
    assert {prompt.sampling["temperature"] for prompt in made} == {0.0, 0.9}
    assert len({tuple(prompt.request.prompt) for prompt in made}) == 24


def test_some_stream_some_do_not_and_some_leave() -> None:
    made = list(islice(asks(1, 0, 24), 400))
    assert {ask.prompt for ask in made} == set(range(24))
    for ways in ([a.stream for a in made], [a.leaves_after_s is not None for a in made]):
        assert 50 < sum(ways) < 350
    assert [ask.name for ask in made[:3]] == ["c0/0", "c0/1", "c0/2"]
