"""Numbers on a command line, refused where they make no sense: types for argparse."""

import argparse
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


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


def list_of(one: Callable[[str], T]) -> Callable[[str], list[T]]:
    """Separated by commas."""

    def parse_all(text: str) -> list[T]:
        return [one(part) for part in text.split(",")]

    return parse_all


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text}: must be a number") from None
