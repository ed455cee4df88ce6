"""The compiled module (`module.cpp`). Addresses are `Tensor.data_ptr()`; kernels free the GIL."""

def isa() -> str:
    """The instructions that kernels use: "avx512bf16", "avx512", "avx2"; "": none of these."""

def best_isa() -> str: ...
def set_isa(name: str) -> None:
    """Use lesser instructions than the processor has. ValueError: it has not these."""

def set_threads(n: int) -> None:
    """Compute threads, the caller's included. No kernel may be running."""

def n_threads() -> int: ...
