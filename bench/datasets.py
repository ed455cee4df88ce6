"""How each workload is made: pure but for the files that it reads and the tokenizer it is given.

Imports nothing of the engine.
"""

import argparse
from pathlib import Path

import msgspec
import numpy as np
from msgspec.structs import replace

from bench.client import Request
from bench.jsonl import read_lines
from bench.prompts import Prompts, Tokenizer
from bench.reasons import must_be_readable
from bench.traces import fit, read

DEFAULT_NUM_PROMPTS = 1000
DEFAULT_OUTPUT_LEN = 256  # of a custom line that says nothing
# What `vllm bench serve` takes of ShareGPT: shorter turns measure nothing, longer ones fit no more.
SHAREGPT_MIN_TOKENS = 4
SHAREGPT_MAX_PROMPT_TOKENS = 1024
SHAREGPT_MAX_TOKENS = 2048


class _Turn(msgspec.Struct):
    value: str


class _Dialogue(msgspec.Struct):
    conversations: list[_Turn] = []


class _CustomLine(msgspec.Struct):
    prompt: str | list[int]
    output_tokens: int = DEFAULT_OUTPUT_LEN


def random(
    options: argparse.Namespace, rng: np.random.Generator, prompts: Prompts
) -> list[Request]:
    """Lengths uniform in [mean * (1 - ratio), mean * (1 + ratio)], after one shared prefix."""
    n = options.num_prompts or DEFAULT_NUM_PROMPTS
    ratio = options.random_range_ratio
    inputs = _lengths(options.input_len or options.random_input_len, ratio, n, rng)
    outputs = _lengths(options.output_len or options.random_output_len, ratio, n, rng)
    prefix = prompts.ids(options.random_prefix_len)
    return [
        prompts.request(prefix + prompts.ids(n_in), n_out, prefix=0 if prefix else None)
        for n_in, n_out in zip(inputs, outputs, strict=True)
    ]


def _lengths(mean: int, ratio: float, n: int, rng: np.random.Generator) -> list[int]:
    low, high = int(mean * (1 - ratio)), int(np.ceil(mean * (1 + ratio)))
    return rng.integers(max(1, low), max(1, high), n, endpoint=True).tolist()


def prefix_repetition(
    options: argparse.Namespace, rng: np.random.Generator, prompts: Prompts
) -> list[Request]:
    """As many requests behind each of some prefixes, shuffled."""
    n = options.num_prompts or DEFAULT_NUM_PROMPTS
    n_prefixes = options.prefix_repetition_num_prefixes
    if n < n_prefixes:
        raise ValueError(
            f"{n} requests are too few for {n_prefixes} prefixes: --num-prompts asks for more, "
            "--prefix-repetition-num-prefixes for fewer"
        )
    prefixes = [prompts.ids(options.prefix_repetition_prefix_len) for _ in range(n_prefixes)]
    which = rng.permutation(np.arange(n) % n_prefixes).tolist()
    return [
        prompts.request(
            prefixes[k] + prompts.ids(options.prefix_repetition_suffix_len),
            options.output_len or options.prefix_repetition_output_len,
            prefix=k,
        )
        for k in which
    ]


def sharegpt(
    options: argparse.Namespace, rng: np.random.Generator, tokenizer: Tokenizer | None
) -> list[Request]:
    """First turns, drawn; answers as long as the dataset's own."""
    if tokenizer is None:
        raise ValueError("sharegpt is text, and needs a tokenizer")
    path = file_of(options)
    try:
        dialogues = msgspec.json.decode(path.read_bytes(), type=list[_Dialogue])
    except msgspec.DecodeError as error:
        raise ValueError(f"{path}: {error}") from None
    fixed_len = options.output_len or options.sharegpt_output_len
    n = options.num_prompts or DEFAULT_NUM_PROMPTS
    requests: list[Request] = []
    for k in rng.permutation(len(dialogues)):
        if len(requests) == n:
            break
        turns = dialogues[k].conversations
        if len(turns) < 2:
            continue
        text = turns[0].value
        n_in = len(tokenizer.encode(text))
        n_out = fixed_len or len(tokenizer.encode(turns[1].value))
        if _is_usual(n_in, n_out):
            requests.append(Request(prompt=text, max_tokens=n_out, prompt_tokens=n_in))
    return _some(requests, options)


def _is_usual(n_in: int, n_out: int) -> bool:
    return (
        min(n_in, n_out) >= SHAREGPT_MIN_TOKENS
        and n_in <= SHAREGPT_MAX_PROMPT_TOKENS
        and n_in + n_out <= SHAREGPT_MAX_TOKENS
    )


def custom(options: argparse.Namespace) -> list[Request]:
    """Lines {"prompt": text or ids, "output_tokens": n}, in their order."""
    fixed_len = options.output_len or options.custom_output_len
    requests = [
        Request(
            prompt=line.prompt,
            max_tokens=fixed_len or line.output_tokens,
            prompt_tokens=None if isinstance(line.prompt, str) else len(line.prompt),
        )
        for line in read_lines(file_of(options), _CustomLine)
    ]
    return _some(requests[: options.num_prompts], options)


def timed_trace(options: argparse.Namespace, prompts: Prompts) -> list[Request]:
    """A trace's requests at its own times, its lengths cut down to the model's context."""
    rows = read(file_of(options))[: options.max_requests or options.num_prompts]
    fitted = fit(
        rows,
        max_tokens=options.max_model_len,
        length_scale=options.length_scale,
        block_tokens=options.timed_trace_chunk_hash_size,
    )
    requests = [
        replace(
            prompts.request(prompts.of_blocks(row.blocks, row.n_in), row.n_out, prefix=row.prefix),
            at_s=row.at_s * options.time_scale,
        )
        for row in fitted
    ]
    return _some(requests, options)


def file_of(options: argparse.Namespace) -> Path:
    """Raises ValueError where there is none, or it cannot be read."""
    if options.dataset_path is None:
        raise ValueError(f"--dataset-name {options.dataset_name} needs --dataset-path FILE")
    path = Path(options.dataset_path)
    must_be_readable("--dataset-path", path)
    return path


def _some(requests: list[Request], options: argparse.Namespace) -> list[Request]:
    if not requests:
        raise ValueError(f"{options.dataset_path}: no request in it can be used")
    return requests
