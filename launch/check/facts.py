"""What `baton check` found out about a machine. Must hold declarations only."""

import msgspec


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all parts. None: the system does not tell, or has no such thing."""


class Software(Facts, frozen=True):
    system: str  # "Linux"
    release: str  # of the kernel: "6.1.0-33-amd64"
    distribution: str | None  # "Debian GNU/Linux 12 (bookworm)"
    python: str
    baton: str
    torch: str | None  # version; None: not installed
    torch_cuda: str | None  # version of CUDA that torch was built with; None: a build for CPUs
    torch_wanted: str  # versions that are supported: ">=2.11,<2.14"
    torch_fits: bool
    cupy: str | None  # pools on GPUs need it
    c_compiler: bool  # with which Triton compiles what launches its kernels
    python_headers: bool  # against which it does
    has_pip: bool  # which fetches the default model


class Kernels(Facts, frozen=True):
    """The compiled ones."""

    isa: str  # instructions that they use: "avx512bf16"; "": they do not run here
    why_not: str  # they do not; "" where they do
    current: bool  # compiled from the sources beside them; True where there are none compiled


class Processor(Facts, frozen=True):
    name: str | None
    architecture: str  # "x86_64"
    features: tuple[str, ...]  # of those that kernels could use
    kernels: Kernels
    cpus: tuple[int, ...]  # that this process may run on
    quota_cpus: float | None  # of the cgroup: CPUs' time that it gets; None: all


class Memory(Facts, frozen=True):
    total_bytes: int
    available_bytes: int  # now, to this process: cgroup limits count
    shm_bytes: int | None  # of /dev/shm
    huge_pages: bool  # memory files can be had in them


class CudaDevice(Facts, frozen=True):
    name: str
    total_bytes: int
    capability: str  # "9.0"


class Gpu(Facts, frozen=True):
    driver: str | None  # "580.65.06"; None: no NVIDIA driver is loaded
    cuda: str | None  # the newest CUDA that the driver speaks: "13.0"
    trouble: str | None  # why the driver cannot be used though it is there
    devices: tuple[CudaDevice, ...]


class Model(Facts, frozen=True):
    """None where it is not on this machine yet, or something is wrong with it."""

    name: str
    path: str | None
    weights_bytes: int | None
    context_tokens: int | None
    token_bytes: int | None  # of KV
    fetch_bytes: int | None  # to be fetched at the first start; None: nothing, or nobody knows


class Disk(Facts, frozen=True):
    """Of the directory that models are fetched into."""

    path: str
    free_bytes: int
    writable: bool


class Machine(Facts, frozen=True):
    software: Software
    processor: Processor
    memory: Memory
    gpu: Gpu
    model: Model
    disk: Disk
    open_files: int  # that this process may have; raised to its hard limit


class Refusal(Facts, frozen=True):
    """What a server of that configuration would say before it ends."""

    topic: str
    text: str
