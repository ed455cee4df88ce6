"""Every plot is a picture that shows something, also of the little that a stopped sweep has."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

from bench import plots
from bench.request_log import Life, Span, Stage
from bench.search import Sample

CURVE = [Sample(1, 1.0), Sample(2, 0.95), Sample(4, 0.3)]
LIFE = Life("t1", 100.0, 103.0, 101.5, (Span(Stage.QUEUE, 100, 101), Span(Stage.PREFILL, 101, 102)))

DRAWN: dict[str, Callable[[Path], None]] = {
    "attainment by rate": lambda path: plots.attainment_by_rate(
        {"a": CURVE, "b": CURVE[:1]}, {"a": CURVE, "b": CURVE[:1]}, [0.9, 0.99], path
    ),
    "attainment by scale": lambda path: plots.attainment_by_scale(
        {"a": ([0.5, 1, 2], [0.1, 0.9, 1.0])}, [0.9], 3.0, path
    ),
    "attainment by rate and scale": lambda path: plots.attainment_by_rate_and_scale(
        {"a": CURVE, "b": CURVE},
        ([2, 1], {"a": [1.0, 0.5], "b": [0.9, 0.0]}),
        target=0.9,
        titles=("at one SLO", "at one rate"),
        path=path,
        marks={"c": CURVE[:1]},
    ),
    "ratios": lambda path: plots.ratio_maps(
        {
            "a": ([0.2, 1.0], [0.02, 0.1], np.array([[0.5, 1.8], [np.nan, np.inf]])),
            "b": ([0.2], [0.1], np.array([[1.0]])),
        },
        path,
    ),
    "latency": lambda path: plots.latency_cdfs(
        {"TTFT": {"a": [0.1, 0.2, 0.4], "b": []}, "TPOT": {"a": [0.01], "b": [0.02]}}, "", path
    ),
    "pareto": lambda path: plots.pareto({"a": [(10, 100), (5, 150), (4, 90)], "b": []}, path),
    "timeline": lambda path: plots.timeline([LIFE, LIFE], path, "title"),
    "gaps": lambda path: plots.gaps_over_time(
        {"a": [(-1, 0.01), (1, 0.2)], "b": [(0, 0.01)]}, {"a": 2, "b": 1}, path
    ),
}
EMPTY: dict[str, Callable[[Path], None]] = {
    "attainment by rate": lambda path: plots.attainment_by_rate({}, {}, [0.9], path),
    "pareto": lambda path: plots.pareto({}, path),
    "timeline": lambda path: plots.timeline([], path),
}


def n_colours(path: Path) -> int:
    """Of a picture's pixels; 1: it is blank."""
    pixels = imread(path)
    assert min(pixels.shape[:2]) > 200
    return len({tuple(pixel) for row in pixels[::3, ::3] for pixel in row})


@pytest.mark.parametrize("name", DRAWN)
def test_a_plot_is_a_png_that_shows_something(name: str, tmp_path: Path) -> None:
    path = tmp_path / "plots" / "p.png"
    DRAWN[name](path)
    assert n_colours(path) > 10


@pytest.mark.parametrize("name", EMPTY)
def test_with_no_data_there_are_axes(name: str, tmp_path: Path) -> None:
    EMPTY[name](tmp_path / "p.png")
    assert n_colours(tmp_path / "p.png") > 1


def test_the_front_is_what_no_other_beats_in_both() -> None:
    pairs = [(10.0, 100.0), (5.0, 150.0), (4.0, 90.0), (5.0, 120.0), (12.0, 20.0)]
    assert plots.pareto_front(pairs) == [(5.0, 150.0), (10.0, 100.0), (12.0, 20.0)]
