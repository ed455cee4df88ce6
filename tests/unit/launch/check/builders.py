"""Facts of a machine on which everything is as it should be, and changes to them."""

from pathlib import Path

from msgspec.structs import replace

from common.config import ServeConfig
from launch.check.facts import (
    CudaDevice,
    Disk,
    Facts,
    Gpu,
    Kernels,
    Machine,
    Memory,
    Model,
    Processor,
    Refusal,
    Software,
)
from launch.check.findings import Finding, Level, findings

GIB = 2**30
NO_GPU = Gpu(driver=None, cuda=None, trouble=None, devices=())
H200 = Gpu(
    driver="580.65.06",
    cuda="13.0",
    trouble=None,
    devices=(CudaDevice(name="NVIDIA H200", total_bytes=139 * GIB, capability="9.0"),),
)
GOOD = Machine(
    software=Software(
        system="Linux",
        release="6.1.0",
        distribution="Debian GNU/Linux 12 (bookworm)",
        python="3.11.7",
        baton="0.1.0",
        torch="2.13.0+cpu",
        torch_cuda=None,
        torch_wanted="<2.14,>=2.11",
        torch_fits=True,
        cupy="14.2.0",
        c_compiler=True,
        python_headers=True,
        has_pip=True,
    ),
    processor=Processor(
        name="AMD EPYC",
        architecture="x86_64",
        features=("avx2", "avx512f", "avx512_bf16"),
        kernels=Kernels(isa="avx512bf16", why_not="", current=True),
        cpus=(0, 1, 2, 3),
        quota_cpus=None,
    ),
    memory=Memory(
        total_bytes=24 * GIB, available_bytes=20 * GIB, shm_bytes=64 * 2**20, huge_pages=True
    ),
    gpu=NO_GPU,
    model=Model(
        name="m",
        path="/models/m.gguf",
        weights_bytes=98_000_000,
        context_tokens=8192,
        token_bytes=23040,
        fetch_bytes=None,
    ),
    disk=Disk(path="/cache", free_bytes=50 * GIB, writable=True),
    open_files=65536,
)
NOT_FETCHED = replace(
    GOOD.model,
    path=None,
    weights_bytes=None,
    context_tokens=None,
    token_bytes=None,
    fetch_bytes=92_900_000,
)


def machine(**parts: Facts | int) -> Machine:
    return replace(GOOD, **parts)


def troubles(
    facts: Machine, *refusals: Refusal, config: ServeConfig | None = None
) -> list[tuple[Level, str]]:
    """Levels and topics of what is not well."""
    found = found_in(facts, *refusals, config=config)
    return [(finding.level, finding.topic) for finding in found if finding.level is not Level.OK]


def found_in(
    facts: Machine, *refusals: Refusal, config: ServeConfig | None = None
) -> tuple[Finding, ...]:
    return findings(facts, config or ServeConfig(), refusals)


def lay(files: dict[str, str], root: Path) -> Path:
    """Kernel files below `root`."""
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root
