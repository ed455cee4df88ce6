"""What a decode worker is foreseen to decode, against what can be said without foreseeing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launch.gateway.overload import Answer, Device, decoded, judge

STEP_S = 0.01
ROUNDING = 1e-6  # tokens
answers = st.lists(
    st.builds(
        Answer,
        starts_s=st.one_of(st.just(0.0), st.floats(0.001, 3.0)),
        n_tokens=st.integers(1, 4000),
        n_left=st.integers(1, 500),
    ),
    max_size=30,
)
devices = st.builds(
    Device,
    base_s=st.floats(1e-3, 0.1),
    row_s=st.floats(0.0, 1e-2),
    token_s=st.floats(0.0, 1e-5),
    most_rows=st.just(64),
    max_num_seqs=st.integers(1, 64),
)


@given(answers, st.floats(0.0, 6.0))
def test_where_steps_are_alike_each_goes_on_by_itself(others: list[Answer], at_s: float) -> None:
    there = decoded(others, Device(STEP_S, 0.0, 0.0, 64, 64), at_s)
    left = sorted(one.n_left - (at_s - one.starts_s) / STEP_S for one in _begun(others, at_s))
    foreseen = [n_left for n_left, _ in there if n_left > ROUNDING]
    assert foreseen == pytest.approx([n for n in left if n > ROUNDING], abs=ROUNDING)
    assert sum(n_left + n for n_left, n in there if n_left > ROUNDING) == pytest.approx(
        sum(
            one.n_left + one.n_tokens
            for one in _begun(others, at_s)
            if one.n_left - (at_s - one.starts_s) / STEP_S > ROUNDING
        )
    )


def _begun(others: list[Answer], at_s: float) -> list[Answer]:
    return [one for one in others if one.starts_s <= at_s]


@given(answers, devices, st.floats(0.0, 6.0))
def test_nobody_says_less_than_nothing(others: list[Answer], device: Device, at_s: float) -> None:
    there = decoded(others, device, at_s)
    assert len(there) <= sum(one.starts_s <= at_s for one in others)
    assert [n_left for n_left, _ in there] == sorted(n_left for n_left, _ in there)
    for n_left, n_tokens in there:
        assert n_left > -ROUNDING
        assert n_tokens > 0


@given(answers, answers, devices, st.floats(1e-3, 0.5))
def test_whoever_is_refused_now_is_refused_beside_more(
    others: list[Answer], more: list[Answer], device: Device, owed_s: float
) -> None:
    own = [Answer(0.0, 100, 50)]
    if judge(own, owed_s, others, device, 0.0) is not None:
        verdict = judge(own, owed_s, [*others, *more], device, 0.0)
        assert verdict is not None
        assert verdict.tpot_s > owed_s * 0.9 - 1e-9
        idle = judge(own, owed_s, [], device, 0.0)
        if idle is not None:
            assert verdict == idle
            assert verdict.retry_after_s is None
        else:
            assert verdict.retry_after_s is not None
            assert 1.0 <= verdict.retry_after_s <= 60.0
