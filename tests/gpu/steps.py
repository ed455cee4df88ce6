"""How fast whole passes are: decode steps by graphs, and a long prompt, beside what their bytes and
operations take at the device's own rates."""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from common.engine.device import Device
from common.engine.device_thread import Waiting
from common.engine.plan import Draw, PassPlan, Piece, pack
from common.engine.runner import Runner
from common.engine.stream import Stream, open_stream
from common.ids import PageId, TransferId
from common.kernels.matrix import Matrix
from common.kv.cache import TORCH_DTYPES, KVCache
from common.kv.layout import KVSpec, pages_for
from common.model.device_weights import device_weights
from common.model.llama import Llama
from common.model.packing import packed_layout, place
from common.model.rope import cos_sin_table
from common.model.spec import Family, ModelSpec, NoScaling
from common.params import SamplingParams
from decode.graphs import GraphRunner
from tests.gpu.run import Row

LLAMA_3_8B = ModelSpec(
    family=Family.LLAMA,
    hidden_size=4096,
    n_layers=32,
    n_heads=32,
    n_kv_heads=8,
    head_dim=128,
    intermediate_size=14336,
    vocab_size=128256,
    rms_norm_eps=1e-5,
    rope_theta=5e5,
    rope_scaling=NoScaling(),
    max_position=8192,
    tied_embeddings=False,
    qkv_bias=False,
    o_bias=False,
    mlp_bias=False,
    qk_norm=False,
    sliding_window=None,
    native_dtype="bfloat16",
)
PAGE_TOKENS = 16
GREEDY = SamplingParams(max_tokens=1, seed=0, temperature=0.0)
N_STEPS = 60


class Bench:
    """A model of random weights, and a pool whose pages lie in any order."""

    def __init__(
        self, spec: ModelSpec, device: Device, *, n_tokens: int, max_num_seqs: int
    ) -> None:
        """The pool has room for so many tokens."""
        self.spec, self.device = spec, device
        dtype = TORCH_DTYPES[spec.native_dtype]
        placed, n_bytes = place(packed_layout(spec), dtype)
        weights = device_weights(placed, n_bytes, dtype, _random, device.torch)
        model = Llama(spec, weights, cos_sin_table(spec, spec.max_position).to(device.torch))
        kv = KVSpec(
            n_layers=spec.n_layers,
            n_kv_heads=spec.n_kv_heads,
            head_dim=spec.head_dim,
            page_tokens=PAGE_TOKENS,
            dtype=spec.native_dtype,
        )
        n_pages = pages_for(n_tokens, PAGE_TOKENS) + 2 * max_num_seqs
        pages = torch.zeros((n_pages, kv.page_bytes), dtype=torch.uint8, device=device.torch)
        self.kv, self.n_pages = kv, n_pages
        self.runner = Runner(model, KVCache(kv, pages))
        self.stream: Stream = open_stream(device)
        self.graphs = GraphRunner(
            self.runner,
            self.stream,
            max_num_seqs=max_num_seqs,
            max_model_len=spec.max_position,
            n_vocab=spec.vocab_size,
        )
        self.read_bytes = n_bytes - dtype.itemsize * spec.vocab_size * spec.hidden_size
        """Of weights, by a step: all but the table, of which a few rows are."""

    def some_pages(self, n_sequences: int, n_tokens: int) -> list[list[PageId]]:
        order = random.Random(0).sample(range(self.n_pages), self.n_pages)
        n = pages_for(n_tokens, PAGE_TOKENS)
        return [[PageId(p) for p in order[i * n : (i + 1) * n]] for i in range(n_sequences)]

    def steps(self, n_sequences: int, n_context: int, n_steps: int) -> list[PassPlan]:
        """All but the first of tokens that the one before draws."""
        tables = self.some_pages(n_sequences, n_context + n_steps)
        rows = np.arange(n_sequences)
        plans: list[PassPlan] = []
        for step in range(n_steps):
            pieces = [Piece([step], n_context - 1 + step, pages) for pages in tables]
            plan = _plan(pieces, tuple(_draw(row, step) for row in range(n_sequences)))
            plans.append(
                plan if not step else replace(plan, unread_rows_U=rows, unread_draws_U=rows)
            )
        return plans

    def prompt(self, n_tokens: int) -> PassPlan:
        (pages,) = self.some_pages(1, n_tokens)
        return _plan([Piece([1] * n_tokens, 0, pages)], ())


def _random(tensors: dict[str, Matrix]) -> None:
    for name, tensor in tensors.items():
        assert isinstance(tensor, Tensor)
        if name.endswith("norm"):
            tensor.fill_(1)
        else:
            tensor.normal_(0, tensor.shape[-1] ** -0.5)


def _plan(pieces: list[Piece], draws: tuple[Draw, ...]) -> PassPlan:
    return PassPlan(**pack(pieces, PAGE_TOKENS), draws=draws)  # pyright: ignore[reportArgumentType] pack() names its arrays as PassPlan does


def _draw(row: int, index: int) -> Draw:
    return Draw(
        transfer=TransferId(f"t{row}"),
        attempt=0,
        sample=0,
        index=index,
        row=row,
        params=GREEDY,
        prompt=(),
        outputs=(),
    )


def loop_s(begin: Callable[[PassPlan], Waiting], plans: Sequence[PassPlan], n_warm: int) -> float:
    """Seconds a step, each begun while the one before is computed, as a worker does it."""
    waiting: Waiting | None = None
    began = 0.0
    for n, plan in enumerate(plans):
        if n == n_warm:
            began = time.perf_counter()
        begun = begin(plan)
        if waiting is not None:
            waiting()
        waiting = begun
    assert waiting is not None
    waiting()
    return (time.perf_counter() - began) / (len(plans) - n_warm)


def replay_s(bench: Bench, plan: PassPlan, n_times: int) -> float:
    """Seconds that the device takes for the step, which is computed again and again."""
    bench.graphs.begin(plan)()
    began = time.perf_counter()
    with bench.stream.work():
        for _ in range(n_times):
            bench.graphs.replay(plan.n_rows)
    bench.stream.mark().synchronize()
    return (time.perf_counter() - began) / n_times


def step_rows(
    bench: Bench,
    n_sequences: int,
    n_context: int,
    at_most: float,
    bytes_ms: float,
    n_steps: int = N_STEPS,
) -> list[Row]:
    """`at_most`: how many times its floor a step may take. `bytes_ms`: read in a millisecond."""
    plans = bench.steps(n_sequences, n_context, n_steps)
    step_ms = loop_s(bench.graphs.begin, plans, n_steps // 6) * 1e3
    device_ms = replay_s(bench, bench.steps(n_sequences, n_context, 1)[0], n_steps) * 1e3
    n_bytes = bench.read_bytes + n_sequences * n_context * bench.kv.token_bytes
    name = f"decode step, {n_sequences} at {n_context}"
    return [
        Row(name=name, ms=step_ms, floor_ms=n_bytes / bytes_ms, bar=1 / at_most),
        Row(
            name=f"the device's part of it, {n_sequences} at {n_context}",
            ms=step_ms,
            floor_ms=device_ms,
            bar=0.97 if n_sequences > 1 else None,
        ),
    ]


def prompt_row(bench: Bench, n_tokens: int, operations_ms: float) -> Row:
    plan, spec = bench.prompt(n_tokens), bench.spec
    seconds: list[float] = []
    for _ in range(4):
        began = time.perf_counter()
        bench.graphs.begin(plan)()
        seconds.append(time.perf_counter() - began)
    inner = spec.n_heads * spec.head_dim
    kv_inner = spec.n_kv_heads * spec.head_dim
    per_layer = spec.hidden_size * (2 * inner + 2 * kv_inner + 3 * spec.intermediate_size)
    n_pairs = n_tokens * (n_tokens + 1) // 2
    operations = spec.n_layers * (2 * per_layer * n_tokens + 4 * inner * n_pairs)
    return Row(
        name=f"prompt, one pass of {n_tokens}",
        ms=min(seconds[1:]) * 1e3,
        floor_ms=operations / operations_ms,
        bar=0.65,
    )


def rows() -> list[Row]:
    from tests.gpu.kernels import COPIED_BYTES, PRODUCT_SIZE, copy_ms, product_ms

    bytes_ms, operations_ms = 2 * COPIED_BYTES / copy_ms(), 2 * PRODUCT_SIZE**3 / product_ms()
    torch.cuda.empty_cache()
    bench = Bench(LLAMA_3_8B, Device("cuda:0", 0), n_tokens=64 * 2200, max_num_seqs=64)
    bench.graphs.capture(lambda *_: None)
    return [
        *step_rows(bench, 1, 1024, 1.15, bytes_ms),
        *step_rows(bench, 64, 2048, 1.2, bytes_ms),
        prompt_row(bench, 8192 - 1, operations_ms),
    ]
