"""What kernels and packages write into files, read as facts."""

from pathlib import Path

import pytest

from launch.check import readings
from tests.unit.launch.check.builders import lay

CPUINFO_X86 = """processor\t: 0
model name\t: AMD EPYC 9B45
flags\t\t: fpu sse2 avx2 fma avx512f avx512_bf16
processor\t: 1
model name\t: another
flags\t\t: fpu
"""
CPUINFO_ARM = "processor\t: 0\nFeatures\t: fp asimd sve bf16\nCPU implementer\t: 0x41\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (CPUINFO_X86, ("AMD EPYC 9B45", ("avx2", "fma", "avx512f", "avx512_bf16"))),
        (CPUINFO_ARM, ("0x41", ("asimd", "bf16", "sve"))),
        ("", (None, ())),
    ],
)
def test_a_processor(text: str, expected: tuple[str, tuple[str, ...]], tmp_path: Path) -> None:
    assert readings.processor(lay({"proc/cpuinfo": text}, tmp_path)) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC\n"
            "GCC version:  gcc version 12.2.0\n",
            "550.54.15",
        ),
        (
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build\n",
            "580.65.06",
        ),
        ("", None),
    ],
)
def test_a_driver(text: str, expected: str | None, tmp_path: Path) -> None:
    assert readings.nvidia_driver(lay({"proc/driver/nvidia/version": text}, tmp_path)) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("__version__ = '2.13.0+cpu'\ncuda: Optional[str] = None\nhip = None\n", None),
        ("debug = False\ncuda: Optional[str] = '13.0'\n", "13.0"),
        ('cuda = "12.8"\n', "12.8"),
    ],
)
def test_what_torch_is_built_with(text: str, expected: str | None, tmp_path: Path) -> None:
    lay({"version.py": text}, tmp_path)
    assert readings.torch_cuda(tmp_path / "version.py") == expected


def test_the_rest_of_a_system(tmp_path: Path) -> None:
    assert readings.distribution(tmp_path) is None
    assert readings.total_memory_bytes(tmp_path) == 0
    lay(
        {
            "etc/os-release": 'ID=debian\nPRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\n',
            "proc/meminfo": "MemTotal:       24000000 kB\nMemFree: 1 kB\n",
        },
        tmp_path,
    )
    assert readings.distribution(tmp_path) == "Debian GNU/Linux 12 (bookworm)"
    assert readings.total_memory_bytes(tmp_path) == 24_000_000 * 1024
