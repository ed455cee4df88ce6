"""Kernel files and version files as facts. Pure but for the reading: `root` holds `proc` and `etc`.

What is not there is None: kernels differ.
"""

import re
from contextlib import suppress
from pathlib import Path

ROOT = Path("/")
USEFUL_FEATURES = ("avx2", "fma", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512vbmi",
                   "avx512_bf16", "amx_bf16", "asimd", "bf16", "sve")  # fmt: skip
_NAMES = ("model name", "Model name", "Hardware", "CPU implementer")
_DRIVER = re.compile(r"^NVRM version:.*?\s(\d+\.\d[\d.]*)\s", re.MULTILINE)
_CUDA = re.compile(r"^cuda\b[^=]*=\s*['\"]([\d.]+)['\"]", re.MULTILINE)


def distribution(root: Path = ROOT) -> str | None:
    """What /etc/os-release calls this system."""
    for line in _text(root / "etc/os-release").splitlines():
        name, _, value = line.partition("=")
        if name == "PRETTY_NAME":
            return value.strip("\"'")
    return None


def processor(root: Path = ROOT) -> tuple[str | None, tuple[str, ...]]:
    """Its name, and which of the useful features it has."""
    table: dict[str, str] = {}
    for line in _text(root / "proc/cpuinfo").splitlines():
        name, colon, value = line.partition(":")
        if colon:
            table.setdefault(name.strip(), value.strip())
    has = set((table.get("flags") or table.get("Features") or "").split())
    name = next((table[key] for key in _NAMES if key in table), None)
    return name, tuple(feature for feature in USEFUL_FEATURES if feature in has)


def total_memory_bytes(root: Path = ROOT) -> int:
    """0: the kernel does not tell."""
    match = re.search(r"^MemTotal:\s+(\d+) kB", _text(root / "proc/meminfo"), re.MULTILINE)
    return int(match[1]) * 1024 if match else 0


def nvidia_driver(root: Path = ROOT) -> str | None:
    """Version of the NVIDIA driver that the kernel has loaded."""
    match = _DRIVER.search(_text(root / "proc/driver/nvidia/version") + "\n")
    return match[1] if match else None


def torch_cuda(version_file: Path) -> str | None:
    """The CUDA version in torch's `version.py`, which need not be imported for that."""
    match = _CUDA.search(_text(version_file))
    return match[1] if match else None


def _text(path: Path) -> str:
    with suppress(OSError, UnicodeDecodeError):
        return path.read_text()
    return ""
