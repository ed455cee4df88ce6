"""How much is in a body, beside what it decodes to."""

import json
from random import Random
from typing import Any

import pytest

from common.errors import ClientError
from launch.gateway.api import amounts
from launch.gateway.api.amounts import MAX_ENTRIES, MAX_LISTS, Amount, amount, check_amount

TRICKY = ["", "a,b", "[{", "]},", '"', '\\"', "\\", "\\\\", ',"', "é,\\\n", "\\u005b"]


def counted(value: Any) -> Amount:  # noqa: ANN401 - any JSON
    """Commas and lists of its JSON, and lists."""
    if not isinstance(value, list | dict):
        return Amount(0, 0)
    inner = [*map(counted, value.values() if isinstance(value, dict) else value)]
    lists = 1 + sum(one.lists for one in inner)
    return Amount(max(len(value), 1) + sum(one.entries for one in inner), lists)


def some(rng: Random, depth: int) -> Any:  # noqa: ANN401 - any JSON
    kind = rng.randrange(4 if depth else 2)
    if kind == 0:
        return rng.choice(TRICKY)
    if kind == 1:
        return rng.choice([1, None, -2.5, True])
    several = [some(rng, depth - 1) for _ in range(rng.randrange(6))]
    if kind == 2:
        return several
    return {f"{rng.choice(TRICKY)}{n}": one for n, one in enumerate(several)}


def test_what_stands_in_strings_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(amounts, "MAX_LISTS", -1)  # so that all is counted exactly
    rng = Random(1)
    for piece_bytes in (1, 2, 3, 7, 2**17):
        monkeypatch.setattr(amounts, "_PIECE_BYTES", piece_bytes)
        for _ in range(50):
            value = some(rng, 4)
            for escaped in (True, False):
                body = json.dumps(value, ensure_ascii=escaped).encode()
                assert amount(body) == counted(value), body


def test_texts_may_have_as_many_commas_as_they_like() -> None:
    text = json.dumps({"prompt": "[, {" * MAX_ENTRIES}).encode()
    assert amount(text) == Amount(1, 1)
    check_amount(text)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"[" + b",".join([b"1"] * MAX_ENTRIES) + b"]", None),
        (b"[" + b",".join([b"1"] * (MAX_ENTRIES + 1)) + b"]", "1 list or object, with 262145"),
        (b"[" + b",".join([b"{}"] * (MAX_LISTS - 1)) + b"]", None),
        (b"[" + b",".join([b"{}"] * MAX_LISTS) + b"]", "32769 lists and objects, with 65536"),
        (b"[" * (MAX_LISTS + 1), "32769 lists and objects"),
    ],
)
def test_the_bounds(body: bytes, told: str | None) -> None:
    if told is None:
        check_amount(body)
        return
    with pytest.raises(ClientError, match=told) as raised:
        check_amount(body)
    assert raised.value.status == 413
