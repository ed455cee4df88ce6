"""Where a worker computes: the CPU, a CUDA device, or Triton's interpreter in the place of one.

A process computes on one device. The interpreter runs the kernels of GPUs on the CPU, slowly: it is
for testing, where there is no GPU, what a worker on one does.
"""

from dataclasses import dataclass

import torch

from common.errors import SetupError
from common.kernels.cpu import native
from common.kernels.triton import choice
from common.spellings import FP8_CAPABILITY, INTERPRETER, cuda_number


@dataclass(frozen=True, slots=True)
class Device:
    """`number`: of the CUDA device; None: tensors lie in memory."""

    name: str
    number: int | None = None

    @property
    def torch(self) -> torch.device:
        return torch.device("cpu") if self.number is None else torch.device("cuda", self.number)


def open_device(name: str, dtype: str, *, fp8: bool = False) -> Device:
    """As `--devices` names it; "auto" is the CPU. Chooses the kernels of this process for good.

    Raises SetupError: it is not there, or cannot compute in that dtype, or with pages of fp8.
    """
    if name == INTERPRETER:
        return _open_interpreter(dtype)
    number = cuda_number(name)
    return Device("cpu") if number is None else _open_cuda(number, fp8=fp8)


def _open_cuda(number: int, *, fp8: bool) -> Device:
    n_devices = torch.cuda.device_count()
    if number >= n_devices:
        raise SetupError(
            f"--devices cuda:{number}: torch {torch.__version__} sees {n_devices} CUDA devices"
        )
    major, minor = torch.cuda.get_device_capability(number)
    if fp8 and (major, minor) < FP8_CAPABILITY:
        raise SetupError(
            f"--kv-cache-dtype fp8: cuda:{number} is of compute capability {major}.{minor}, and "
            "fp8 needs 8.9: leave it out, or use a newer GPU"
        )
    native.set_aside(f"cuda:{number} computes")
    torch.set_float32_matmul_precision("highest")  # law 3
    torch.cuda.set_device(number)
    return Device(f"cuda:{number}", number)


def _open_interpreter(dtype: str) -> Device:
    if dtype == "bfloat16":
        raise SetupError(
            f"--devices {INTERPRETER}: it is wrong in bfloat16: --dtype float32 or float16"
        )
    try:
        choice.interpret(wanted=True)
    except (ImportError, ValueError) as error:
        raise SetupError(f"--devices {INTERPRETER}: {error}") from error
    native.set_aside("Triton's interpreter computes")
    return Device(INTERPRETER)
