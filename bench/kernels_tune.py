"""Times attention in every tile that fits the GPU at hand, to choose from for
`common.kernels.triton.configs`.

    python -m bench.kernels_tune [--models Llama-3-8B]

In bfloat16: decode of 64 sequences at 2,048 tokens, prefill of one prompt of 8,192. The fastest
are shown; tiles that spill, or do not fit, are left out. The last line is JSON, with all tiles that
were timed. Changes no table of the code's.
"""

import json
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product

import numpy as np
import torch
import triton
from triton.testing import do_bench

from bench.flag_types import Parser
from bench.kernels_compile import (
    SHARED_LIMITS_BYTES,
    Shape,
    beginning,
    compile_one,
    shapes_named,
)
from bench.program import exit_status
from common.errors import SetupError
from common.kernels.attention_plan import Sequences
from common.kernels.paged import KVLayer, PageGeometry, Scratch
from common.kernels.triton import decode, prefill
from common.kernels.triton.attention_block import tile_rows
from common.kernels.triton.choice import chip_of
from common.kernels.triton.configs import Tile
from common.kernels.triton.launch import Launch
from common.kernels.triton.rows import DeviceRows

DTYPE = torch.bfloat16
KEYS, WARPS, STAGES = (32, 64, 128), (4, 8), (2, 3, 4, 5, 6)
SHOWN = 5  # of the fastest


def decode_launches(shape: Shape, device: torch.device) -> Iterator[tuple[Tile, list[Launch]]]:
    layer, rows, q = work(shape, 64, 1, 2048, device)
    for keys, warps, stages in product(KEYS, WARPS, STAGES):
        tile = Tile(16, keys, warps, stages)
        yield tile, list(decode.launches(q, layer, rows(1), tile, torch.empty_like(q)))


def prefill_launches(shape: Shape, device: torch.device) -> Iterator[tuple[Tile, list[Launch]]]:
    layer, rows, q = work(shape, 1, 8192, 8192, device)
    n_rep = shape.n_heads // shape.n_kv_heads
    for n_rows, keys, warps, stages in product((64, 128), KEYS, WARPS, STAGES):
        tile = Tile(n_rows, keys, warps, stages)
        on_device = rows(tile_rows(tile, n_rep) // n_rep)
        yield tile, [prefill.launch(q, layer, on_device, tile, torch.empty_like(q))]


def work(
    shape: Shape, n_sequences: int, n_rows: int, n_keys: int, device: torch.device
) -> tuple[KVLayer, Callable[[int], DeviceRows], torch.Tensor]:
    """Sequences alike, over pages in random order; the last `n_rows` of each are queries. Which
    rows those are, by the queries of a tile."""
    n_pages = n_sequences * n_keys // shape.page_tokens
    geometry = PageGeometry(
        page_tokens=shape.page_tokens,
        n_kv_heads=shape.n_kv_heads,
        head_dim=shape.head_dim,
        stride=2 * shape.n_kv_heads * shape.page_tokens * shape.head_dim,
    )
    elements = torch.randn(n_pages * geometry.stride, dtype=DTYPE, device=device)
    pages = random.Random(0).sample(range(n_pages), n_pages)
    sequences = Sequences(
        start_B1=np.arange(n_sequences + 1, dtype=np.int32) * n_rows,
        len_B=np.full(n_sequences, n_keys, np.int32),
        tables_BM=np.array(pages, np.int32).reshape(n_sequences, -1),
    )
    q_TND = torch.randn(
        n_sequences * n_rows, shape.n_heads, shape.head_dim, dtype=DTYPE, device=device
    )
    rows_of = partial(DeviceRows.of, sequences, device=device)
    return KVLayer.of(elements, geometry, 0, Scratch()), rows_of, q_TND


def main(argv: Sequence[str]) -> int:
    """Print the fastest tiles."""
    parser = Parser(prog="python -m bench.kernels_tune", description=__doc__)
    parser.add_argument(
        "--models",
        nargs="+",
        type=beginning,
        default=[""],
        metavar="NAME",
        help="beginnings of their names",
    )
    options = parser.parse_all(argv)
    if not torch.cuda.is_available():
        raise SetupError("needs a CUDA device; without one: bench.kernels --compile-only")
    device = torch.device("cuda")
    chip = chip_of(device)
    if chip not in SHARED_LIMITS_BYTES:
        raise SetupError(f"sm_{chip}: what tiles take is known of {list(SHARED_LIMITS_BYTES)} only")
    kinds = {"decode attention": decode_launches, "prefill attention": prefill_launches}
    rows: list[dict[str, object]] = []
    for shape in shapes_named(options.models):
        for kind, launches_of in kinds.items():
            timed: list[tuple[float, Tile]] = []
            for tile, launches in launches_of(shape, device):
                compiled = compile_one(kind, shape.name, launches[0], chip)
                if not compiled.misfits():
                    timed.append((milliseconds(launches), tile))
            timed.sort()
            for ms, tile in timed[:SHOWN]:
                print(f"{shape.name:<24} {kind:<18} sm_{chip} {ms:8.3f} ms  {tile}", flush=True)
            rows += [
                {"shape": shape.name, "kernel": kind, "ms": ms, "tile": tile._asdict()}
                for ms, tile in timed
            ]
    print(json.dumps({"chip": chip, "triton": triton.__version__, "rows": rows}))
    return 0


def milliseconds(launches: list[Launch]) -> float:
    def run() -> None:
        for launch in launches:
            launch.run()

    return float(do_bench(run, return_mode="median"))  # pyright: ignore[reportArgumentType] one number


if __name__ == "__main__":
    sys.exit(exit_status(main, sys.argv[1:]))
