"""Whether Triton computes with a tensor. Must not import it: machines without a GPU lack it."""

import torch
from torch import Tensor

_interpreted = False


def computes(x: Tensor) -> bool:
    """Whether the Triton kernels compute with such rows."""
    return computes_on(x.device)


def computes_on(device: torch.device) -> bool:
    """The same of all that lies there."""
    return device.type == "cuda" or (_interpreted and device.type == "cpu")


def interpret(*, wanted: bool) -> None:
    """Whether rows on the CPU go through Triton's interpreter from now on: to test kernels. The
    kernels for CPUs go before it, unless they are set aside.

    ImportError: there is no Triton. ValueError: it was imported without TRITON_INTERPRET=1, and
    its kernels are compiled for good.
    """
    global _interpreted  # noqa: PLW0603 as the choice of instructions is, of the whole process
    if wanted:
        from triton import knobs
        from triton.runtime.interpreter import GridExecutor

        if not knobs.runtime.interpret:
            raise ValueError("TRITON_INTERPRET=1 must be set before Triton is imported")
        # Tensors on the CPU are computed with in place. Copied onto itself afterwards, a pool would
        # lose what others write meanwhile; and a sparse one would be filled.
        GridExecutor._restore_args_dev = _restore_nothing  # pyright: ignore[reportAttributeAccessIssue] takes whatever it is given
    _interpreted = wanted


def _restore_nothing(*_: object) -> None:
    """In the place of a method of Triton's."""


def chip_of(device: torch.device) -> int:
    """Its compute capability: 90 for sm_90. What is interpreted has the configurations of 90."""
    if device.type != "cuda":
        return 90
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor
