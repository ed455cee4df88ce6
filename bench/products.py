"""The model's products one by one, beside what memory and matrix units give at the same moment.

    python -m bench.products [--threads 2] [--dtypes bfloat16 float32] [--rows 1 8 32 256 2048]
                             [--formats plain int8 q8_0 q4_1]

The shapes are SmolLM2-135M's. Each kind has as many copies as make 256 MB, in memory like the
workers', so that no cache holds the weights. Formats of weights take turns. A product's floor is
its weights' bytes, as they are kept, over the rate of reading memory, or its operations over the
rate of torch's 2048 x 2048 x 2048 product if that is more. The last line is JSON. Drives `common`
only.
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial

import torch
from torch import Tensor

from bench.flag_types import Parser, positive
from bench.program import exit_status
from common.huge_pages import allocate, map_file
from common.kernels import ops
from common.kernels.formats import WeightFormat
from common.kernels.matrix import Matrix, PackedMatrix, blocks_shape, packs
from common.kernels.path import kernels

COLD_BYTES = 256 << 20
LARGE = 2048
SAMPLES = 7
MIN_SAMPLE_S = 0.02


@dataclass(frozen=True, slots=True)
class Kind:
    name: str
    n_inputs: int
    n_outputs: int
    gated: bool = False


KINDS = (
    Kind("qkv", 576, 960),
    Kind("o", 576, 576),
    Kind("gate_up", 576, 3072, gated=True),
    Kind("down", 1536, 576),
    Kind("lm_head", 576, 49152),
)


@dataclass(frozen=True, slots=True)
class Row:
    dtype: str
    kernels: str
    format: str
    product: str
    rows: int
    us: float
    gb_per_s: float
    gflop_per_s: float
    over_floor: float
    over_first: float  # of the formats


def matrices(
    kind: Kind, dtype: torch.dtype, kept: WeightFormat, memory: memoryview
) -> list[Matrix]:
    """Copies side by side, until the memory is full."""
    shape = (kind.n_outputs, kind.n_inputs)
    copies: list[Matrix] = []
    if not packs(dtype):
        for tensor in _cut(memory, shape, dtype):
            copies.append(tensor)
        return copies
    blocks = blocks_shape(shape, dtype, kept, gated=kind.gated)
    for tensor in _cut(memory, blocks, torch.uint8):
        copies.append(PackedMatrix.over(tensor, shape, dtype, kept, gated=kind.gated))
    return copies


def _cut(memory: memoryview, shape: tuple[int, int], dtype: torch.dtype) -> Iterator[Tensor]:
    count = shape[0] * shape[1]
    n_bytes = count * dtype.itemsize
    for at in range(0, COLD_BYTES - n_bytes + 1, n_bytes):
        yield torch.frombuffer(memory, dtype=dtype, count=count, offset=at).view(shape)


def run(kind: Kind, matrix: Matrix, x_TI: Tensor) -> Tensor:
    if kind.name == "lm_head":
        return ops.logits(x_TI, matrix)
    return (ops.swiglu if kind.gated else ops.linear)(x_TI, matrix, None)


def seconds(*alternatives: Sequence[Callable[[], object]]) -> list[float]:
    """Of one call of each list, in the median of samples that go on through it from where one
    ended, and that the lists take in turns.
    """
    at = [0] * len(alternatives)
    samples: list[list[float]] = [[] for _ in alternatives]
    for _ in range(SAMPLES + 1):  # the first warms up
        for i, calls in enumerate(alternatives):
            began, n = time.perf_counter(), 0
            while (spent := time.perf_counter() - began) < MIN_SAMPLE_S or not n:
                calls[at[i]]()
                at[i], n = (at[i] + 1) % len(calls), n + 1
            samples[i].append(spent / n)
    return [statistics.median(of_one[1:]) for of_one in samples]


def floors(dtype: torch.dtype, memory: memoryview) -> tuple[float, float]:
    """Bytes a second that memory gives, operations a second of a large product."""
    cold = torch.frombuffer(memory, dtype=torch.float32)
    a, b = torch.ones(LARGE, LARGE, dtype=dtype), torch.ones(LARGE, LARGE, dtype=dtype)
    (read_s,), (product_s,) = seconds([cold.sum]), seconds([partial(torch.mm, a, b)])
    return COLD_BYTES / read_s, 2 * LARGE**3 / product_s


def measure(
    kind: Kind, dtype: torch.dtype, n_rows: int, formats: Sequence[WeightFormat], memory: memoryview
) -> list[Row]:
    x_TI = torch.ones(n_rows, kind.n_inputs, dtype=dtype)
    copies = [matrices(kind, dtype, kept, memory) for kept in formats]
    calls = [[partial(run, kind, matrix, x_TI) for matrix in of_one] for of_one in copies]
    n_operations = 2 * n_rows * kind.n_inputs * kind.n_outputs
    read, rate = floors(dtype, memory)
    times = seconds(*calls)
    rows: list[Row] = []
    for kept, (matrix, *_), took in zip(formats, copies, times, strict=True):
        n_bytes = matrix.nbytes if isinstance(matrix, Tensor) else matrix.blocks.nbytes
        rows.append(
            Row(
                dtype=str(dtype).removeprefix("torch."),
                kernels=kernels(dtype),
                format=kept.value,
                product=kind.name,
                rows=n_rows,
                us=round(took * 1e6, 1),
                gb_per_s=round(n_bytes / took / 1e9, 1),
                gflop_per_s=round(n_operations / took / 1e9, 1),
                over_floor=round(took / max(n_bytes / read, n_operations / rate), 2),
                over_first=round(took / times[0], 2),
            )
        )
    return rows


@torch.inference_mode()
def main(argv: Sequence[str]) -> int:
    """Measure every product in every format."""
    parser = Parser(
        prog="python -m bench.products",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("--threads", type=positive, default=len(os.sched_getaffinity(0)))
    dtypes = ["bfloat16", "float32"]
    parser.add_argument("--dtypes", nargs="+", default=dtypes, choices=dtypes)
    parser.add_argument("--rows", nargs="+", type=positive, default=[1, 8, 32, 256, 2048])
    parser.add_argument("--formats", nargs="+", type=WeightFormat, default=list(WeightFormat))
    given = parser.parse_all(argv)
    ops.set_threads(given.threads)
    fd = os.memfd_create("bench-products")
    allocate(fd, COLD_BYTES)
    memory = map_file(fd, COLD_BYTES, shared=True)
    rows: list[Row] = []
    for dtype in (getattr(torch, name) for name in given.dtypes):
        read, rate = floors(dtype, memory)
        print(
            f"{kernels(dtype)}, {given.threads} threads, {dtype}: memory {read / 1e9:.1f} GB/s, "
            f"large product {rate / 1e9:.0f} GFLOP/s"
        )
        for kind in KINDS:
            for n_rows in given.rows:
                if kind.name == "lm_head" and n_rows > 256:
                    continue  # logits of few rows are wanted at once
                formats = given.formats if packs(dtype) else [WeightFormat.PLAIN]
                for row in measure(kind, dtype, n_rows, formats, memory):
                    rows.append(row)
                    print(
                        f"{row.product:8} x {n_rows:4} {row.format:5}: {row.us:9.1f} us "
                        f"{row.gb_per_s:6.1f} GB/s {row.gflop_per_s:7.1f} GFLOP/s, "
                        f"{row.over_floor:.2f} x floor, {row.over_first:.2f} x {formats[0]}",
                        flush=True,
                    )
    print(json.dumps({"threads": given.threads, "rows": [asdict(row) for row in rows]}))
    return 0


if __name__ == "__main__":
    sys.exit(exit_status(main, sys.argv[1:]))
