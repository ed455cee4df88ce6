"""Files of JSON lines, each checked against a type. Imports nothing of the engine."""

from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

T = TypeVar("T")


def read_lines(path: Path, line_type: type[T]) -> Iterator[T]:
    """Empty lines are left out. Raises ValueError, with the place, for what is not of that type."""
    decode = msgspec.json.Decoder(line_type).decode
    with path.open(encoding="utf-8-sig") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                try:
                    yield decode(line)
                except msgspec.DecodeError as error:
                    raise ValueError(f"{path}:{number}: {error}") from None
