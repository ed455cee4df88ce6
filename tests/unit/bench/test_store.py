"""Results on disk outlive the process that measured them, and are never mixed with others."""

from pathlib import Path

import pytest

from bench.client import Outcome
from bench.store import ConfigurationChanged, Point, Setting, Store

CONFIGURATION = {"servers": {"a": "http://127.0.0.1:1"}, "seed": 0}


def setting(rate: float | None = 2.0, *, number: int = 0, n_requests: int = 2) -> Setting:
    part = "solo" if rate is None else "search"
    return Setting(part=part, server="a", round=number, rate=rate, n_requests=n_requests)


def point(where: Setting, began: float = 0) -> Point:
    return Point(
        setting=where,
        began=began,
        outcomes=(
            Outcome(index=0, scheduled_s=0, sent_s=0.1, chunk_times_s=[0.3, 0.4], output_tokens=2),
            Outcome(index=1, scheduled_s=0, sent_s=0.2, error="timeout"),
        ),
    )


def test_what_was_added_is_there_after_a_new_start(tmp_path: Path) -> None:
    store = Store(tmp_path, CONFIGURATION)
    added = [
        point(setting(4.0), began=3),
        point(setting(None), began=1),
        point(setting(2.0, number=1), began=2),
    ]
    for each in added:
        store.add(each)
    again = Store(tmp_path, CONFIGURATION)
    assert again.points == (added[1], added[2], added[0])
    assert again.find(setting(4.0)) == added[0]
    assert again.find(setting(None)) == added[1]
    assert again.find(setting(4.0, n_requests=200)) is None


def test_a_kill_while_writing_leaves_no_broken_point(tmp_path: Path) -> None:
    Store(tmp_path, CONFIGURATION).add(point(setting()))
    (tmp_path / "a-round-0-rate-4-n-2.json.unfinished").write_bytes(b'{"server":')
    assert Store(tmp_path, CONFIGURATION).points == (point(setting()),)


def test_nothing_is_written_before_there_is_something_to_keep(tmp_path: Path) -> None:
    store = Store(tmp_path / "sweep", CONFIGURATION)
    assert list(tmp_path.iterdir()) == []
    store.add(point(setting()))
    assert {path.name for path in (tmp_path / "sweep").iterdir()} == {
        "configuration.json",
        "points",
    }


def test_a_changed_configuration_is_refused_with_what_differs(tmp_path: Path) -> None:
    Store(tmp_path, CONFIGURATION).begin()
    changed = {"servers": {"a": "http://127.0.0.1:2"}, "seed": 0, "model": "m"}
    with pytest.raises(ConfigurationChanged) as caught:
        Store(tmp_path, changed)
    assert caught.value.differences == {
        "servers.a": ("http://127.0.0.1:1", "http://127.0.0.1:2"),
        "model": (None, "m"),
    }
    assert "servers.a: 'http://127.0.0.1:1' there, 'http://127.0.0.1:2' now" in str(caught.value)


def test_a_configuration_is_the_same_after_its_way_through_json(tmp_path: Path) -> None:
    Store(tmp_path, {"scales": (1, 2)}).begin()
    Store(tmp_path, {"scales": [1, 2]})


def test_a_file_that_is_none_of_ours_is_named(tmp_path: Path) -> None:
    Store(tmp_path, CONFIGURATION).begin()
    (tmp_path / "points" / "x.json").write_text("{}")
    with pytest.raises(ValueError, match=r"x\.json"):
        Store(tmp_path, CONFIGURATION)
    (tmp_path / "configuration.json").write_text("{")
    with pytest.raises(ValueError, match=r"configuration\.json"):
        Store(tmp_path, CONFIGURATION)


@pytest.mark.parametrize("name", ["", "a/b", "a b", "../a"])
def test_a_name_that_is_no_file_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="name"):
        Setting(part="search", server=name, round=0, rate=1.0, n_requests=1)
