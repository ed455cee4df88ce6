"""How fast kernels are, beside the rates at which the device copies and multiplies."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from triton.testing import do_bench

from bench.kernels_compile import Shape, shapes_named
from bench.kernels_tune import work
from common.engine.plan import Draw
from common.ids import TransferId
from common.kernels.triton import decode, prefill, sampling
from common.kernels.triton.attention_block import tile_rows
from common.kernels.triton.choice import chip_of
from common.kernels.triton.configs import decode_tile, prefill_tile
from common.kernels.triton.launch import Launch
from common.kernels.triton.pages import launch as page_copy
from common.kernels.triton.sampling_rows import SamplingRows
from common.params import SamplingParams
from tests.gpu.run import Row

DTYPE = torch.bfloat16
GPU = torch.device("cuda")
COPIED_BYTES = 2 << 30
PRODUCT_SIZE = 8192


def median_ms(run: Callable[[], object]) -> float:
    ms = do_bench(run, return_mode="median")
    assert isinstance(ms, float)
    return ms


def copy_ms() -> float:
    """Of as many bytes as are then both read and written."""
    source = torch.empty(COPIED_BYTES, dtype=torch.uint8, device=GPU)
    target = torch.empty_like(source)
    return median_ms(lambda: target.copy_(source))


def product_ms() -> float:
    factor = torch.randn(PRODUCT_SIZE, PRODUCT_SIZE, dtype=DTYPE, device=GPU)
    return median_ms(lambda: factor @ factor)


def rows() -> list[Row]:
    (shape,) = shapes_named(["Llama-3-8B"])
    copy, product = copy_ms(), product_ms()
    bandwidth, arithmetic = 2 * COPIED_BYTES / copy, 2 * PRODUCT_SIZE**3 / product  # a ms
    return [
        Row(name=f"copy, {bandwidth / 1e9:.2f} TB/s", ms=copy, floor_ms=copy),
        Row(name=f"product, {arithmetic / 1e9:.0f} TFLOP/s", ms=product, floor_ms=product),
        decode_attention(shape, 64, 8192, bandwidth),
        prefill_attention(shape, 16_384, arithmetic),
        scattered_pages(256, 2 << 20, bandwidth),
        *(
            draws(shape.n_vocab, n_rows, name, params, bandwidth)
            for n_rows in (1, 64)
            for name, params in RULES.items()
        ),
    ]


def decode_attention(shape: Shape, n_sequences: int, n_keys: int, bandwidth: float) -> Row:
    layer, rows_of, q_TND = work(shape, n_sequences, 1, n_keys, GPU)
    out_TND, tile = torch.empty_like(q_TND), decode_tile(DTYPE, chip_of(GPU), shape.head_dim)
    launches = decode.launches(q_TND, layer, rows_of(1), tile, out_TND)
    kv_elements = 2 * n_sequences * n_keys * shape.n_kv_heads * shape.head_dim
    n_bytes = DTYPE.itemsize * kv_elements + q_TND.nbytes + out_TND.nbytes
    return Row(
        name=f"decode attention, {n_sequences} at {n_keys}",
        ms=median_ms(partial(run_all, launches)),
        floor_ms=n_bytes / bandwidth,
        bar=0.85,
    )


def prefill_attention(shape: Shape, n_tokens: int, arithmetic: float) -> Row:
    layer, rows_of, q_TND = work(shape, 1, n_tokens, n_tokens, GPU)
    tile = prefill_tile(DTYPE, chip_of(GPU), shape.head_dim)
    n_rep = shape.n_heads // shape.n_kv_heads
    on_device = rows_of(tile_rows(tile, n_rep) // n_rep)
    launch = prefill.launch(q_TND, layer, on_device, tile, torch.empty_like(q_TND))
    n_pairs = n_tokens * (n_tokens + 1) // 2
    return Row(
        name=f"prefill attention, {n_tokens} causal",
        ms=median_ms(launch.run),
        floor_ms=4 * shape.n_heads * shape.head_dim * n_pairs / arithmetic,
        bar=0.5,
    )


def scattered_pages(n_pages: int, page_bytes: int, bandwidth: float) -> Row:
    pool = torch.empty(2 * n_pages * page_bytes, dtype=torch.uint8, device=GPU)
    together = torch.empty(n_pages * page_bytes, dtype=torch.uint8, device=GPU)
    scattered = torch.randperm(2 * n_pages, device=GPU)[:n_pages]
    pages = torch.stack([scattered, torch.arange(n_pages, device=GPU)], 1) * page_bytes
    runs_R3 = torch.cat([pages, torch.full_like(pages[:, :1], page_bytes)], 1)
    launch = page_copy(pool, together, runs_R3, page_bytes)
    return Row(
        name=f"page copy, {n_pages} scattered of {page_bytes >> 20} MiB",
        ms=median_ms(launch.run),
        floor_ms=2 * together.nbytes / bandwidth,
    )


RULES = {
    "greedy": SamplingParams(max_tokens=1, seed=0, temperature=0.0),
    "random": SamplingParams(max_tokens=1, seed=0),
    "top_p 0.95": SamplingParams(max_tokens=1, seed=0, top_p=0.95),
    "top_k 50, top_p 0.95": SamplingParams(max_tokens=1, seed=0, top_k=50, top_p=0.95),
}


def draws(n_vocab: int, n_rows: int, name: str, params: SamplingParams, bandwidth: float) -> Row:
    logits_RV: Tensor = torch.randn(n_rows, n_vocab, device=GPU) * 3
    one = Draw(
        transfer=TransferId("t"), attempt=0, sample=0, index=0, row=0, params=params, prompt=(),
        outputs=(),
    )  # fmt: skip
    rows = SamplingRows.of([one] * n_rows, {}, n_vocab, GPU)
    return Row(
        name=f"draw, {name}, {n_rows} of {n_vocab}",
        ms=median_ms(lambda: sampling.sample(logits_RV, rows)),
        floor_ms=logits_RV.nbytes / bandwidth,
    )


def run_all(launches: tuple[Launch, ...]) -> None:
    for launch in launches:
        launch.run()
