"""Priorities of prompts: a head start, and no more."""

import pytest

from prefill.scheduler import PRIORITY_S, due_at
from tests.unit.prefill.builders import Bench, D, accept, prefill


def test_a_level_is_worth_so_much_waiting_with_a_deadline_or_without() -> None:
    for deadline_s in (None, 2.0):
        plain = due_at(10.0, 100, deadline_s)
        assert due_at(10.0, 100, deadline_s, 1) == pytest.approx(plain + PRIORITY_S)
        assert due_at(10.0, 100, deadline_s, -3) == pytest.approx(plain - 2 * PRIORITY_S)


def test_whoever_is_passed_has_waited_enough_in_the_end() -> None:
    last = due_at(0.0, 100, None, 2**31 - 1)
    assert due_at(62 * PRIORITY_S + 1, 100, None, -(2**31)) > last


def test_a_prompt_of_a_lower_number_is_computed_first() -> None:
    bench = Bench(max_num_batched_tokens=4, chunk_tokens=4)
    bench.hear(prefill(4, transfer="runs"))
    for name, priority in (("later", 5), ("plain", 0), ("first", -1)):
        bench.hear(prefill((ord(name[0]),) * 4, transfer=name, priority=priority))
        bench.hear(accept(name), sender=D)
    bench.done(50)
    rows: list[int] = []
    while bench.launched is not None:
        rows.append(bench.rows[0][0])
        bench.done(50)
    assert "".join(map(chr, rows)) == "fpl"
