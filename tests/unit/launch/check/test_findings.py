"""What facts mean: each line of `baton check` that is not an ok, and that nothing else is said."""

import pytest
from msgspec.structs import replace

from common.config import DecodeConfig, PrefillConfig, ServeConfig
from launch.check.facts import Kernels, Machine, Refusal
from launch.check.findings import Level
from tests.unit.launch.check.builders import (
    GIB,
    GOOD,
    H200,
    NOT_FETCHED,
    found_in,
    machine,
    troubles,
)

STOP, WARN = Level.STOP, Level.WARN
ON_GPU = ServeConfig(decode=DecodeConfig(devices="cuda:0"))
NO_KERNELS = Kernels(isa="", why_not="not compiled", current=True)
CUDA_TORCH = replace(GOOD.software, torch="2.13.0", torch_cuda="13.0")


def test_where_all_is_well_each_topic_has_one_line() -> None:
    found = found_in(GOOD)
    assert [finding.topic for finding in found] == [
        *("system", "torch", "processor", "kernels", "cores"),
        *("memory", "gpu", "model", "disk", "files", "port"),
    ]
    assert {finding.level for finding in found} == {Level.OK}
    texts = {finding.topic: finding.text for finding in found}
    assert texts["kernels"] == "compiled, avx512bf16"
    assert "1 prefill and 1 decode workers with 4 threads" in texts["cores"]
    assert "KV pages take 2.0 GiB" in texts["memory"]


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (machine(software=replace(GOOD.software, system="Darwin")), [(STOP, "system")]),
        (
            machine(software=replace(GOOD.software, torch=None, torch_fits=False)),
            [(STOP, "torch")],
        ),
        (
            machine(software=replace(GOOD.software, torch="2.9.0", torch_fits=False)),
            [(WARN, "torch")],
        ),
        (machine(processor=replace(GOOD.processor, kernels=NO_KERNELS)), [(WARN, "kernels")]),
        (
            machine(
                processor=replace(
                    GOOD.processor, kernels=NO_KERNELS, architecture="aarch64", features=("asimd",)
                )
            ),
            [(WARN, "kernels")],
        ),
        (
            machine(
                processor=replace(
                    GOOD.processor, kernels=Kernels(isa="avx2", why_not="", current=False)
                )
            ),
            [(STOP, "kernels")],
        ),
        (machine(processor=replace(GOOD.processor, cpus=(7,))), [(WARN, "cores")]),
        (machine(processor=replace(GOOD.processor, quota_cpus=0.5)), [(WARN, "cores")]),
        (machine(processor=replace(GOOD.processor, quota_cpus=2.0)), []),
        (machine(memory=replace(GOOD.memory, available_bytes=2 * GIB)), [(WARN, "memory")]),
        (machine(memory=replace(GOOD.memory, huge_pages=False)), [(WARN, "memory")]),
        (machine(gpu=replace(H200, devices=(), trouble="CUDA error 999")), [(WARN, "gpu")]),
        (machine(gpu=H200), []),
        (machine(model=NOT_FETCHED), []),
        (
            machine(model=NOT_FETCHED, disk=replace(GOOD.disk, free_bytes=200_000_000)),
            [(STOP, "disk")],
        ),
        (machine(model=NOT_FETCHED, disk=replace(GOOD.disk, writable=False)), [(STOP, "disk")]),
        (
            machine(model=NOT_FETCHED, software=replace(GOOD.software, has_pip=False)),
            [(STOP, "model")],
        ),
        (machine(disk=replace(GOOD.disk, writable=False, free_bytes=0)), []),
        (machine(open_files=1024), [(WARN, "files")]),
    ],
)
def test_what_is_not_well_is_told(facts: Machine, expected: list[tuple[Level, str]]) -> None:
    assert troubles(facts) == expected


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        (GOOD, "--devices cuda:0: the driver (none is loaded) shows 0 GPUs"),
        (machine(gpu=H200), "torch 2.13.0+cpu is a build for CPUs"),
        (
            machine(gpu=replace(H200, cuda="12.4"), software=CUDA_TORCH),
            "driver 580.65.06 speaks CUDA 12.4, and torch is built with 13.0",
        ),
        (
            machine(gpu=H200, software=replace(CUDA_TORCH, cupy=None)),
            "CuPy is not installed, and pages on GPUs are moved with it",
        ),
        (
            machine(gpu=H200, software=replace(CUDA_TORCH, c_compiler=False)),
            "there is no C compiler, and Triton compiles with one what launches its kernels",
        ),
        (
            machine(gpu=H200, software=replace(CUDA_TORCH, python_headers=False)),
            "Python's headers (Python.h) are not here, and Triton compiles against them what "
            "launches its kernels",
        ),
    ],
)
def test_gpus_that_are_asked_for_and_cannot_be_used(facts: Machine, says: str) -> None:
    assert troubles(facts, config=ON_GPU) == [(STOP, "gpu")]
    assert says in [finding.text for finding in found_in(facts, config=ON_GPU)]


def test_a_gpu_that_is_asked_for_and_there() -> None:
    facts = machine(gpu=H200, software=CUDA_TORCH)
    assert troubles(facts, config=ON_GPU) == []
    (gpu,) = (one for one in found_in(facts, config=ON_GPU) if one.topic == "gpu")
    assert gpu.text == (
        "NVIDIA H200 (139.0 GiB, compute capability 9.0); driver 580.65.06, CUDA 13.0"
    )


def test_fp8_needs_a_gpu_that_has_it() -> None:
    config = replace(ON_GPU, kv_cache_dtype="fp8")
    facts = machine(gpu=H200, software=CUDA_TORCH)
    assert troubles(facts, config=config) == []
    (device,) = H200.devices
    old = replace(H200, devices=(replace(device, name="NVIDIA A100", capability="8.0"),))
    assert troubles(machine(gpu=old, software=CUDA_TORCH), config=ON_GPU) == []
    found = found_in(machine(gpu=old, software=CUDA_TORCH), config=config)
    (gpu,) = (one for one in found if one.topic == "gpu")
    assert (gpu.level, gpu.remedy) == (STOP, "leave it out, or use a newer GPU")
    assert "cuda:0 (NVIDIA A100) is of compute capability 8.0, and fp8 needs 8.9" in gpu.text


def test_what_the_server_would_refuse_stands_in_the_place_of_its_ok() -> None:
    taken = Refusal(topic="port", text="--host 127.0.0.1 --port 8000: Address already in use")
    found = [finding for finding in found_in(GOOD, taken) if finding.topic == "port"]
    assert [(finding.level, finding.text) for finding in found] == [(STOP, taken.text)]


def test_an_open_address_without_keys() -> None:
    assert troubles(GOOD, config=ServeConfig(host="0.0.0.0")) == [(WARN, "keys")]
    assert troubles(GOOD, config=ServeConfig(host="0.0.0.0", api_key_file="keys")) == []


def test_it_is_that_configuration_which_is_checked() -> None:
    many = ServeConfig(
        prefill=PrefillConfig(workers=3, kv_cache_memory_bytes=8 * GIB),
        decode=DecodeConfig(workers=2),
        max_waiting_requests=100_000,
    )
    assert troubles(GOOD, config=many) == [(WARN, "cores"), (WARN, "memory"), (WARN, "files")]


def test_whatever_stops_has_a_remedy() -> None:
    facts = machine(
        software=replace(GOOD.software, system="Darwin", torch=None, has_pip=False),
        processor=replace(
            GOOD.processor, kernels=Kernels(isa="", why_not="", current=False), cpus=(0,)
        ),
        memory=replace(GOOD.memory, available_bytes=0, huge_pages=False),
        model=NOT_FETCHED,
        disk=replace(GOOD.disk, writable=False, free_bytes=0),
        open_files=100,
    )
    bad = [one for one in found_in(facts, config=ON_GPU) if one.level is not Level.OK]
    assert len(bad) == 10
    assert all(finding.remedy for finding in bad)
