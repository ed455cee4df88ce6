"""Whether the compiled kernels are there and can run: built at installation, fit for the processor.

Must not fall back on anything: whoever calls a kernel has asked `available` before.
"""

try:
    import common.kernels.cpu._native as lib
except ModuleNotFoundError:
    _missing = "not compiled"
except ImportError as error:
    _missing = f"not loaded ({error})"
else:
    _missing = "" if lib.best_isa() else "the processor has no AVX2"


def available() -> bool:
    return not _missing


def set_aside(why: str) -> None:
    """They compute nothing in this process from now on: `why`, for people."""
    global _missing  # noqa: PLW0603 as the choice of instructions is, of the whole process
    _missing = why


def why_not() -> str:
    """Why they are not available; "" where they are."""
    return _missing
