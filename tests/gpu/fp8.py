"""How fast attention and writing are with pages of fp8, beside the rates of the device."""

from collections.abc import Mapping
from functools import partial

import torch

from bench.kernels_shapes import Shape, shapes_named
from bench.kernels_tune import work
from common.kernels.triton import decode, prefill, rope
from common.kernels.triton.attention_block import tile_rows
from common.kernels.triton.choice import chip_of
from common.kernels.triton.configs import decode_tile, prefill_tile
from common.kv.layout import FP8, SCALE_BYTES
from common.spellings import FP8_CAPABILITY
from tests.gpu.kernels import DTYPE, GPU, Floors, floors, median_ms, run_all
from tests.gpu.rows import Row, each, emit, say


def measure(_found: Mapping[str, float]) -> bool:
    if torch.cuda.get_device_capability() < FP8_CAPABILITY:
        say("no fp8: the GPU is too old for it")
        return True
    (shape,) = shapes_named(["Llama-3-8B"])
    return measure_shape(shape, floors())


def measure_shape(shape: Shape, rates: Floors, *, n: int = 64, n_keys: int = 8192) -> bool:
    """Attention of `n` sequences to so many keys, and to twice as many in a prompt; the writing of
    a prompt's. False: something failed."""
    return each(
        [
            lambda: emit(decode_attention(shape, n, n_keys, rates)),
            lambda: emit(prefill_attention(shape, 2 * n_keys, rates)),
            lambda: emit(rope_and_write(shape, n_keys, rates)),
        ]
    )


def decode_attention(shape: Shape, n_sequences: int, n_keys: int, rates: Floors) -> Row:
    layer, rows_of, q_TND = work(shape, n_sequences, 1, n_keys, GPU, FP8)
    tile = decode_tile(DTYPE, chip_of(GPU), shape.head_dim, fp8=True)
    launches = decode.launches(q_TND, layer, rows_of(1), tile, torch.empty_like(q_TND))
    n_bytes = n_sequences * n_keys * token_bytes(shape) + 2 * q_TND.nbytes
    return Row(
        name=f"decode attention, pages of fp8, {n_sequences} at {n_keys}",
        measured=median_ms(partial(run_all, launches)),
        floor=n_bytes / rates.bytes,
    )


def prefill_attention(shape: Shape, n_tokens: int, rates: Floors) -> Row:
    layer, rows_of, q_TND = work(shape, 1, n_tokens, n_tokens, GPU, FP8)
    tile = prefill_tile(DTYPE, chip_of(GPU), shape.head_dim)
    on_device = rows_of(tile_rows(tile, shape.n_heads // shape.n_kv_heads) * shape.n_kv_heads
                        // shape.n_heads)  # fmt: skip
    launch = prefill.launch(q_TND, layer, on_device, tile, torch.empty_like(q_TND))
    n_pairs = n_tokens * (n_tokens + 1) // 2
    return Row(
        name=f"prefill attention, pages of fp8, {n_tokens} causal",
        measured=median_ms(launch.run),
        floor=4 * shape.n_heads * shape.head_dim * n_pairs / rates.operations,
    )


def rope_and_write(shape: Shape, n_tokens: int, rates: Floors) -> Row:
    layer, _, _ = work(shape, 1, 1, n_tokens, GPU, FP8)
    n_heads, n_kv_heads = shape.n_heads, shape.n_kv_heads
    qkv = torch.randn(n_tokens, n_heads + 2 * n_kv_heads, shape.head_dim, dtype=DTYPE, device=GPU)
    q, k, v = qkv.split((n_heads, n_kv_heads, n_kv_heads), dim=1)
    table = torch.randn(n_tokens, shape.head_dim, device=GPU)
    at, out = torch.arange(n_tokens, device=GPU), torch.empty_like(q.contiguous())
    launch = rope.launch(q, k, v, table, at, at, layer, out)
    n_bytes = qkv.nbytes + out.nbytes + table.nbytes + 2 * at.nbytes + n_tokens * token_bytes(shape)
    return Row(
        name=f"rope and write, pages of fp8, {n_tokens} rows",
        measured=median_ms(launch.run),
        floor=n_bytes / rates.bytes,
    )


def token_bytes(shape: Shape) -> int:
    """Of a layer's KV."""
    return 2 * shape.n_kv_heads * (shape.head_dim + SCALE_BYTES)
