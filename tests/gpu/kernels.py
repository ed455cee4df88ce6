"""How fast kernels are, beside the rates at which the device copies and multiplies."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
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
from tests.gpu.rows import Row, each, emit, say

DTYPE = torch.bfloat16
GPU = torch.device("cuda")
COPIED_BYTES = 2 << 30
PRODUCT_SIZE = 8192


@dataclass(frozen=True, slots=True)
class Floors:
    """The device's own rates, of just now; a millisecond."""

    bytes: float  # read and written
    operations: float


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


def floors() -> Floors:
    """Says them, too."""
    copy, product = copy_ms(), product_ms()
    torch.cuda.empty_cache()
    rates = Floors(2 * COPIED_BYTES / copy, 2 * PRODUCT_SIZE**3 / product)
    of_bytes, of_products = rates.bytes / 1e9, rates.operations / 1e9
    say(f"floors: copies {of_bytes:.2f} TB/s, products {of_products:.0f} TFLOP/s")
    return rates


def measure(_found: Mapping[str, float]) -> bool:
    (shape,) = shapes_named(["Llama-3-8B"])
    rates = floors()
    emit(Row(name="floor: copy", measured=rates.bytes / 1e9, unit="TB/s"))
    emit(Row(name="floor: product", measured=rates.operations / 1e9, unit="TFLOP/s"))
    return measure_shape(shape, rates)


def measure_shape(
    shape: Shape, rates: Floors, *, n: int = 64, n_keys: int = 8192, page_bytes: int = 2 << 20
) -> bool:
    """Attention of `n` sequences to so many keys, and to twice as many in a prompt; steps of one
    and of `n`. False: something failed."""
    return each(
        [
            lambda: emit(decode_attention(shape, n, n_keys, rates)),
            lambda: emit(prefill_attention(shape, 2 * n_keys, rates)),
            lambda: emit(scattered_pages(4 * n, page_bytes, rates)),
            *(partial(_others, shape, n_rows, rates) for n_rows in (1, n)),
            *(
                partial(_drawn, shape.n_vocab, n_rows, name, params, rates)
                for n_rows in (1, n)
                for name, params in RULES.items()
            ),
        ]
    )


def decode_attention(shape: Shape, n_sequences: int, n_keys: int, rates: Floors) -> Row:
    layer, rows_of, q_TND = work(shape, n_sequences, 1, n_keys, GPU)
    out_TND, tile = torch.empty_like(q_TND), decode_tile(DTYPE, chip_of(GPU), shape.head_dim)
    launches = decode.launches(q_TND, layer, rows_of(1), tile, out_TND)
    kv_elements = 2 * n_sequences * n_keys * shape.n_kv_heads * shape.head_dim
    n_bytes = DTYPE.itemsize * kv_elements + q_TND.nbytes + out_TND.nbytes
    merging = median_ms(launches[1].run)
    emit(Row(name="of it, the merge", measured=merging))
    return Row.of(
        "decode attention", median_ms(partial(run_all, launches)), floor=n_bytes / rates.bytes
    )


def prefill_attention(shape: Shape, n_tokens: int, rates: Floors) -> Row:
    layer, rows_of, q_TND = work(shape, 1, n_tokens, n_tokens, GPU)
    tile = prefill_tile(DTYPE, chip_of(GPU), shape.head_dim)
    n_rep = shape.n_heads // shape.n_kv_heads
    on_device = rows_of(tile_rows(tile, n_rep) // n_rep)
    launch = prefill.launch(q_TND, layer, on_device, tile, torch.empty_like(q_TND))
    n_pairs = n_tokens * (n_tokens + 1) // 2
    return Row.of(
        "prefill attention",
        median_ms(launch.run),
        floor=4 * shape.n_heads * shape.head_dim * n_pairs / rates.operations,
    )


def scattered_pages(n_pages: int, page_bytes: int, rates: Floors) -> Row:
    pool = torch.empty(2 * n_pages * page_bytes, dtype=torch.uint8, device=GPU)
    together = torch.empty(n_pages * page_bytes, dtype=torch.uint8, device=GPU)
    scattered = torch.randperm(2 * n_pages, device=GPU)[:n_pages]
    pages = torch.stack([scattered, torch.arange(n_pages, device=GPU)], 1) * page_bytes
    runs_R3 = torch.cat([pages, torch.full_like(pages[:, :1], page_bytes)], 1)
    launch = page_copy(pool, together, runs_R3, page_bytes)
    return Row(
        name=f"page copy, {n_pages} scattered of {page_bytes >> 20} MiB",
        measured=median_ms(launch.run),
        floor=2 * together.nbytes / rates.bytes,
    )


def _others(shape: Shape, n_rows: int, rates: Floors) -> None:
    """The kernels between products, as a layer of a step launches them."""
    from common.kernels.triton import activation, norms

    hidden = torch.randn(n_rows, shape.hidden, dtype=DTYPE, device=GPU)
    weight = torch.ones(shape.hidden, dtype=DTYPE, device=GPU)
    gate_up = torch.randn(n_rows, 2 * shape.intermediate, dtype=DTYPE, device=GPU)
    launches = {
        "add, rms norm": (
            norms.launch(hidden, hidden.clone(), weight, 1e-5, torch.empty_like(hidden)),
            4 * hidden.nbytes,
        ),
        "silu mul": (
            activation.launch(gate_up, gate_up.new_empty((n_rows, shape.intermediate))),
            gate_up.nbytes * 3 // 2,
        ),
    }
    for name, (launch, n_bytes) in launches.items():
        floor = n_bytes / rates.bytes
        emit(Row(name=f"{name}, {n_rows} rows", measured=median_ms(launch.run), floor=floor))


RULES = {
    "greedy": SamplingParams(max_tokens=1, seed=0, temperature=0.0),
    "random": SamplingParams(max_tokens=1, seed=0),
    "top_p 0.95": SamplingParams(max_tokens=1, seed=0, top_p=0.95),
    "top_k 50, top_p 0.95": SamplingParams(max_tokens=1, seed=0, top_k=50, top_p=0.95),
}


def _drawn(n_vocab: int, n_rows: int, name: str, params: SamplingParams, rates: Floors) -> None:
    logits_RV: Tensor = torch.randn(n_rows, n_vocab, device=GPU) * 3
    one = Draw(
        transfer=TransferId("t"), attempt=0, sample=0, index=0, row=0, params=params, prompt=(),
        outputs=(),
    )  # fmt: skip
    rows = SamplingRows.of([one] * n_rows, {}, n_vocab, GPU)
    emit(
        Row(
            name=f"draw, {name}, {n_rows} of {n_vocab}",
            measured=median_ms(lambda: sampling.sample(logits_RV, rows)),
            floor=logits_RV.nbytes / rates.bytes,
        )
    )


def run_all(launches: tuple[Launch, ...]) -> None:
    for launch in launches:
        launch.run()
