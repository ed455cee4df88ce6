"""What a machine's facts mean for a server of one configuration. Pure: facts in, findings out."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum, auto

import msgspec
from msgspec.structs import replace

from common.available import within_quota
from common.config import ServeConfig, WorkerConfig, resolve
from common.engine.sizing import is_fp8
from common.ids import Role
from common.spellings import FP8_CAPABILITY, cuda_number, spell_cpus
from launch.check.facts import Gpu, Machine, Processor, Refusal, Software
from launch.checks import CPU_INDEX
from launch.security import is_loopback

WORKER_BYTES = 280_000_000  # of a worker, beside pages and weights
GATEWAY_BYTES = 100_000_000
OWN_FILES = 256  # that a server has open beside its clients' connections
FETCH_FACTOR = 3  # a wheel, what is taken out of it, and room for others
_COMPILE = "`make -B serve` where the sources are, or pip install --force-reinstall --no-deps ."


class Level(StrEnum):
    OK = auto()
    WARN = auto()  # it serves, though not as it could
    STOP = auto()  # it does not serve


class Finding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    level: Level
    topic: str
    text: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Case:
    """What is judged."""

    machine: Machine
    config: ServeConfig
    workers: Sequence[WorkerConfig]

    @property
    def n_cpus(self) -> float:
        """CPUs' time that there is."""
        processor = self.machine.processor
        quota = processor.quota_cpus
        return len(processor.cpus) if quota is None else min(quota, len(processor.cpus))


def findings(
    machine: Machine, config: ServeConfig, refusals: Sequence[Refusal]
) -> tuple[Finding, ...]:
    """In the order of topics; `refusals` are what the server itself would say."""
    settled = replace(config, model="", served_model_name="")
    cpus = within_quota(machine.processor.cpus, machine.processor.quota_cpus)
    workers = [
        worker
        for role in (Role.PREFILL, Role.DECODE)
        for worker in resolve(settled, role, join="", cpus=cpus)
    ]
    case = Case(machine, config, workers)
    refused = {refusal.topic for refusal in refusals}
    found = [
        finding
        for judge in _JUDGES
        for finding in judge(case)
        if finding.topic not in refused or finding.level is Level.STOP
    ]
    found += [stop(refusal.topic, refusal.text) for refusal in refusals]
    return tuple(found)


def ok(topic: str, text: str) -> Finding:
    return Finding(level=Level.OK, topic=topic, text=text)


def warn(topic: str, text: str, remedy: str = "") -> Finding:
    return Finding(level=Level.WARN, topic=topic, text=text, remedy=remedy)


def stop(topic: str, text: str, remedy: str = "") -> Finding:
    return Finding(level=Level.STOP, topic=topic, text=text, remedy=remedy)


# --- what computes -----------------------------------------------------------------------------


def _software(case: Case) -> Iterator[Finding]:
    software = case.machine.software
    if software.system != "Linux":
        yield stop(
            "system",
            f"{software.system} has no memory files that processes hand on, as pages need them",
            "run it on Linux: a virtual machine or a container is one",
        )
    else:
        where = f" ({software.distribution})" if software.distribution else ""
        yield ok("system", f"Linux {software.release}{where}, Python {software.python}")
    if software.torch is None:
        yield stop(
            "torch",
            "PyTorch is not installed, and workers compute with it",
            f"pip install 'torch{software.torch_wanted}' --index-url {CPU_INDEX} (for CPUs, "
            f"200 MB), or pip install 'torch{software.torch_wanted}' (for GPUs, gigabytes)",
        )
    elif not software.torch_fits:
        yield warn(
            "torch",
            f"torch {software.torch} is not of the versions that are tested, "
            f"{software.torch_wanted}",
            f"pip install 'torch{software.torch_wanted}'",
        )
    else:
        kind = f"CUDA {software.torch_cuda}" if software.torch_cuda else "a build for CPUs"
        yield ok("torch", f"{software.torch}, {kind}")


def _processor(case: Case) -> Iterator[Finding]:
    processor = case.machine.processor
    features = f" ({' '.join(processor.features)})" if processor.features else ""
    yield ok("processor", f"{processor.name or processor.architecture}{features}")
    yield from about_kernels(processor)


def about_kernels(processor: Processor) -> Iterator[Finding]:
    """What computes, if the CPU does."""
    kernels = processor.kernels
    if not kernels.current:
        yield stop(
            "kernels",
            "they were not compiled from the sources beside them: they may crash, or answer "
            "otherwise",
            _COMPILE,
        )
    elif kernels.isa:
        yield ok("kernels", f"compiled, {kernels.isa}")
    elif "avx2" in processor.features:
        yield warn(
            "kernels",
            f"{kernels.why_not}: torch computes, several times slower",
            f"apt-get install -y g++ python3-dev, then {_COMPILE}",
        )
    else:
        yield warn("kernels", "none for this processor (x86 with AVX2): torch computes")


def _cores(case: Case) -> Iterator[Finding]:
    processor = case.machine.processor
    threads = sum(worker.threads for worker in case.workers)
    n_prefill = sum(worker.role is Role.PREFILL for worker in case.workers)
    quota = processor.quota_cpus
    n_decode = len(case.workers) - n_prefill
    plural = "s" * (len(case.workers) > 1)
    text = (
        f"{len(processor.cpus)} ({spell_cpus(processor.cpus)})"
        f"{'' if quota is None else f', of which the cgroup gets the time of {quota:g}'}; "
        f"{n_prefill} prefill and {n_decode} decode worker{plural} with "
        f"{threads} thread{'s' * (threads != 1)} in all"
    )
    if threads > case.n_cpus:
        yield warn(
            "cores",
            f"{text}: they wait for each other",
            "fewer --prefill and --decode workers, or --threads of each, or more CPUs",
        )
    else:
        yield ok("cores", text)


def _memory(case: Case) -> Iterator[Finding]:
    memory, model = case.machine.memory, case.machine.model
    here = [w for w in case.workers if cuda_number(w.device) is None]
    pages = sum(w.kv_cache_memory_bytes for w in here)
    pages += sum(w.kv_host_memory_bytes for w in case.workers)
    needed = pages + (model.weights_bytes or 0) + GATEWAY_BYTES + WORKER_BYTES * len(case.workers)
    text = (
        f"{gib(memory.available_bytes)} available of {gib(memory.total_bytes)}; KV pages take "
        f"{gib(pages)}, all of it about {gib(needed)}"
    )
    if needed > memory.available_bytes:
        yield warn(
            "memory",
            f"{text}: some process may be killed for it",
            "lower --kv-cache-memory-bytes, or start fewer workers",
        )
    else:
        yield ok("memory", text)
    if not memory.huge_pages:
        yield warn(
            "memory",
            "memory files get no huge pages here: a core reads pages at two thirds of the speed",
            f"Linux 6.1 or newer with transparent huge pages (this is "
            f"{case.machine.software.release})",
        )


def _gpu(case: Case) -> Iterator[Finding]:
    gpu = case.machine.gpu
    wanted = {n for w in case.workers if (n := cuda_number(w.device)) is not None}
    names = ", ".join(
        f"{device.name} ({gib(device.total_bytes)}, compute capability {device.capability})"
        for device in gpu.devices
    )
    if wanted:
        lacking = list(lacking_for(max(wanted), gpu, case.machine.software))
        if is_fp8(case.config.kv_cache_dtype):
            lacking += without_fp8(wanted, gpu)
        yield from lacking or [ok("gpu", f"{names}; driver {gpu.driver}, CUDA {gpu.cuda}")]
    elif gpu.trouble:
        yield warn("gpu", f"driver {gpu.driver} cannot be used ({gpu.trouble})")
    elif names:
        yield ok("gpu", f"{names}; no worker is to use one (--devices cuda)")
    else:
        yield ok("gpu", "none; workers compute on the CPU")


def lacking_for(number: int, gpu: Gpu, software: Software) -> Iterator[Finding]:
    """What workers on CUDA devices up to that one lack."""
    if number >= len(gpu.devices):
        why = f": {gpu.trouble}" if gpu.trouble else ""
        yield stop(
            "gpu",
            f"--devices cuda:{number}: the driver ({gpu.driver or 'none is loaded'}{why}) shows "
            f"{len(gpu.devices)} GPU{'s' * (len(gpu.devices) != 1)}",
            "install NVIDIA's driver, or name devices that there are",
        )
        return
    if software.torch is not None and software.torch_cuda is None:
        yield stop(
            "gpu",
            f"torch {software.torch} is a build for CPUs",
            f"pip install --force-reinstall 'torch{software.torch_wanted}' (gigabytes)",
        )
    elif _major(gpu.cuda) < _major(software.torch_cuda):
        yield stop(
            "gpu",
            f"driver {gpu.driver} speaks CUDA {gpu.cuda}, and torch is built with "
            f"{software.torch_cuda}",
            "a newer driver, or a torch that is built with an older CUDA",
        )
    if software.cupy is None:
        extra = "cuda12" if _major(software.torch_cuda) == 12 else "cuda"
        yield stop(
            "gpu",
            "CuPy is not installed, and pages on GPUs are moved with it",
            f"pip install 'baton-serving[{extra}]'",
        )
    if not software.c_compiler:
        yield stop(
            "gpu",
            "there is no C compiler, and Triton compiles with one what launches its kernels",
            "apt-get install -y gcc libc6-dev",
        )
    if not software.python_headers:
        yield stop(
            "gpu",
            "Python's headers (Python.h) are not here, and Triton compiles against them what "
            "launches its kernels",
            "apt-get install -y python3-dev",
        )


def without_fp8(numbers: Iterable[int], gpu: Gpu) -> Iterator[Finding]:
    """Those of the CUDA devices, as far as they are there, that know no fp8."""
    for number, device in enumerate(gpu.devices):
        capability = tuple(map(int, device.capability.split(".")))
        if number in numbers and capability < FP8_CAPABILITY:
            yield stop(
                "gpu",
                f"--kv-cache-dtype fp8: cuda:{number} ({device.name}) is of compute capability "
                f"{device.capability}, and fp8 needs 8.9",
                "leave it out, or use a newer GPU",
            )


# --- what it needs -----------------------------------------------------------------------------


def _model(case: Case) -> Iterator[Finding]:
    model, disk = case.machine.model, case.machine.disk
    if model.path is not None:
        yield ok(
            "model",
            f"{model.name}: {mb(model.weights_bytes or 0)}, context of {model.context_tokens:,} "
            f"tokens, {model.token_bytes:,} bytes of KV a token ({model.path})",
        )
        return
    if not disk.writable:
        yield stop("disk", f"{disk.path} cannot be written to", "--cache-dir DIRECTORY")
    if model.fetch_bytes is None:
        yield warn(
            "model",
            f"{model.name}: not on this machine, and the hub is not asked here: whether it has it, "
            "and of a family that is served, shows at the first start, which fetches it",
            "--model PATH, of one that is here, needs no hub",
        )
    elif disk.free_bytes < FETCH_FACTOR * model.fetch_bytes:
        yield stop(
            "disk",
            f"{disk.path} has {mb(disk.free_bytes)} free, and fetching {model.name} takes "
            f"{mb(FETCH_FACTOR * model.fetch_bytes)}",
            "--cache-dir DIRECTORY, where there is more",
        )
    elif not case.machine.software.has_pip:
        yield stop(
            "model",
            f"{model.name}: not here yet, and this Python has no pip to fetch it",
            "python -m ensurepip, or --model PATH",
        )
    else:
        yield ok(
            "model",
            f"{model.name}: not here yet; {mb(model.fetch_bytes)} are fetched at the first start, "
            "or now by `baton fetch`",
        )


def _disk(case: Case) -> Iterator[Finding]:
    disk, shm_bytes = case.machine.disk, case.machine.memory.shm_bytes
    shm = "" if shm_bytes is None else f"; /dev/shm ({mb(shm_bytes)}) is not used"
    yield ok("disk", f"{gib(disk.free_bytes)} free for models in {disk.path}{shm}")


def _files(case: Case) -> Iterator[Finding]:
    most, needed = case.machine.open_files, case.config.max_waiting_requests + OWN_FILES
    text = f"{most} may be open"
    if most < needed:
        yield warn(
            "files",
            f"{text}, and --max-waiting-requests {case.config.max_waiting_requests} may need "
            f"{needed}",
            f"ulimit -Hn {needed} (LimitNOFILE= in systemd, --ulimit nofile= in Docker), or fewer "
            "requests",
        )
    else:
        yield ok("files", text)


def _port(case: Case) -> Iterator[Finding]:
    config = case.config
    yield ok("port", f"{config.host}:{config.port} is free")
    if not (config.api_key or config.api_key_file or is_loopback(config.host)):
        yield warn(
            "keys",
            f"--host {config.host}: whoever reaches that address may use this server",
            "--api-key-file FILE asks for keys",
        )


_JUDGES: tuple[Callable[[Case], Iterator[Finding]], ...] = (
    _software,
    _processor,
    _cores,
    _memory,
    _gpu,
    _model,
    _disk,
    _files,
    _port,
)


def gib(n_bytes: int) -> str:
    return f"{n_bytes / 2**30:.1f} GiB"


def mb(n_bytes: int) -> str:
    return f"{n_bytes / 1e6:,.0f} MB"


def _major(version: str | None) -> int:
    return int((version or "0").partition(".")[0])
