import argparse
from collections.abc import Callable

import pytest

from bench.flag_types import above, at_least, between, list_of, positive, url, whole


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (positive, "1", 1),
        (whole, "0", 0),
        (whole, "12", 12),
        (above(0), "0.5", 0.5),
        (at_least(0), "0", 0.0),
        (at_least(0, below=1), "0.99", 0.99),
        (between(0, 1), "0", 0.0),
        (between(0, 1), "1", 1.0),
        (url, "127.0.0.1:8711", "http://127.0.0.1:8711"),
        (url, "localhost:80/v1/", "http://localhost:80"),
        (url, "https://h/v1", "https://h"),
        (list_of(positive), "1,8,32", [1, 8, 32]),
    ],
)
def test_what_makes_sense(parse: Callable[[str], object], text: str, value: object) -> None:
    assert parse(text) == value


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (positive, "0"),
        (positive, "-1"),
        (positive, "1.5"),
        (positive, "²"),
        (whole, "-0"),
        (above(0), "0"),
        (above(0), "nan"),
        (above(0), "x"),
        (at_least(0), "-0.1"),
        (at_least(0), "nan"),
        (at_least(0, below=1), "1"),
        (between(0, 1), "1.01"),
        (between(0, 1), "-0.01"),
        (between(0, 1), "nan"),
        (url, "ftp://h"),
        (url, ""),
        (list_of(positive), "1,,2"),
        (list_of(positive), ""),
    ],
)
def test_what_does_not(parse: Callable[[str], object], text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        parse(text)
