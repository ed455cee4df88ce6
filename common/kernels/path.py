"""Names the numeric path of float32: workers with different names must not exchange pages.

Whoever changes a kernel's float32 results raises `PATH`.
"""

from hashlib import blake2b

import torch
from torch import Tensor

from common.kernels import torch_path
from common.kernels.paged import KEY_BLOCK

PATH = "torch-f32-1"


@torch.inference_mode()
def kernel_path() -> str:
    """Equal texts mean equal bits of a token's KV, wherever it is computed.

    Besides versions it holds a digest of results: the products' order of addition is a choice of
    the BLAS for the processor at hand, which no version tells.
    """
    capability = torch.backends.cpu.get_cpu_capability()
    return f"{PATH}/{torch.__version__}/{capability}/{_digest()}"


def _digest() -> str:
    """Of one result of each kind of arithmetic whose order or rounding is not the standard's."""
    x_TH = _numbers(16, 576)
    keys_GCD = _numbers(3, KEY_BLOCK, 64)
    scores_GLC = torch.bmm(x_TH.view(3, -1, 64), keys_GCD.transpose(1, 2))
    results = (
        torch_path.linear(x_TH, _numbers(960, 576), None),
        torch_path.linear(_numbers(16, 1536), _numbers(576, 1536), None),
        torch_path.rms_norm(x_TH, _numbers(576), 1e-5),
        torch_path.silu_mul(x_TH),
        scores_GLC,
        torch.bmm(scores_GLC, keys_GCD),
        scores_GLC.exp(),
        scores_GLC.sum(-1),
    )
    digest = blake2b(digest_size=4)
    for result in results:
        digest.update(result.numpy().tobytes())
    return digest.hexdigest()


def _numbers(*shape: int) -> Tensor:
    """Numbers in -1 .. 1 that no version of a random generator can change."""
    n = torch.Size(shape).numel()
    scattered = torch.arange(1, n + 1, dtype=torch.int64) * 2654435761 % (1 << 24)
    return (scattered.float() / (1 << 23) - 1).view(shape)
