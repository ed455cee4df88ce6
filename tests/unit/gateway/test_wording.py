"""Counts, told to people."""

from launch.gateway.wording import count


def test_one_is_no_plural() -> None:
    assert [count(n, "item") for n in (0, 1, 2)] == ["0 items", "1 item", "2 items"]
    assert [count(n, "entry", "entries") for n in (1, 2)] == ["1 entry", "2 entries"]
