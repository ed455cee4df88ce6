"""Compiles every Triton kernel for GPUs that need not be there, and shows what each takes.

    python -m bench.kernels --compile-only [--chips 80 89 90 100] [--models Llama-3-8B]

At the shapes that the models use, in bfloat16, exactly as they would be launched. For each:
registers of a thread, bytes spilled, shared memory beside the chip's limit, tensor-core
instructions, and global accesses of 16 bytes (from the PTX and the compiled code). The last line
is JSON. Exit status 1: something spills, does not fit, or lacks what its kind of kernel must have.
"""

import json
import re
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import triton
from torch import Tensor
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime import JITFunction

from bench.flag_types import Parser
from bench.kernels_shapes import SHAPES, Shape, beginning, shapes_named
from common.kernels.paged import KVLayer
from common.kernels.triton import (
    activation,
    decode,
    logprobs,
    norms,
    pages,
    prefill,
    rope,
    sampling,
)
from common.kernels.triton.configs import decode_tile, prefill_tile
from common.kernels.triton.launch import Launch
from common.kernels.triton.logprob_rows import LogprobRows
from common.kernels.triton.rows import DeviceRows
from common.kernels.triton.sampling_rows import SamplingRows, mask_words
from common.kv.cache import KVCache
from common.kv.layout import FP8, KVSpec

SHARED_LIMITS_BYTES = {80: 166_912, 89: 101_376, 90: 232_448, 100: 232_448}
"""Of one block, by chip: CUDA C++ Programming Guide, technical specifications."""

CHIPS = (80, 90, 100)  # unless others are asked for
TENSOR_CORE = {
    80: r"\bmma\.sync",
    89: r"\bmma\.sync",
    90: r"\bwgmma\.mma_async",
    100: r"\btcgen05\.mma",
}
ANY_TENSOR_CORE = "|".join(TENSOR_CORE.values())
WIDE_ACCESS = (
    r"\b(?:(?:ld|st)\.global[\w.:]*\.(?:v4\.(?:b|u|f|s)32|v2\.(?:b|u|f|s)64)|cp\.async\.cg)"
)
DTYPE_NAMES = {
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.float8_e4m3fn: "fp8e4nv",
    torch.float32: "fp32",
    torch.float64: "fp64",
    torch.int64: "i64",
    torch.int32: "i32",
}
FP8_FROM_CHIP = 89
MAX_REGISTERS = {
    "decode attention": 128,
    "decode attention, fp8": 128,
    "prefill attention": 224,
    "prefill attention, fp8": 255,  # one block of 8 warps on a multiprocessor, as without fp8
    "draw": 128,
}
"""Of a thread, so that blocks enough are on a multiprocessor to hide what memory takes."""

MAX_REGISTERS_ELSEWHERE = 64
MAX_DECODE_SHARED_BYTES = 82_000
"""Two blocks on any of the chips."""

META = torch.device("meta")


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    kernel: str
    shape: str
    chip: int
    registers: int
    spilled_bytes: int  # local memory of a thread, its stack included
    shared_bytes: int
    tensor_core: int  # instructions, of any kind
    newest_tensor_core: int  # of the kind that this chip brought
    wide_accesses: int

    def misfits(self) -> list[str]:
        """Why it would run badly on that chip, or not at all; for people."""
        found: list[str] = []
        if self.spilled_bytes:
            found.append(f"spills {self.spilled_bytes} bytes")
        if self.shared_bytes > SHARED_LIMITS_BYTES[self.chip]:
            found.append(f"{self.shared_bytes} bytes of shared memory")
        return found

    def faults(self) -> list[str]:
        """What must not be in the tables that are checked in, for people."""
        found = self.misfits()
        if self.registers > MAX_REGISTERS.get(self.kernel, MAX_REGISTERS_ELSEWHERE):
            found.append(f"{self.registers} registers")
        if "decode" in self.kernel and self.shared_bytes > MAX_DECODE_SHARED_BYTES:
            found.append(f"{self.shared_bytes} bytes of shared memory")
        if self.kernel.startswith("prefill attention") and not self.newest_tensor_core:
            found.append(f"no {TENSOR_CORE[self.chip]}")
        if self.kernel.startswith("decode attention") and not self.tensor_core:
            found.append("no tensor-core instructions")
        if not self.wide_accesses and self.kernel.startswith(("page copy", "prefill attention")):
            found.append("no accesses of 16 bytes")
        return found


def compile_all(
    shapes: Sequence[Shape] = SHAPES, chips: Sequence[int] = CHIPS
) -> Iterator[Compiled]:
    for shape in shapes:
        for chip in chips:
            for kernel, launch in launches(shape, chip).items():
                yield compile_one(kernel, shape.name, launch, chip)


def launches(shape: Shape, chip: int) -> dict[str, Launch]:
    """Every kernel as a model of this shape launches it, over tensors without memory."""
    n_rows, n_heads, n_kv_heads, dtype = 8, shape.n_heads, shape.n_kv_heads, torch.bfloat16

    def rows(*widths: int) -> Tensor:
        return torch.empty((n_rows, *widths), dtype=dtype, device=META)

    def integers(*sizes: int, of: torch.dtype = torch.int32) -> Tensor:
        return torch.empty(sizes, dtype=of, device=META)

    layer = paged(shape, "bfloat16")
    qkv = rows(n_heads + 2 * n_kv_heads, shape.head_dim)
    q, k, v = qkv.split((n_heads, n_kv_heads, n_kv_heads), dim=1)
    on_device = DeviceRows(
        single_I=integers(n_rows),
        longest_keys=4096,
        tile_X2=integers(4, 2),
        start_B1=integers(n_rows + 1),
        len_B=integers(n_rows),
        tables_BM=integers(n_rows, 272),
    )
    out = rows(n_heads, shape.head_dim)
    hidden, weight = rows(shape.hidden), torch.empty(shape.hidden, dtype=dtype, device=META)
    cos_sin = torch.empty((64, shape.head_dim), dtype=torch.float32, device=META)
    at = integers(n_rows, of=torch.int64)
    logits = torch.empty((n_rows, shape.n_vocab), dtype=torch.float32, device=META)
    randomness, draw = sampling.launches(logits, sampling_rows(n_rows, shape.n_vocab), at, at)
    likeliest = LogprobRows.of(integers(n_rows), shape.n_vocab)
    finding, merging_found, weighing = logprobs.launches(logits, at, likeliest)
    pool = torch.empty(8 * layer.geometry.stride * dtype.itemsize, dtype=torch.uint8, device=META)
    one_row, many_rows = (of(dtype, chip, shape.head_dim) for of in (decode_tile, prefill_tile))
    attend, merging = decode.launches(out, layer, on_device, one_row, out)
    launched = {
        "decode attention": attend,
        "decode merge": merging,
        "prefill attention": prefill.launch(out, layer, on_device, many_rows, out),
        "rope and write": rope.launch(q, k, v, cos_sin, at, at, layer, out),
        "rms norm": norms.launch(hidden, None, weight, 1e-5, hidden),
        "add, rms norm": norms.launch(hidden, hidden, weight, 1e-5, hidden),
        "silu mul": activation.launch(rows(2 * shape.intermediate), rows(shape.intermediate)),
        "page copy": pages.launch(pool, pool, integers(n_rows, 3, of=torch.int64), 1 << 20),
        "randomness": randomness,
        "draw": draw,
        "likeliest tokens": finding,
        "likeliest, merged": merging_found,
        "rank and weight": weighing,
    }
    if chip >= FP8_FROM_CHIP:
        layer, one_row = paged(shape, FP8), decode_tile(dtype, chip, shape.head_dim, fp8=True)
        launched |= {
            "decode attention, fp8": decode.launches(out, layer, on_device, one_row, out)[0],
            "prefill attention, fp8": prefill.launch(out, layer, on_device, many_rows, out),
            "rope and write, fp8": rope.launch(q, k, v, cos_sin, at, at, layer, out),
        }
    return launched


def sampling_rows(n_rows: int, n_vocab: int) -> SamplingRows:
    def empty(dtype: torch.dtype, *sizes: int) -> Tensor:
        return torch.empty((n_rows, *sizes), dtype=dtype, device=META)

    return SamplingRows(
        scale_R=empty(torch.float64),
        limits_R4=empty(torch.int64, 4),
        keys_R3=empty(torch.int64, 3),
        penalty_R3=empty(torch.float32, 3),
        history_R=empty(torch.int32),
        history_HV=empty(torch.int32, n_vocab),
        bias_R=empty(torch.int32),
        bias_SV=empty(torch.float32, n_vocab),
        mask_R=empty(torch.int32),
        mask_MW=empty(torch.int32, mask_words(n_vocab)),
    )


def paged(shape: Shape, dtype: str) -> KVLayer:
    """The second layer of a pool of two layers."""
    kv = KVSpec(
        n_layers=2,
        n_kv_heads=shape.n_kv_heads,
        head_dim=shape.head_dim,
        page_tokens=shape.page_tokens,
        dtype=dtype,
    )
    return KVCache(kv, torch.empty((8, kv.page_bytes), dtype=torch.uint8, device=META)).layer(1)


def compile_one(kernel: str, shape: str, launch: Launch, chip: int) -> Compiled:
    """As Triton would at the first launch with such arguments."""
    compiled = triton.compile(
        source(launch),
        target=GPUTarget("cuda", chip, 32),
        options=launch.options,
    )
    ptx: str = compiled.asm["ptx"]
    registers, spilled_bytes = resources(compiled.asm["cubin"])
    return Compiled(
        kernel=kernel,
        shape=shape,
        chip=chip,
        registers=registers,
        spilled_bytes=spilled_bytes,
        shared_bytes=compiled.metadata.shared,
        tensor_core=len(re.findall(ANY_TENSOR_CORE, ptx)),
        newest_tensor_core=len(re.findall(TENSOR_CORE[chip], ptx)),
        wide_accesses=len(re.findall(WIDE_ACCESS, ptx)),
    )


def source(launch: Launch) -> ASTSource:
    """Types and specialisations of the arguments, as the launcher derives them from values."""
    if not isinstance(launch.kernel, JITFunction):
        raise TypeError(f"{launch.kernel} is interpreted")
    signature: dict[str, str] = {}
    constants: dict[str, int | float | None] = {}
    divisible: dict[tuple[int, ...], list[list[str | int]]] = {}
    for i, parameter in enumerate(launch.kernel.params):
        value = launch.arguments[parameter.name]
        specialised = not parameter.do_not_specialize
        if isinstance(value, Tensor):
            signature[parameter.name] = "*" + DTYPE_NAMES[value.dtype]
            divides = value.storage_offset() * value.itemsize % 16 == 0
        elif (
            value is None
            or parameter.is_constexpr
            or (type(value) is int and value == 1 and specialised)
        ):
            signature[parameter.name] = "constexpr"
            constants[parameter.name] = value
            divides = False
        elif isinstance(value, float):
            signature[parameter.name] = "fp32"
            divides = False
        else:
            signature[parameter.name] = "i32" if value < 1 << 31 else "i64"
            divides = value % 16 == 0 and specialised
        if divides:
            divisible[i,] = [["tt.divisibility", 16]]
    return ASTSource(launch.kernel, signature, constants, divisible)


def resources(cubin: bytes) -> tuple[int, int]:
    """Registers of a thread, and bytes of local memory: what did not fit them."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = subprocess.run(
            [cuobjdump(), "--dump-resource-usage", file.name],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    usage = {name: int(n) for name, n in re.findall(r"(REG|STACK|LOCAL):(\d+)", text)}
    return usage["REG"], usage["STACK"] + usage["LOCAL"]


def cuobjdump() -> Path:
    """Triton's own."""
    return Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"


HEADER = (
    f"{'kernel':<18} {'shape':<24} {'chip':>6} {'registers':>9} {'spilled':>7} {'shared':>8} "
    f"{'tensor core':>11} {'16 B':>5}"
)


def line(c: Compiled) -> str:
    return (
        f"{c.kernel:<18} {c.shape:<24} {f'sm_{c.chip}':>6} {c.registers:>9} {c.spilled_bytes:>7} "
        f"{c.shared_bytes:>8} {c.tensor_core:>11} {c.wide_accesses:>5}"
    )


def run(shapes: Sequence[Shape], chips: Sequence[int]) -> int:
    """Prints a line for each, then JSON; exit status."""
    print(f"Triton {triton.__version__}, bfloat16\n{HEADER}")
    rows: list[dict[str, object]] = []
    n_faults = 0
    for compiled in compile_all(shapes, chips):
        faults = compiled.faults()
        n_faults += len(faults)
        rows.append({**asdict(compiled), "faults": faults})
        print(line(compiled) + "".join(f"  !! {fault}" for fault in faults), flush=True)
    print(f"{n_faults} faults")
    print(json.dumps({"triton": triton.__version__, "rows": rows}))
    return int(n_faults > 0)


def main(argv: Sequence[str]) -> int:
    """Exit status."""
    parser = Parser(prog="python -m bench.kernels", description=__doc__)
    parser.add_argument("--compile-only", action="store_true", required=True)
    chips = list(SHARED_LIMITS_BYTES)
    parser.add_argument("--chips", nargs="+", type=int, default=list(CHIPS), choices=chips)
    parser.add_argument(
        "--models",
        nargs="+",
        type=beginning,
        default=[""],
        metavar="NAME",
        help="beginnings of their names",
    )
    options = parser.parse_all(argv)
    if knobs.runtime.interpret:
        parser.error("TRITON_INTERPRET is set: kernels would be interpreted, not compiled")
    return run(shapes_named(options.models), options.chips)
