"""One call of a kernel as data, so that what is compiled ahead of time is what would run."""

from dataclasses import dataclass

from torch import Tensor
from triton.runtime import KernelInterface

Argument = Tensor | int | float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """`arguments` by the kernel's names; tensors are on the device that it runs on, and None is one
    that the kernel is compiled without. Those numbers that change from pass to pass are not
    specialised: nothing is compiled while requests wait.

    exact  no contraction of products and sums: the compiler must not choose roundings (law 3)
    """

    kernel: KernelInterface
    grid: tuple[int, ...]
    arguments: dict[str, Argument]
    num_warps: int
    num_stages: int = 1
    exact: bool = False

    @property
    def options(self) -> dict[str, int | bool]:
        """Of the compiler, by its names."""
        return {
            "num_warps": self.num_warps,
            "num_stages": self.num_stages,
            "enable_fp_fusion": not self.exact,
        }

    def run(self) -> None:
        if 0 not in self.grid:
            self.kernel[self.grid](**self.arguments, **self.options)


def power_of_2(n: int) -> int:
    """The least that is not below n."""
    return 1 << (n - 1).bit_length()
