"""Passes by themselves, without a server: what `bench.engine` compares its rows with.

    python -m bench.steps MODEL [--threads 2] [--dtype bfloat16]

Prints one JSON line: {"linear_flops_per_s": …, "packed_flops_per_s": …, "rows": [one a `Work`]}.
Rates of the machine are measured between the passes. Drives `common` only.
"""

import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict

import torch

from bench.flag_types import Parser, model_path, positive
from bench.kernels import Bench, Work, seconds
from bench.program import exit_status
from common.kernels import ops
from common.kv.cache import TORCH_DTYPES
from common.model.load import load_model

CONTEXT_TOKENS = 320
PACKED = Work(n_sequences=8, start=0, n_tokens=256)
WORKS = (
    *(Work(n_sequences=n, start=CONTEXT_TOKENS - 1, n_tokens=1) for n in (1, 8, 32)),
    *(Work(n_sequences=1, start=start, n_tokens=1) for start in (64, 2048)),
    *(Work(n_sequences=1, start=0, n_tokens=n) for n in (64, 256, 512, 2048)),
)
_LINEAR_ROWS = 2048
_LINEAR_SHAPE = (576, 1536)  # the product whose rate is the yardstick of a prompt pass
_ROUNDS = 5


def linear_flops_per_s(dtype: torch.dtype) -> float:
    """Of torch's own product, at many rows: operations per second, the best of a few."""
    n_in, n_out = _LINEAR_SHAPE
    x = torch.ones((_LINEAR_ROWS, n_in), dtype=dtype)
    weight = torch.ones((n_out, n_in), dtype=dtype)
    times_s = [seconds(lambda: torch.nn.functional.linear(x, weight)) for _ in range(20)]
    return 2 * _LINEAR_ROWS * n_in * n_out / statistics.median(times_s)


def main(argv: Sequence[str]) -> int:
    """Measure passes by themselves."""
    parser = Parser(prog="python -m bench.steps", description=__doc__)
    parser.add_argument("model", type=model_path)
    parser.add_argument("--threads", type=positive, default=torch.get_num_threads())
    parser.add_argument("--dtype", default="bfloat16", choices=sorted(TORCH_DTYPES))
    options = parser.parse_all(argv)
    dtype = TORCH_DTYPES[options.dtype]
    ops.set_threads(options.threads, dtype)
    torch.set_num_threads(options.threads)
    bench = Bench(load_model(options.model, dtype, None, 4096), options.dtype)
    linear: list[float] = []
    packed: list[float] = []
    _, operations = bench.needs(PACKED)
    for _ in range(_ROUNDS):
        linear.append(linear_flops_per_s(dtype))
        packed.append(operations / (bench.measure(PACKED).p50_ms / 1e3))
    rows = [asdict(bench.measure(work)) for work in WORKS]
    rates = {
        "linear_flops_per_s": statistics.median(linear),
        "packed_flops_per_s": statistics.median(packed),
    }
    print(json.dumps({**rates, "rows": rows}))
    return 0


if __name__ == "__main__":
    sys.exit(exit_status(main, sys.argv[1:]))
