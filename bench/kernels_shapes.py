"""Shapes of models that kernels are compiled and timed at. Data only."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Of a model. SmolLM2's, Llama's and Qwen's are as published."""

    name: str
    hidden: int
    intermediate: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    n_vocab: int
    page_tokens: int = 16


SHAPES = (
    Shape(
        name="SmolLM2-135M",
        hidden=576,
        intermediate=1536,
        n_heads=9,
        n_kv_heads=3,
        head_dim=64,
        n_vocab=49152,
    ),
    Shape(
        name="Llama-3.2-1B",
        hidden=2048,
        intermediate=8192,
        n_heads=32,
        n_kv_heads=8,
        head_dim=64,
        n_vocab=128256,
    ),
    Shape(
        name="Llama-3-8B",
        hidden=4096,
        intermediate=14336,
        n_heads=32,
        n_kv_heads=8,
        head_dim=128,
        n_vocab=128256,
    ),
    Shape(
        name="Llama-2-7B",
        hidden=4096,
        intermediate=11008,
        n_heads=32,
        n_kv_heads=32,
        head_dim=128,
        n_vocab=32000,
    ),
    Shape(
        name="Qwen2.5-7B, pages of 64",
        hidden=3584,
        intermediate=18944,
        n_heads=28,
        n_kv_heads=4,
        head_dim=128,
        n_vocab=152064,
        page_tokens=64,
    ),
    Shape(
        name="Llama-3-70B",
        hidden=8192,
        intermediate=28672,
        n_heads=64,
        n_kv_heads=8,
        head_dim=128,
        n_vocab=128256,
    ),
    Shape(
        name="head dim 80",
        hidden=2560,
        intermediate=10240,
        n_heads=32,
        n_kv_heads=32,
        head_dim=80,
        n_vocab=32000,
    ),
    Shape(
        name="head dim 96",
        hidden=3072,
        intermediate=8192,
        n_heads=32,
        n_kv_heads=8,
        head_dim=96,
        n_vocab=32064,
    ),
)


def beginning(text: str) -> str:
    """Of the names of one shape or more."""
    if not shapes_named([text]):
        names = ", ".join(repr(shape.name) for shape in SHAPES)
        raise argparse.ArgumentTypeError(f"{text}: none of {names}")
    return text


def shapes_named(beginnings: Sequence[str]) -> list[Shape]:
    return [shape for shape in SHAPES if shape.name.startswith(tuple(beginnings))]
