"""Times attention in every tile that fits the GPU at hand, to choose from for
`common.kernels.triton.configs`.

    python -m bench.kernels_tune [--models Llama-3-8B] [--kv-cache-dtype bfloat16 fp8_e4m3]

In bfloat16, with pages of either: decode of 64 sequences at 2,048 tokens, prefill of one prompt of
8,192. The fastest are shown; tiles that spill, or do not fit, are left out. The last line is JSON,
with all tiles that were timed. Changes no table of the code's.
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
from bench.kernels_compile import SHARED_LIMITS_BYTES, compile_one
from bench.kernels_shapes import Shape, beginning, shapes_named
from bench.program import exit_status
from common.errors import SetupError
from common.kernels.attention_plan import Sequences
from common.kernels.paged import KVLayer
from common.kernels.triton import decode, prefill
from common.kernels.triton.attention_block import tile_rows
from common.kernels.triton.choice import chip_of
from common.kernels.triton.configs import Tile
from common.kernels.triton.launch import Launch
from common.kernels.triton.rows import DeviceRows
from common.kv.cache import KVCache
from common.kv.layout import FP8, KVSpec

DTYPE = torch.bfloat16
KEYS, WARPS, STAGES = (32, 64, 128), (4, 8), (2, 3, 4, 5, 6)
SHOWN = 5  # of the fastest
CODES = 120  # of e4m3, from 0 on, that are numbers


def decode_launches(
    shape: Shape, device: torch.device, kv_dtype: str = "bfloat16"
) -> Iterator[tuple[Tile, list[Launch]]]:
    layer, rows, q = work(shape, 64, 1, 2048, device, kv_dtype)
    for keys, warps, stages in product(KEYS, WARPS, STAGES):
        tile = Tile(16, keys, warps, stages)
        yield tile, list(decode.launches(q, layer, rows(1), tile, torch.empty_like(q)))


def prefill_launches(
    shape: Shape, device: torch.device, kv_dtype: str = "bfloat16"
) -> Iterator[tuple[Tile, list[Launch]]]:
    layer, rows, q = work(shape, 1, 8192, 8192, device, kv_dtype)
    n_rep = shape.n_heads // shape.n_kv_heads
    for n_rows, keys, warps, stages in product((64, 128), KEYS, WARPS, STAGES):
        tile = Tile(n_rows, keys, warps, stages)
        on_device = rows(tile_rows(tile, n_rep) // n_rep)
        yield tile, [prefill.launch(q, layer, on_device, tile, torch.empty_like(q))]


def work(
    shape: Shape,
    n_sequences: int,
    n_rows: int,
    n_keys: int,
    device: torch.device,
    kv_dtype: str = "bfloat16",
) -> tuple[KVLayer, Callable[[int], DeviceRows], torch.Tensor]:
    """Sequences alike, over pages in random order; the last `n_rows` of each are queries. Which
    rows those are, by the queries of a tile."""
    n_pages = n_sequences * n_keys // shape.page_tokens
    kv = KVSpec(
        n_layers=1,
        n_kv_heads=shape.n_kv_heads,
        head_dim=shape.head_dim,
        page_tokens=shape.page_tokens,
        dtype=kv_dtype,
    )
    pages_PB = torch.empty((n_pages, kv.page_bytes), dtype=torch.uint8, device=device)
    layer = KVCache(kv, pages_PB).layer(0)
    for x_PSGD, scales_PSG in (
        (layer.k_PSGD, layer.k_scales_PSG),
        (layer.v_PSGD, layer.v_scales_PSG),
    ):
        if scales_PSG is None:
            x_PSGD.normal_()
        else:
            x_PSGD.view(torch.uint8).random_(CODES)
            scales_PSG.fill_(1 / 448)
    pages = random.Random(0).sample(range(n_pages), n_pages)
    sequences = Sequences(
        start_B1=np.arange(n_sequences + 1, dtype=np.int32) * n_rows,
        len_B=np.full(n_sequences, n_keys, np.int32),
        tables_BM=np.array(pages, np.int32).reshape(n_sequences, -1),
    )
    q_TND = torch.randn(
        n_sequences * n_rows, shape.n_heads, shape.head_dim, dtype=DTYPE, device=device
    )
    return layer, partial(DeviceRows.of, sequences, device=device), q_TND


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
    parser.add_argument(
        "--kv-cache-dtype", nargs="+", default=["bfloat16"], choices=("bfloat16", FP8), dest="kv"
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
    for shape, kv_dtype in [(s, kv) for s in shapes_named(options.models) for kv in options.kv]:
        for kind, launches_of in kinds.items():
            timed: list[tuple[float, Tile]] = []
            for tile, launches in launches_of(shape, device, kv_dtype):
                compiled = compile_one(kind, shape.name, launches[0], chip)
                if not compiled.misfits():
                    timed.append((milliseconds(launches), tile))
            timed.sort()
            for ms, tile in timed[:SHOWN]:
                print(
                    f"{shape.name:<24} {kind:<18} {kv_dtype:<8} sm_{chip} {ms:8.3f} ms  {tile}",
                    flush=True,
                )
            rows += [
                {
                    "shape": shape.name,
                    "kernel": kind,
                    "kv": kv_dtype,
                    "ms": ms,
                    "tile": tile._asdict(),
                }
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
