"""How fast passes are, beside the floors that this machine sets at the same moment.

    python -m bench.kernels MODEL [--threads 2] [--dtypes float32 bfloat16]
                                  [--quantization none int8 gguf]
    python -m bench.kernels --compile-only   (see `bench.kernels_compile`)

MODEL is a .gguf file or a Hugging Face directory. Weights that are kept in several ways take turns,
pass by pass. Pages lie at random places of a pool that no
cache holds; tokens are drawn greedily. A decode step's floor is the bytes of weights and KV over
the rate at which memory is read, or its operations over the rate of a large product if that is
more; a prompt's is its operations over the latter. Rates are measured between the passes. The
last line is JSON. Drives `common` only.
"""

import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import get_args

import numpy as np
import torch

from bench.flag_types import Parser, model_path, positive
from bench.program import exit_status
from common.engine.plan import Draw, PassPlan, Piece, pack
from common.engine.runner import Runner
from common.engine.sizing import kv_spec
from common.ids import PageId, TransferId
from common.kernels import ops
from common.kv.cache import TORCH_DTYPES, KVCache
from common.kv.layout import pages_for
from common.messages import SamplingParams
from common.model.load import LoadedModel, load_model
from common.model.spec import ModelSpec
from common.values import Quantization

PAGE_TOKENS = 16
POOL_BYTES = 1 << 30
CONTEXT_TOKENS = 320  # of a decode step
REST_S = 0.02  # until torch's threads, which the rates took, have stopped spinning
MIN_S = 2.0  # a measurement goes on until it has lasted this long
GREEDY = SamplingParams(max_tokens=1, seed=0, temperature=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Sequences alike: each computes n tokens after `start` others."""

    n_sequences: int
    start: int
    n_tokens: int

    @property
    def is_decode(self) -> bool:
        return self.n_tokens == 1

    @property
    def label(self) -> str:
        if self.is_decode:
            return f"decode, batch {self.n_sequences} at {self.start}"
        return f"prefill, {self.n_tokens} after {self.start}"


WORKS = (
    *(Work(n_sequences=n, start=CONTEXT_TOKENS - 1, n_tokens=1) for n in (1, 8, 32)),
    *(Work(n_sequences=1, start=start, n_tokens=512) for start in (0, 2048)),
)


@dataclass(frozen=True, slots=True)
class Row:
    dtype: str
    quantization: str
    work: str
    n_passes: int
    p50_ms: float
    tokens_per_s: float
    floor_ms: float
    over_floor: float


class Machine:
    """Rates of this machine, taken now and then."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.read = torch.from_numpy(np.ones(1 << 26, np.float32))  # 256 MB, in huge pages
        self.factor = torch.ones((1024, 1024), dtype=dtype)
        self.bytes_per_s: list[float] = []
        self.operations_per_s: list[float] = []

    def measure(self) -> None:
        self.bytes_per_s.append(self.read.nbytes / seconds(self.read.sum))
        operations = 2 * len(self.factor) ** 3
        self.operations_per_s.append(operations / seconds(lambda: self.factor @ self.factor))
        time.sleep(REST_S)

    def floor_s(self, n_bytes: float, n_operations: float) -> float:
        by_memory = n_bytes / statistics.median(self.bytes_per_s)
        return max(by_memory, n_operations / statistics.median(self.operations_per_s))


class Bench:
    """One model in one dtype, its weights kept in one way."""

    def __init__(self, loaded: LoadedModel, dtype: str, quantization: str = "none") -> None:
        self.loaded = loaded
        self.dtype = dtype
        self.quantization = quantization
        spec = loaded.spec
        self.kv_spec = kv_spec(spec, dtype, PAGE_TOKENS)
        longest = max(pages_for(w.start + w.n_tokens, PAGE_TOKENS) * w.n_sequences for w in WORKS)
        self.n_pages = max(longest, POOL_BYTES // self.kv_spec.page_bytes)
        pages = np.zeros((self.n_pages, self.kv_spec.page_bytes), np.uint8)
        self.runner = Runner(loaded.model, KVCache(self.kv_spec, pages))
        self.rng = random.Random(0)

    def measure(self, work: Work) -> Row:
        return measure([self], work)[0]

    def row(self, work: Work, passes_s: Sequence[float], machine: Machine) -> Row:
        p50_s = statistics.median(passes_s)
        floor_s = machine.floor_s(*self.needs(work))
        return Row(
            dtype=self.dtype,
            quantization=self.quantization,
            work=work.label,
            n_passes=len(passes_s),
            p50_ms=p50_s * 1e3,
            tokens_per_s=work.n_sequences * work.n_tokens / p50_s,
            floor_ms=floor_s * 1e3,
            over_floor=p50_s / floor_s,
        )

    def plan(self, work: Work) -> PassPlan:
        n_pages = pages_for(work.start + work.n_tokens, PAGE_TOKENS)
        pages = [
            PageId(p) for p in self.rng.sample(range(self.n_pages), n_pages * work.n_sequences)
        ]
        vocabulary = range(self.loaded.spec.vocab_size)
        pieces = [
            Piece(
                self.rng.choices(vocabulary, k=work.n_tokens),
                work.start,
                pages[b :: work.n_sequences],
            )
            for b in range(work.n_sequences)
        ]
        arrays = pack(pieces, PAGE_TOKENS)
        draws = tuple(
            Draw(
                transfer=TransferId("bench"),
                attempt=0,
                sample=b,
                index=0,
                row=int(arrays["start_B1"][b + 1]) - 1,
                params=GREEDY,
                prompt=(),
                outputs=(),
            )
            for b in range(work.n_sequences)
        )
        return PassPlan(**arrays, draws=draws)  # pyright: ignore[reportArgumentType] pack() names its arrays as PassPlan does

    def needs(self, work: Work) -> tuple[float, float]:
        """Bytes that a pass must read, and operations that it must do."""
        spec = self.loaded.spec
        n_rows = work.n_sequences * work.n_tokens
        kv_tokens = work.n_sequences * (work.start + work.n_tokens)
        n_bytes = self.loaded.weights_bytes + kv_tokens * self.kv_spec.token_bytes
        keys = n_rows * (work.start + (work.n_tokens + 1) / 2)
        attention = 4 * spec.n_layers * spec.n_heads * spec.head_dim * keys
        logits = 2 * spec.vocab_size * spec.hidden_size * work.n_sequences
        return n_bytes, 2 * parameters_of_layers(spec) * n_rows + attention + logits


def parameters_of_layers(spec: ModelSpec) -> int:
    """Of the products that every row goes through."""
    attention = (2 * spec.n_heads + 2 * spec.n_kv_heads) * spec.head_dim
    return spec.n_layers * spec.hidden_size * (attention + 3 * spec.intermediate_size)


def measure(benches: Sequence[Bench], work: Work) -> list[Row]:
    """Of models of one dtype, which take turns; a row for each."""
    machine = Machine(TORCH_DTYPES[benches[0].dtype])
    plans = [bench.plan(work) for bench in benches]
    for bench, plan in zip(benches, plans, strict=True):
        bench.runner.run(plan)
    passes_s: list[list[float]] = [[] for _ in benches]
    while sum(map(sum, passes_s)) < MIN_S * len(benches):
        for bench, plan, of_bench in zip(benches, plans, passes_s, strict=True):
            machine.measure()
            of_bench.append(bench.runner.run(plan).seconds)
    return [
        bench.row(work, of_bench, machine)
        for bench, of_bench in zip(benches, passes_s, strict=True)
    ]


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def main(argv: Sequence[str]) -> int:
    """Measure passes; or compile kernels, where 1 is a fault."""
    if "--compile-only" in argv:
        from bench import kernels_compile  # needs Triton, which the rest does not

        return kernels_compile.main(argv)
    parser = Parser(prog="python -m bench.kernels", description=__doc__)
    parser.add_argument("model", type=model_path)
    parser.add_argument("--threads", type=positive, default=torch.get_num_threads())
    parser.add_argument(
        "--dtypes", nargs="+", default=["float32", "bfloat16"], choices=sorted(TORCH_DTYPES)
    )
    parser.add_argument(
        "--quantization", nargs="+", default=["none"], choices=get_args(Quantization)
    )
    options = parser.parse_all(argv)
    rows: list[Row] = []
    weights: dict[str, int] = {}
    for dtype in options.dtypes:
        ops.set_threads(options.threads)
        benches: list[Bench] = []
        for kept in options.quantization:
            loaded = load_model(options.model, TORCH_DTYPES[dtype], None, 4096, quantization=kept)
            benches.append(Bench(loaded, dtype, kept))
            weights[f"{dtype}/{kept}"] = loaded.weights_bytes
            print(f"{dtype:>8} {kept:>4}  weights {loaded.weights_bytes} bytes")
        for work in WORKS:
            for row in measure(benches, work):
                rows.append(row)
                print(
                    f"{dtype:>8} {row.quantization:>4}  {row.work:<26} {row.p50_ms:8.1f} ms "
                    f"{row.tokens_per_s:8.0f} tok/s  floor {row.floor_ms:7.1f} ms "
                    f"{row.over_floor:5.1f} x",
                    flush=True,
                )
    print(
        json.dumps(
            {
                "threads": options.threads,
                "weights_bytes": weights,
                "rows": [asdict(row) for row in rows],
            }
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(exit_status(main, sys.argv[1:]))
