"""Results of a sweep on disk: what was measured is never measured again.

One file a point, written whole or not at all, so that a run may be killed at any moment. Beside
them lies what the points depend on; a run that would measure something else is refused. Must not
judge results.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, cast

import msgspec

from bench.client import Outcome

CONFIGURATION = "configuration.json"
_POINTS = "points"
Part = Literal["solo", "search", "compare"]
"""One request at a time; the search for goals; all servers at one rate."""
_NAME = re.compile(r"[A-Za-z0-9._-]+")


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """A point's place in a sweep."""

    part: Part
    server: str
    round: int  # from 0
    rate: float | None  # requests/s; None: one request at a time
    n_requests: int

    def __post_init__(self) -> None:
        """Raises ValueError where `server` is unfit for a file's name."""
        if not _NAME.fullmatch(self.server):
            raise ValueError(
                f"a server's name must be letters, digits and . _ -, not {self.server!r}"
            )

    @property
    def key(self) -> str:
        """Also a file's name."""
        rate = "" if self.rate is None else f"-rate-{self.rate:g}"
        return f"{self.server}-{self.part}-round-{self.round}{rate}-n-{self.n_requests}"


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured there."""

    setting: Setting
    began: float  # unix seconds
    outcomes: tuple[Outcome, ...]


class ConfigurationChanged(Exception):
    """The operator must choose another directory, or the stored configuration."""

    def __init__(self, directory: Path, differences: Mapping[str, tuple[object, object]]) -> None:
        self.differences = differences
        rows = [
            f"{name}: {stored!r} there, {asked!r} now"
            for name, (stored, asked) in differences.items()
        ]
        super().__init__(f"{directory} holds results of another configuration ({'; '.join(rows)})")


class Store:
    """The results in one directory. One process at a time."""

    def __init__(self, directory: Path, configuration: Mapping[str, object]) -> None:
        """`configuration`: JSON; all that a point depends on, and nothing else. Nothing is written
        before there is something to keep.

        Raises ConfigurationChanged where the directory holds points of another one, and
        ValueError where a file in it is none of ours.
        """
        self._directory = directory
        self._points = directory / _POINTS
        self._file = directory / CONFIGURATION
        self._configuration = msgspec.json.decode(msgspec.json.encode(configuration))
        if self._file.exists():
            differences = _differences(_stored(self._file), self._configuration)
            if differences:
                raise ConfigurationChanged(directory, differences)
        paths = sorted(self._points.iterdir()) if self._points.exists() else []
        self._by_key = {point.setting.key: point for point in map(_read, paths)}

    def begin(self) -> None:
        """Make the directory, and say in it what the points depend on. Raises OSError."""
        self._points.mkdir(parents=True, exist_ok=True)
        if not self._file.exists():
            told = msgspec.json.format(msgspec.json.encode(self._configuration)) + b"\n"
            self._write(self._file, told)

    @property
    def points(self) -> tuple[Point, ...]:
        """Every point measured so far, the oldest first."""
        return tuple(sorted(self._by_key.values(), key=lambda point: point.began))

    def find(self, setting: Setting) -> Point | None:
        """The point, if it was measured."""
        return self._by_key.get(setting.key)

    def add(self, point: Point) -> None:
        """It is on disk when this returns. Raises OSError."""
        self.begin()
        self._write(self._points / f"{point.setting.key}.json", msgspec.json.encode(point))
        self._by_key[point.setting.key] = point

    def _write(self, path: Path, data: bytes) -> None:
        """Whole or not at all."""
        unfinished = self._directory / f"{path.name}.unfinished"
        unfinished.write_bytes(data)
        unfinished.replace(path)


def _read(path: Path) -> Point:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Point)
    except msgspec.DecodeError as error:
        raise ValueError(f"{path}: {error}") from error


def _stored(configuration: Path) -> object:
    try:
        return msgspec.json.decode(configuration.read_bytes())
    except msgspec.DecodeError as error:
        raise ValueError(f"{configuration}: {error}") from error


def _differences(
    stored: object, asked: object, prefix: str = ""
) -> dict[str, tuple[object, object]]:
    """By dotted name: (stored, asked); None for what one of them lacks."""
    if stored == asked:
        return {}
    if not (isinstance(stored, dict) and isinstance(asked, dict)):
        return {prefix.removesuffix("."): (stored, asked)}
    there, now = cast("dict[str, object]", stored), cast("dict[str, object]", asked)
    found: dict[str, tuple[object, object]] = {}
    for name in dict.fromkeys([*there, *now]):
        found |= _differences(there.get(name), now.get(name), f"{prefix}{name}.")
    return found
