"""A command line whose faults are one line each, and types for argparse: numbers, URLs."""

import argparse
import json
import os
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from bench.exits import USAGE_EXIT

T = TypeVar("T")
_NEAR = 0.75  # difflib's ratio


class Parser(argparse.ArgumentParser):
    """Exits with 2 and one line on stderr, without the usage. No flag may be cut short: what is
    unique today would mean another flag tomorrow."""

    def __init__(
        self,
        *,
        prog: str,
        description: str | None = None,
        epilog: str | None = None,
        formatter_class: type[argparse.HelpFormatter] = argparse.HelpFormatter,
    ) -> None:
        super().__init__(
            prog=prog,
            description=description,
            epilog=epilog,
            formatter_class=formatter_class,
            allow_abbrev=False,
        )

    def parse_all(self, argv: Sequence[str]) -> argparse.Namespace:
        """What no flag takes is refused with the nearest that there is."""
        options, rest = self.parse_known_args(argv)
        if rest:
            self.refuse(rest)
        return options

    def error(self, message: str) -> NoReturn:
        self.exit(USAGE_EXIT, f"{self.prog}: error: {message.removeprefix('argument ')}\n")

    @property
    def flags(self) -> list[str]:
        return [flag for action in self._actions for flag in action.option_strings]

    def refuse(self, rest: Sequence[str], also: Sequence[str] = ()) -> NoReturn:
        """`rest`: what no flag took. `also`: flags known elsewhere, worth a hint."""
        unknown = next((part for part in rest if part.startswith("-")), None)
        if unknown is None:
            self.error(f"unexpected argument {rest[0]!r}: every setting has a flag")
        name = unknown.partition("=")[0]
        near = get_close_matches(name, [*self.flags, *also], n=1, cutoff=_NEAR)
        hint = f"; did you mean {near[0]}?" if near else "; --help lists all"
        self.error(f"unknown flag {name}{hint}")


def positive(text: str) -> int:
    """A whole number from 1 on."""
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text}: must be a number from 1 on")
    return int(text)


def whole(text: str) -> int:
    """A whole number from 0 on."""
    return 0 if text == "0" else positive(text)


def above(lowest: float) -> Callable[[str], float]:
    def parse_one(text: str) -> float:
        value = _number(text)
        if not value > lowest:
            raise argparse.ArgumentTypeError(f"{text}: must be above {lowest:g}")
        return value

    return parse_one


def at_least(lowest: float, below: float | None = None) -> Callable[[str], float]:
    def parse_one(text: str) -> float:
        value = _number(text)
        if not value >= lowest:
            raise argparse.ArgumentTypeError(f"{text}: must be at least {lowest:g}")
        if below is not None and value >= below:
            raise argparse.ArgumentTypeError(f"{text}: must be below {below:g}")
        return value

    return parse_one


def between(lowest: float, highest: float) -> Callable[[str], float]:
    """Both may be taken."""

    def parse_one(text: str) -> float:
        value = _number(text)
        if not lowest <= value <= highest:
            raise argparse.ArgumentTypeError(f"{text}: must be from {lowest:g} to {highest:g}")
        return value

    return parse_one


def url(text: str) -> str:
    """http:// is understood; without a / or /v1 at its end."""
    made = text if "://" in text else f"http://{text}"
    if not made.startswith(("http://", "https://")) or made.endswith("://"):
        raise argparse.ArgumentTypeError(f"{text}: must be http://HOST:PORT")
    return made.rstrip("/").removesuffix("/v1")


def model_path(text: str) -> Path:
    """A model's files: whether they are a model, whoever reads them finds out."""
    if not os.access(text, os.F_OK):
        raise argparse.ArgumentTypeError(
            f"{text}: there is no such file; it takes a .gguf file or a folder with config.json, "
            "such as what `baton fetch` prints"
        )
    return Path(text)


def list_of(one: Callable[[str], T]) -> Callable[[str], list[T]]:
    """Separated by commas."""

    def parse_all(text: str) -> list[T]:
        return [one(part) for part in text.split(",")]

    return parse_all


def json_object(text: str) -> dict[str, Any]:
    """One JSON object."""
    try:
        made = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text}: {error}") from None
    if not isinstance(made, dict):
        raise argparse.ArgumentTypeError(f"{text}: must be a JSON object")
    return made


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text}: must be a number") from None
