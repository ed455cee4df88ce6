"""How people write numbers of bytes, lists of CPUs and devices. Must not know what they are for."""

import re
from collections.abc import Iterable
from decimal import Decimal

_BYTES = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)")
_BYTE_UNITS = {
    "": 1,
    "b": 1,
    **{p: 10 ** (3 * n) for n, p in enumerate(("kb", "mb", "gb", "tb"), 1)},
    **{p: 2 ** (10 * n) for n, p in enumerate(("k", "m", "g", "t"), 1)},
    **{p: 2 ** (10 * n) for n, p in enumerate(("kib", "mib", "gib", "tib"), 1)},
}
_COUNT = re.compile(r"(\d+(?:\.\d+)?)([kmgKMG])")
_COUNT_UNITS = {
    **{p: 10 ** (3 * n) for n, p in enumerate("kmg", 1)},
    **{p: 2 ** (10 * n) for n, p in enumerate("KMG", 1)},
}


def parse_bytes(text: str) -> int:
    """A number of bytes from "4096", "512MiB", "1.5 GB" or "2G". Raises ValueError.

    KB, MB, GB and TB are powers of 1000; K, KiB and so on, as in vLLM's `G`, powers of 1024.
    """
    match = _BYTES.fullmatch(text.strip().lower())
    if match is None or match[2] not in _BYTE_UNITS:
        raise ValueError(f"{text!r} is not a number of bytes such as 512MiB or 2G")
    return int(Decimal(match[1]) * _BYTE_UNITS[match[2]])


def parse_count(text: str) -> int:
    """A whole number from "4096", "4k", "25.6k" or "4K". Raises ValueError.

    As in vLLM k, m and g are powers of 1000, and may follow a fraction; K, M and G are of 1024.
    """
    match = _COUNT.fullmatch(text.strip())
    if match is None:
        return int(text)
    number = Decimal(match[1]) * _COUNT_UNITS[match[2]]
    if number != int(number) or (match[2].isupper() and "." in match[1]):
        raise ValueError(f"{text!r} is not a whole number such as 4096, 25.6k or 4K")
    return int(number)


def parse_cpus(text: str) -> tuple[int, ...]:
    """CPU numbers, ascending, from "0-3,5". Raises ValueError on a range that runs backwards."""
    cpus: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        numbers = range(int(first), int(last or first) + 1)
        if not numbers:
            raise ValueError(f"the range {part} of CPUs runs backwards")
        cpus.update(numbers)
    return tuple(sorted(cpus))


INTERPRETER = "interpreter"
"""A device: Triton's, on the CPU."""

FP8_CAPABILITY = (8, 9)
"""CUDA's compute capability, from which on there is fp8."""


def cuda_number(device: str) -> int | None:
    """Of "cuda:1" 1, of "cuda" 0; None: it is no CUDA device."""
    kind, _, number = device.partition(":")
    return int(number or 0) if kind == "cuda" else None


def spell_cpus(cpus: Iterable[int]) -> str:
    """The inverse of `parse_cpus`: "0-3,5"."""
    runs: list[list[int]] = []
    for cpu in sorted(cpus):
        if runs and cpu == runs[-1][1] + 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
