"""Who is up, what this gateway has there, and which pairs are barred."""

import pytest

from common.errors import InvariantBroken
from common.ids import Role, TransferId
from launch.gateway.fleet import BAR_S, Fleet
from launch.gateway.transfers import Sample, Slo, Transfer
from launch.gateway.views import Demand
from tests.unit.gateway.builders import D2, P2, D, P, generate, hello, limits, peer, snapshot

DEMAND = Demand(n_tokens=6, max_tokens=4, hashes=())
NOBODY = frozenset[str]()


def fleet(*instances: str) -> Fleet:
    made = Fleet("always")
    for instance in instances or (P, D):
        made.up(hello(instance))  # pyright: ignore[reportArgumentType] InstanceId
    return made


def transfer(n: int = 1) -> Transfer:
    """6 prompt tokens, up to 4 outputs a sample."""
    made = Transfer(TransferId("t"), generate(n=n), [Sample(i) for i in range(n)])
    made.prefill, made.decode = peer(P), peer(D)
    return made


def test_workers_by_role() -> None:
    made = fleet(P, P2, D)
    assert [view.instance for view in made.of(Role.PREFILL)] == [P, P2]
    assert made.instances() == (P, P2, D)
    assert made.role(D) is Role.DECODE
    assert made.role(D2) is None
    assert made.down(P)
    assert not made.down(P)
    assert P not in made


def test_the_least_context_bounds_every_prompt() -> None:
    made = fleet()
    made.up(hello(D2, limits(max_model_len=100)))
    assert made.max_model_len == 100
    assert Fleet().max_model_len is None


def test_a_transfer_counts_where_it_is_and_its_prompt_until_it_is_computed() -> None:
    made = fleet()
    two = transfer(n=2)
    made.assign(two)
    assert made.loads() == {P: 6, D: 6 + 2 * 4}
    made.computed(two)
    made.computed(two)
    assert made.loads() == {D: 14}
    made.unassign(two)
    assert made.loads() == {}


def test_decode_is_told_what_is_to_come_until_it_is_computed() -> None:
    made, one = fleet(), transfer()
    one.handed_by = 3.0
    made.assign(one)
    (decode,) = made.of(Role.DECODE)
    assert (decode.own_coming, decode.busy, decode.n_decoding) == ({one.transfer: 3.0}, 1, 0)
    made.computed(one)
    assert (decode.own_coming, decode.busy, decode.n_decoding) == ({}, 1, 1)
    made.unassign(one)
    one.prefill = None
    made.assign(one)
    assert (decode.own_coming, decode.queued_tokens, decode.n_decoding) == ({}, 6, 1)
    made.unassign(one)
    assert (decode.busy, decode.queued_tokens) == (0, 0)


def test_a_stated_tpot_counts_while_it_is_owed() -> None:
    made, one, other = fleet(), transfer(), transfer()
    one.generate = generate(slo=Slo(tpot_s=0.03))
    other.generate = generate(slo=Slo(tpot_s=0.05))
    (decode,) = made.of(Role.DECODE)
    tightest: list[float | None] = []
    for act in (made.assign, made.unassign):
        for asked in (other, one):
            act(asked)
            tightest.append(decode.tightest_tpot_s)
    assert tightest == [0.05, 0.03, 0.03, None]


def test_a_transfer_that_ends_early_is_counted_no_more() -> None:
    made, one = fleet(), transfer()
    made.assign(one)
    made.unassign(one)
    assert made.loads() == {}


def test_counting_a_transfer_out_twice_is_a_bug() -> None:
    made, one = fleet(), transfer()
    made.assign(one)
    made.unassign(one)
    with pytest.raises(InvariantBroken, match="decode-1"):
        made.unassign(one)


def test_a_worker_that_went_down_has_nothing_and_begins_anew() -> None:
    made, one = fleet(), transfer()
    made.assign(one)
    made.down(D)
    made.up(hello(D))
    assert made.loads() == {P: 6}


def test_a_second_hello_keeps_what_is_counted() -> None:
    made, one = fleet(), transfer()
    made.assign(one)
    made.up(hello(D))
    made.unassign(one)
    assert made.loads() == {}


def test_a_barred_pair_is_tried_again_after_a_while() -> None:
    made = fleet()
    made.bar(P, D, now=1.0)
    (before, after) = (
        made.route(DEMAND, now, frozenset()) for now in (1.0 + BAR_S - 0.1, 1.0 + BAR_S)
    )
    assert before is not None
    assert before.prefill is None
    assert after is not None
    assert after.prefill == P


def test_a_new_life_is_not_barred() -> None:
    made = fleet()
    made.bar(P, D, now=1.0)
    made.down(D)
    made.up(hello(D))
    found = made.route(DEMAND, 1.0, frozenset())
    assert found is not None
    assert found.prefill == P


def test_those_to_avoid_are_avoided_if_there_are_others() -> None:
    made = fleet(P, P2, D)
    found = made.route(DEMAND, 0.0, frozenset({P, D}))
    assert found is not None
    assert (found.prefill, found.decode) == (P2, D)


def test_a_missed_snapshot_calls_for_a_whole_one() -> None:
    made = fleet()
    assert made.snapshot(P, snapshot(1))
    assert not made.snapshot(P, snapshot(3, whole=False))
    assert made.snapshot(D2, snapshot(3, whole=False))  # nobody's
