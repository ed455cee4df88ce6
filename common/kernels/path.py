"""Names the numeric path of float32: workers with different names must not exchange pages.

Whoever changes a kernel's float32 results raises `PATH`.
"""

from hashlib import blake2b
from importlib.metadata import version

import numpy as np
import torch
from torch import Tensor

from common.kernels import ops
from common.kernels.attention_plan import Sequences
from common.kernels.attention_rows import AttentionRows
from common.kernels.cpu import native
from common.kernels.matrix import packs, prepare
from common.kernels.paged import KEY_BLOCK, KVLayer, PageGeometry, Scratch
from common.kernels.triton import choice

PATH = "f32-2"
CPU = torch.device("cpu")


def kernels(dtype: torch.dtype, device: torch.device = CPU) -> str:
    """Which kernels compute in that dtype, for people: "avx512bf16", "triton 3.9.0 (sm_90)", or
    "torch (why)"."""
    if choice.computes_on(device):
        return _of_triton(device)
    if packs(dtype):
        return native.lib.isa()
    return f"torch ({native.why_not() or f'the others have no {dtype}'})"


@torch.inference_mode()
def kernel_path(device: torch.device = CPU) -> str:
    """Equal texts mean equal bits of a token's KV, wherever it is computed.

    Besides versions it holds a digest of results: the order of addition is a choice of torch's
    BLAS for the processor or GPU at hand, which no version tells.
    """
    names = [PATH, _of_triton(device) if choice.computes_on(device) else _of_cpu()]
    names += [torch.__version__, torch.backends.cpu.get_cpu_capability()]
    if not (device == CPU and choice.computes_on(device)):  # interpreted: it would take a minute
        with device:
            names.append(_digest())
    return "/".join(names)


def _of_cpu() -> str:
    return native.lib.isa() if native.available() else "torch"


def _of_triton(device: torch.device) -> str:
    where = f"sm_{choice.chip_of(device)}" if device.type == "cuda" else "interpreted"
    return f"triton {version('triton')} ({where})"


def _digest() -> str:
    """Of results of each kind of arithmetic."""
    x_TH = _numbers(4, 576)
    gate_up = prepare(_numbers(192, 576), gated=True)
    results = [
        ops.linear(x_TH, prepare(_numbers(960, 576)), None),
        ops.linear(_numbers(4, 1536), prepare(_numbers(576, 1536)), _numbers(576)),
        ops.rms_norm(x_TH, _numbers(576), 1e-5),
        ops.swiglu(x_TH, gate_up, None),
        *_attended(),
    ]
    digest = blake2b(digest_size=4)
    for result in results:
        digest.update(result.cpu().numpy().tobytes())
    return digest.hexdigest()


def _attended() -> tuple[Tensor, Tensor]:
    """A chunk of a prompt, rotated, written and attended from, and its last token again."""
    n_tokens, n_rows = 3 * KEY_BLOCK, KEY_BLOCK + 4
    geometry = PageGeometry(page_tokens=16, n_kv_heads=3, head_dim=64, stride=2 * 3 * 16 * 64)
    n_pages = n_tokens // geometry.page_tokens
    layer = KVLayer.of(_numbers(n_pages * geometry.stride), geometry, 0, Scratch())
    positions_T = torch.arange(n_tokens - n_rows, n_tokens)
    q_TND, k_TGD, v_TGD = _numbers(n_rows, 15, 64).split((9, 3, 3), dim=1)
    q_TND = ops.rope_and_write(
        q_TND, k_TGD, v_TGD, _numbers(n_tokens, 64), positions_T, positions_T, layer
    )

    def attend(n: int) -> Tensor:
        sequence = Sequences(
            start_B1=np.array([0, n], np.int32),
            len_B=np.array([n_tokens], np.int32),
            tables_BM=np.arange(n_pages, dtype=np.int32)[None],
        )
        rows = AttentionRows(positions_T[-n:], positions_T[-n:], sequence, geometry)
        return ops.attend(q_TND[-n:], layer, rows)

    return attend(n_rows), attend(1)


def _numbers(*shape: int) -> Tensor:
    """Numbers in -1 .. 1 that no version of a random generator can change."""
    n = torch.Size(shape).numel()
    scattered = torch.arange(1, n + 1, dtype=torch.int64) * 2654435761 % (1 << 24)
    return (scattered.float() / (1 << 23) - 1).view(shape)
