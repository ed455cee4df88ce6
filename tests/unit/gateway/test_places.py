from pathlib import Path

import pytest

from launch.gateway.places import ALL, Places, make_shared, of_key

N_KEYS = 2


@pytest.fixture
def two(tmp_path: Path) -> tuple[Places, Places]:
    """Two gateways of one server."""
    shared = tmp_path / "places"
    make_shared(shared, 2, N_KEYS)
    first, second = (Places(N_KEYS, shared=shared, gateway=number) for number in (0, 1))
    return first, second


def test_as_many_are_taken_as_the_limit_says() -> None:
    places = Places()
    assert [places.take(ALL, 2) for _ in range(3)] == [True, True, False]
    places.give_back(ALL)
    assert places.take(ALL, 2)


def test_gateways_share_a_limit(two: tuple[Places, Places]) -> None:
    first, second = two
    assert first.take(ALL, 2)
    assert second.take(ALL, 2)
    assert not first.take(ALL, 2)
    assert not second.take(ALL, 2)
    second.give_back(ALL)
    assert first.take(ALL, 2)


def test_each_key_has_its_own(two: tuple[Places, Places]) -> None:
    first, second = two
    assert first.take(of_key(0), 1)
    assert second.take(of_key(1), 1)
    assert not second.take(of_key(0), 1)
    assert second.take(ALL, 1)


def test_what_a_dead_gateway_had_is_given_back(two: tuple[Places, Places]) -> None:
    first, second = two
    assert second.take(ALL, 1)
    assert not first.take(ALL, 1)
    first.clear(1)
    assert first.take(ALL, 1)


def test_a_gateway_begins_with_nothing(tmp_path: Path) -> None:
    shared = tmp_path / "places"
    make_shared(shared, 2, 0)
    assert Places(shared=shared, gateway=1).take(ALL, 1)
    assert Places(shared=shared, gateway=1).take(ALL, 1)
