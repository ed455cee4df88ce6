"""Workloads by their name in `vllm bench serve`: what is asked, not when.

Pure but for the files they read and the tokenizer they are given. Imports nothing of the engine.
"""

import argparse
from typing import Protocol

import numpy as np

from bench.client import Request

NAMES = ("random",)


class Tokenizer(Protocol):
    """Text to token ids and back; no special tokens are added."""

    def encode(self, text: str) -> list[int]: ...

    def decode(self, ids: list[int]) -> str: ...


def add_flags(parser: argparse.ArgumentParser) -> None:
    """What `load` reads from its options."""
    parser.add_argument("--dataset-name", choices=NAMES, default="random")
    parser.add_argument("--num-prompts", type=int, help="requests [1000]")
    parser.add_argument("--random-input-len", type=int, default=256, help="prompt tokens [256]")
    parser.add_argument("--random-output-len", type=int, default=128, help="output tokens [128]")
    parser.add_argument(
        "--vocab-size", type=int, default=30_000, help="random ids are below it [30000]"
    )


def load(
    name: str,
    options: argparse.Namespace,
    rng: np.random.Generator,
    tokenizer: Tokenizer | None,  # noqa: ARG001
) -> list[Request]:
    """`options.num_prompts` requests. Raises ValueError where they cannot be made of that."""
    match name:
        case "random":
            return _random(options, rng)
        case _:
            raise ValueError(f"unknown workload {name!r}; known: {', '.join(NAMES)}")


def _random(options: argparse.Namespace, rng: np.random.Generator) -> list[Request]:
    n_tokens = options.random_input_len
    lowest = min(1000, options.vocab_size // 2)
    return [
        Request(
            prompt=rng.integers(lowest, options.vocab_size, n_tokens).tolist(),
            max_tokens=options.random_output_len,
            prompt_tokens=n_tokens,
        )
        for _ in range(options.num_prompts or 1000)
    ]
