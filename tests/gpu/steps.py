"""How fast whole passes are: decode steps by graphs, and a long prompt, beside what their bytes and
operations take at the device's own rates; and where their time goes."""

import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from common.engine.device import Device
from common.engine.device_thread import Waiting
from common.engine.plan import Draw, PassPlan, Piece, pack
from common.engine.runner import Runner
from common.engine.stream import Stream, open_stream
from common.ids import PageId, TransferId
from common.kernels import ops
from common.kernels.matrix import Matrix, plain
from common.kv.cache import TORCH_DTYPES, KVCache
from common.kv.layout import KVSpec, pages_for
from common.model.device_weights import device_weights
from common.model.llama import Llama
from common.model.packing import packed_layout, place
from common.model.rope import cos_sin_table
from common.model.spec import Family, ModelSpec, NoScaling
from common.params import SamplingParams
from decode.graphs import GraphRunner
from tests.gpu.rows import WANTED, Row, each, emit, say

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
PROMPT_TOKENS = 8192
MORE_CONTEXT = 2560  # beside the bar's: between both a worker's steps lie


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

    def step_bytes(self, n_sequences: int, n_context: int) -> int:
        """Of weights and KV."""
        return self.read_bytes + self.kv_bytes(n_sequences, n_context)

    def kv_bytes(self, n_sequences: int, n_context: int) -> int:
        return n_sequences * n_context * self.kv.token_bytes

    def operations(self, n_tokens: int) -> tuple[int, int]:
        """Of a prompt: in products, and in attention."""
        spec = self.spec
        inner, kv_inner = spec.n_heads * spec.head_dim, spec.n_kv_heads * spec.head_dim
        per_layer = spec.hidden_size * (2 * inner + 2 * kv_inner + 3 * spec.intermediate_size)
        n_pairs = n_tokens * (n_tokens + 1) // 2
        return spec.n_layers * 2 * per_layer * n_tokens, spec.n_layers * 4 * inner * n_pairs

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


@dataclass(frozen=True, slots=True)
class Loop:
    """Milliseconds of one step, in the median."""

    step: float
    asked: float  # of this thread, until the device has been asked for all of it
    cpu: float  # this thread's own


def loop(begin: Callable[[PassPlan], Waiting], plans: Sequence[PassPlan], n_warm: int) -> Loop:
    """Each begun while the one before is computed, as a worker does it."""
    waiting: Waiting | None = None
    ended: list[float] = []
    asked: list[float] = []
    cpu: list[float] = []
    for plan in plans:
        began, began_cpu = time.perf_counter(), time.thread_time()
        begun = begin(plan)
        asked.append(time.perf_counter() - began)
        cpu.append(time.thread_time() - began_cpu)
        if waiting is not None:
            waiting()
            ended.append(time.perf_counter())
        waiting = begun
    assert waiting is not None
    waiting()
    ended.append(time.perf_counter())
    step = (ended[-1] - ended[n_warm]) / (len(ended) - 1 - n_warm)
    return Loop(step * 1e3, statistics.median(asked) * 1e3, statistics.median(cpu) * 1e3)


def replay_ms(bench: Bench, plan: PassPlan, n_times: int) -> float:
    """Milliseconds that the device takes for the step, which is computed again and again."""
    bench.graphs.begin(plan)()
    began = time.perf_counter()
    replays(bench, plan, n_times)
    return (time.perf_counter() - began) * 1e3 / n_times


@torch.inference_mode()  # as the graphs were captured: torch's own tensors beside them are such
def replays(bench: Bench, plan: PassPlan, n_times: int) -> None:
    with bench.stream.work():
        for _ in range(n_times):
            bench.graphs.replay(plan.n_rows)
    bench.stream.mark().synchronize()


def step(bench: Bench, n_sequences: int, n_context: int, bytes_ms: float, n_steps: int) -> None:
    """`bytes_ms`: read in a millisecond."""
    plans = bench.steps(n_sequences, n_context, n_steps)
    took = loop(bench.graphs.begin, plans, n_steps // 6)
    device_ms = replay_ms(bench, bench.steps(n_sequences, n_context, 1)[0], n_steps)
    floor = bench.step_bytes(n_sequences, n_context) / bytes_ms
    of = f"{n_sequences} at {n_context}"
    key = f"step {n_sequences}"
    name = f"decode step, {of}"
    emit(Row(name=name, measured=took.step, floor=floor, key=key if key in WANTED else None))
    emit(Row(name=f"the device's own time of a step, {of}", measured=device_ms, floor=floor))
    if n_sequences > 1:
        emit(Row(name=f"the loop's step over the device's own, {of}", measured=took.step,
                 floor=device_ms))  # fmt: skip
    emit(Row(name=f"asking for a step, {of}", measured=took.asked))
    emit(Row(name=f"CPU time of asking for a step, {of}", measured=took.cpu))


def device_time(bench: Bench, n_sequences: int, n_context: int, bytes_ms: float) -> None:
    device_ms = replay_ms(bench, bench.steps(n_sequences, n_context, 1)[0], N_STEPS)
    floor = bench.step_bytes(n_sequences, n_context) / bytes_ms
    name = f"the device's own time of a step, {n_sequences} at {n_context}"
    emit(Row(name=name, measured=device_ms, floor=floor))


def prompt(bench: Bench, n_tokens: int, operations_ms: float) -> None:
    plan = bench.prompt(n_tokens)
    seconds: list[float] = []
    asked_s = 0.0
    for _ in range(4):
        began = time.perf_counter()
        with bench.stream.work():
            bench.runner.hidden(plan)
        asked_s = time.perf_counter() - began
        bench.stream.mark().synchronize()
        seconds.append(time.perf_counter() - began)
    floor = sum(bench.operations(n_tokens)) / operations_ms
    emit(Row.of("prompt", statistics.median(seconds[1:]) * 1e3, floor=floor))
    emit(Row(name="asking for it", measured=asked_s * 1e3))


def products(bench: Bench, n_rows: int, bytes_ms: float, operations_ms: float) -> None:
    """One kind of product after the other, over all layers, so that no cache holds the weights."""
    model = bench.runner.model
    assert isinstance(model, Llama)
    kinds = {
        "qkv": [plain(b.qkv.weight_OI) for b in model.blocks],
        "o": [plain(b.o.weight_OI) for b in model.blocks],
        "gate_up": [plain(b.gate_up.weight_OI) for b in model.blocks],
        "down": [plain(b.down.weight_OI) for b in model.blocks],
    }
    for kind, weights in kinds.items():
        n_outputs, n_inputs = weights[0].shape
        x_TI = weights[0].new_empty((n_rows, n_inputs)).normal_()
        out_TO = weights[0].new_empty((n_rows, n_outputs))

        def run(weights: list[Tensor] = weights, x: Tensor = x_TI, out: Tensor = out_TO) -> None:
            for w_OI in weights:
                ops.linear(x, w_OI, None, out)

        measured = _captured_ms(bench.stream, run) / len(weights)
        n_bytes = weights[0].nbytes + x_TI.nbytes + out_TO.nbytes
        floor = max(n_bytes / bytes_ms, 2 * n_rows * weights[0].numel() / operations_ms)
        emit(Row(name=f"product {kind}, {n_rows} rows", measured=measured, floor=floor))


@torch.inference_mode()
def _captured_ms(stream: Stream, run: Callable[[], None], n_times: int = 5) -> float:
    with stream.work():
        run()
    stream.mark().synchronize()
    graph = stream.capture(run)
    took: list[float] = []
    for _ in range(n_times):
        began = time.perf_counter()
        with stream.work():
            graph.replay()
        stream.mark().synchronize()
        took.append(time.perf_counter() - began)
    return statistics.median(took) * 1e3


def step_breakdown(bench: Bench, n_sequences: int, n_context: int) -> None:
    from tests.gpu.breakdown import PRODUCTS, show

    plan, n_times = bench.steps(n_sequences, n_context, 1)[0], 5
    bench.graphs.begin(plan)()
    amounts = {
        PRODUCTS: (float(bench.read_bytes), "TB/s"),
        "_attend_split": (float(bench.kv_bytes(n_sequences, n_context)), "TB/s"),
    }
    title = f"a decode step on the device, {n_sequences} at {n_context}"
    show(title, partial(replays, bench, plan, n_times), n_times, amounts)


def loop_breakdown(bench: Bench, n_sequences: int, n_context: int) -> None:
    """With what the device does between two steps, and whether it waits there."""
    from tests.gpu.breakdown import show

    plans = bench.steps(n_sequences, n_context, 12)
    show(
        f"the loop of steps, {n_sequences} at {n_context}",
        partial(loop, bench.graphs.begin, plans, 2),
        len(plans),
    )


def prompt_breakdown(bench: Bench, n_tokens: int) -> None:
    from tests.gpu.breakdown import PRODUCTS, show

    of_products, of_attention = bench.operations(n_tokens)
    amounts = {
        PRODUCTS: (float(of_products), "TFLOP/s"),
        "_attend_tile": (float(of_attention), "TFLOP/s"),
    }
    plan = bench.prompt(n_tokens)
    show(f"a prompt of {n_tokens}", lambda: bench.graphs.begin(plan)(), 1, amounts)


def measure(_found: Mapping[str, float]) -> bool:
    from tests.gpu.kernels import floors

    rates = floors()
    bench = Bench(LLAMA_3_8B, Device("cuda:0", 0), n_tokens=64 * 2700, max_num_seqs=64)
    began = time.perf_counter()
    bench.graphs.capture(lambda *_: None)
    emit(Row(name="capturing graphs", measured=time.perf_counter() - began, unit="s"))
    say(f"graphs take {bench.stream.graphs_bytes / 2**20:.0f} MiB")
    rows_of_products = (1, 64, PROMPT_TOKENS)
    return each(
        [
            partial(step, bench, 1, 1024, rates.bytes, N_STEPS),
            partial(step, bench, 64, 2048, rates.bytes, N_STEPS),
            partial(prompt, bench, PROMPT_TOKENS, rates.operations),
            partial(device_time, bench, 64, MORE_CONTEXT, rates.bytes),
            *(partial(products, bench, n, rates.bytes, rates.operations) for n in rows_of_products),
            partial(step_breakdown, bench, 1, 1024),
            partial(step_breakdown, bench, 64, 2048),
            partial(loop_breakdown, bench, 64, 2048),
            partial(prompt_breakdown, bench, PROMPT_TOKENS),
        ]
    )
