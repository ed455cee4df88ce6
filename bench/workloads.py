"""Workloads by their name in `vllm bench serve`, and their flags: what is asked, not when.

Imports nothing of the engine.
"""

import argparse
from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from bench import datasets
from bench.client import Request
from bench.flag_types import above, at_least, positive, whole
from bench.prompts import Prompts, Tokenizer
from bench.traces import BLOCK_TOKENS

NAMES = ("random", "sharegpt", "prefix_repetition", "custom", "timed_trace")
_OF_FILES = ("sharegpt", "custom", "timed_trace")


def add_flags(parser: argparse.ArgumentParser) -> None:
    """What `load` reads from its options."""
    group = parser.add_argument_group("workload")
    group.add_argument("--dataset-name", choices=NAMES, default="random", help="[random]")
    group.add_argument("--dataset-path", help="the file of sharegpt, custom or timed_trace")
    group.add_argument(
        "--num-prompts",
        type=positive,
        help="requests [1000; of a closed loop 4 a client and at least 8; of a trace all]",
    )
    group.add_argument("--input-len", type=positive, help="--random-input-len, shorter")
    group.add_argument("--output-len", type=positive, help="output tokens, but of a trace")
    group.add_argument(
        "--prompt-form",
        choices=("ids", "text"),
        help="how random prompts are sent [ids; text to chats]",
    )
    group.add_argument(
        "--vocab-size", type=positive, default=30_000, help="random ids are below it [30000]"
    )
    _add_random(parser.add_argument_group("random"))
    _add_files(parser.add_argument_group("prefix_repetition, sharegpt, custom"))
    _add_trace(parser.add_argument_group("timed_trace: Mooncake JSONL, Azure CSV, BurstGPT CSV"))


def _add_random(group: "argparse._ArgumentGroup") -> None:
    group.add_argument("--random-input-len", type=positive, default=256, help="[256]")
    group.add_argument("--random-output-len", type=positive, default=128, help="[128]")
    group.add_argument(
        "--random-range-ratio",
        type=at_least(0, below=1),
        default=0.0,
        help="lengths differ by that part [0]",
    )
    group.add_argument(
        "--random-prefix-len", type=whole, default=0, help="tokens that all prompts begin with [0]"
    )


def _add_files(group: "argparse._ArgumentGroup") -> None:
    group.add_argument("--prefix-repetition-prefix-len", type=positive, default=256, help="[256]")
    group.add_argument("--prefix-repetition-suffix-len", type=positive, default=256, help="[256]")
    group.add_argument("--prefix-repetition-num-prefixes", type=positive, default=10, help="[10]")
    group.add_argument("--prefix-repetition-output-len", type=positive, default=128, help="[128]")
    group.add_argument("--sharegpt-output-len", type=positive, help="[the answer's own]")
    group.add_argument(
        "--custom-output-len", type=positive, help="[a line's `output_tokens`, or 256]"
    )


def _add_trace(group: "argparse._ArgumentGroup") -> None:
    group.add_argument(
        "--time-scale", type=at_least(0), default=1.0, help="times it: 0.5 is twice as fast [1]"
    )
    group.add_argument("--max-requests", type=positive, help="the first so many [all]")
    group.add_argument(
        "--length-scale", type=above(0), help="lengths by it [so that all fit the context]"
    )
    group.add_argument("--max-model-len", type=positive, help="the context [as the server says]")
    group.add_argument(
        "--timed-trace-chunk-hash-size",
        type=positive,
        default=BLOCK_TOKENS,
        help=f"tokens of a block with a hash [{BLOCK_TOKENS}]",
    )


def complete(options: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """Exits, as argparse does, where a workload of a file has none."""
    if options.dataset_name in _OF_FILES and options.dataset_path is None:
        parser.error(f"--dataset-name {options.dataset_name} needs --dataset-path FILE")


def must_be_readable(options: argparse.Namespace) -> None:
    """Before a server is asked for anything. Raises ValueError where the file cannot be read."""
    if options.dataset_name in _OF_FILES:
        datasets.file_of(options)


def load(
    name: str,
    options: argparse.Namespace,
    rng: np.random.Generator,
    tokenizer: Tokenizer | None,
) -> list[Request]:
    """`options.num_prompts` requests; fewer where a file has no more.

    options    made by a parser with the flags of `add_flags`
    tokenizer  for prompts in text; None: prompts are token ids
    Raises ValueError, or OSError, where the requests cannot be made of that.
    """
    prompts = Prompts(
        rng,
        vocab_size=options.vocab_size,
        tokenizer=tokenizer,
        as_text=options.prompt_form == "text",
    )
    match name:
        case "random":
            return datasets.random(options, rng, prompts)
        case "sharegpt":
            return datasets.sharegpt(options, rng, tokenizer)
        case "prefix_repetition":
            return datasets.prefix_repetition(options, rng, prompts)
        case "custom":
            return datasets.custom(options)
        case "timed_trace":
            return datasets.timed_trace(options, prompts)
        case _:
            raise ValueError(f"unknown workload {name!r}; known: {', '.join(NAMES)}")


def with_cancels(
    requests: Sequence[Request], rate: float, delay_s: float, rng: np.random.Generator
) -> list[Request]:
    """That part of them, drawn, hangs up that long after sending."""
    drawn = rng.random(len(requests)) < rate
    return [
        replace(request, cancel_after_s=delay_s) if hangs_up else request
        for request, hangs_up in zip(requests, drawn, strict=True)
    ]
