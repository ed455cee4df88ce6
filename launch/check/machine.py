"""Asks the system what `baton check` wants to know. Judges nothing; must not import torch."""

import ctypes
import os
import platform
import shutil
import sysconfig
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from pathlib import Path

from packaging.requirements import Requirement

from common import huge_pages
from common.available import available_bytes, cpu_quota
from common.config import ServeConfig
from common.engine.sizing import spec_of
from common.errors import SetupError
from common.kernels.cpu import native, sources
from common.model.description import read_spec
from launch.check import readings
from launch.check.facts import (
    CudaDevice,
    Disk,
    Gpu,
    Kernels,
    Machine,
    Memory,
    Model,
    Processor,
    Software,
)
from launch.fetch import DEFAULT_MODEL, is_default, located, model_name
from launch.limits import open_files
from launch.settings import cache_dir

_CUPY = ("cupy-cuda13x", "cupy-cuda12x")
_C_COMPILERS = ("cc", "gcc", "clang")
_CAPABILITY_MAJOR, _CAPABILITY_MINOR = 75, 76  # CUdevice_attribute
_NAME_BYTES = 256


def machine(config: ServeConfig) -> Machine:
    """Of this machine, for a server of that configuration."""
    return Machine(
        software=software(),
        processor=processor(),
        memory=_memory(),
        gpu=gpu(),
        model=model(config),
        disk=_disk(cache_dir(config)),
        open_files=open_files(),
    )


def software() -> Software:
    torch = _version("torch")
    wanted = torch_requirement().specifier
    return Software(
        system=platform.system(),
        release=platform.release(),
        distribution=readings.distribution(),
        python=platform.python_version(),
        baton=version("baton-serving"),
        torch=torch,
        torch_cuda=_torch_cuda(),
        torch_wanted=str(wanted),
        torch_fits=torch is not None and wanted.contains(torch, prereleases=True),
        cupy=next((found for found in map(_version, _CUPY) if found is not None), None),
        c_compiler=any(shutil.which(name) for name in _C_COMPILERS),
        python_headers=_has_headers(),
        has_pip=find_spec("pip") is not None,
    )


def _has_headers() -> bool:
    """Where Triton looks for them."""
    scheme = sysconfig.get_default_scheme()
    scheme = "posix_prefix" if scheme == "posix_local" else scheme
    return (Path(sysconfig.get_paths(scheme)["include"]) / "Python.h").is_file()


def torch_requirement() -> Requirement:
    """As this distribution declares it."""
    declared = map(Requirement, requires("baton-serving") or ())
    return next(one for one in declared if one.name == "torch")


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _torch_cuda() -> str | None:
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    return readings.torch_cuda(Path(spec.origin).with_name("version.py"))


def processor() -> Processor:
    name, features = readings.processor()
    return Processor(
        name=name,
        architecture=platform.machine(),
        features=features,
        kernels=Kernels(
            isa=native.lib.best_isa() if native.available() else "",
            why_not=native.why_not(),
            current=_is_current(),
        ),
        cpus=tuple(sorted(os.sched_getaffinity(0))),
        quota_cpus=cpu_quota(),
    )


def _is_current() -> bool:
    """A module from before it told its sources is of others."""
    try:
        from common.kernels.cpu import _native
    except ImportError:
        return True
    return getattr(_native, "SOURCES", "") == sources.digest()


def _memory() -> Memory:
    shm_bytes = None
    with suppress(OSError):
        shm_bytes = shutil.disk_usage("/dev/shm").total
    return Memory(
        total_bytes=readings.total_memory_bytes(),
        available_bytes=available_bytes(),
        shm_bytes=shm_bytes,
        huge_pages=huge_pages.can_collapse(),
    )


def gpu() -> Gpu:
    """By the driver's own library, which needs neither CUDA nor torch."""
    driver = readings.nvidia_driver()
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        trouble = None if driver is None else str(error)
        return Gpu(driver=driver, cuda=None, trouble=trouble, devices=())
    number = ctypes.c_int()
    code = cuda.cuInit(0) or cuda.cuDriverGetVersion(ctypes.byref(number))
    if code:
        return Gpu(driver=driver, cuda=None, trouble=f"CUDA error {code}", devices=())
    newest = f"{number.value // 1000}.{number.value % 1000 // 10}"
    code = cuda.cuDeviceGetCount(ctypes.byref(number))
    devices = [_device(cuda, index) for index in range(0 if code else number.value)]
    return Gpu(driver=driver, cuda=newest, trouble=None, devices=tuple(devices))


def _device(cuda: ctypes.CDLL, index: int) -> CudaDevice:
    name = ctypes.create_string_buffer(_NAME_BYTES)
    cuda.cuDeviceGetName(name, _NAME_BYTES, index)
    total = ctypes.c_size_t()
    cuda.cuDeviceTotalMem_v2(ctypes.byref(total), index)
    capability: list[str] = []
    for attribute in (_CAPABILITY_MAJOR, _CAPABILITY_MINOR):
        number = ctypes.c_int()
        cuda.cuDeviceGetAttribute(ctypes.byref(number), attribute, index)
        capability.append(str(number.value))
    return CudaDevice(
        name=name.value.decode(errors="replace"),
        total_bytes=total.value,
        capability=".".join(capability),
    )


def model(config: ServeConfig) -> Model:
    """What of it is on this machine: nothing is fetched. What is wrong with it, others tell."""
    name = config.served_model_name or model_name(config.model)
    try:
        path = located(config.model, cache_dir=cache_dir(config))
        if path is None:
            fetch_bytes = DEFAULT_MODEL.wheel_bytes if is_default(config.model) else None
            return Model(name=name, path=None, weights_bytes=None, context_tokens=None,
                         token_bytes=None, fetch_bytes=fetch_bytes)  # fmt: skip
        spec = read_spec(path)
        kv = spec_of(config, spec)
    except SetupError:
        return Model(name=name, path=None, weights_bytes=None, context_tokens=None,
                     token_bytes=None, fetch_bytes=None)  # fmt: skip
    files = [path] if path.is_file() else list(path.glob("*.safetensors"))
    return Model(
        name=name,
        path=str(path),
        weights_bytes=sum(file.stat().st_size for file in files),
        context_tokens=spec.context_tokens,
        token_bytes=kv.page_bytes // kv.page_tokens,
        fetch_bytes=None,
    )


def _is_there(path: Path) -> bool:
    """And may be looked at."""
    try:
        return path.exists()
    except OSError:
        return False


def _disk(directory: Path) -> Disk:
    there = next(path for path in (directory, *directory.parents) if _is_there(path))
    return Disk(
        path=str(directory),
        free_bytes=shutil.disk_usage(there).free,
        writable=os.access(there, os.W_OK | os.X_OK),
    )
