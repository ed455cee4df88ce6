"""Memory of a GPU, divided among the workers on it: by what is configured and what each takes."""

import msgspec
import pytest

from common.config import DecodeConfig, PrefillConfig, ServeConfig, WorkerConfig, resolve
from common.engine.gpu_memory import CONTEXT_BYTES, Needs, check_shares, graphs_bytes, pages_bytes
from common.errors import SetupError
from common.ids import Role

GIB = 1 << 30
NEEDS = Needs(weights_bytes=16 * GIB, activations_bytes=GIB, graphs_bytes=GIB)


def workers(config: ServeConfig) -> list[WorkerConfig]:
    settled = msgspec.structs.replace(config, model="/m", served_model_name="m")
    return [
        worker
        for role in (Role.PREFILL, Role.DECODE)
        for worker in resolve(settled, role, join="", cpus=range(8))
    ]


def shares(config: ServeConfig) -> list[float]:
    return [worker.gpu_memory_utilization for worker in workers(config)]


def test_pages_have_what_the_rest_leaves() -> None:
    assert pages_bytes(80 * GIB, 0.5, NEEDS) == 40 * GIB - 18 * GIB - CONTEXT_BYTES


def test_what_leaves_nothing_is_refused_with_all_numbers() -> None:
    with pytest.raises(SetupError) as refused:
        pages_bytes(24 * GIB, 0.75, NEEDS)
    for number in ("0.75", 24 * GIB, 18 * GIB, 16 * GIB, GIB, CONTEXT_BYTES):
        assert str(number) in str(refused.value)


def test_graphs_share_the_memory_of_the_largest() -> None:
    assert graphs_bytes(1000, 64, 10) == 1000 + 2 * 64 * 10 * 4


@pytest.mark.parametrize(
    ("config", "wanted"),
    [
        (ServeConfig(devices="cuda:0"), [0.45, 0.45]),
        (ServeConfig(devices="cuda"), [0.45, 0.45]),
        (
            ServeConfig(
                prefill=PrefillConfig(devices="cuda:0"), decode=DecodeConfig(devices="cuda:1")
            ),
            [0.9, 0.9],
        ),
        (
            ServeConfig(
                prefill=PrefillConfig(workers=2, devices="cuda:0,cuda:1"),
                decode=DecodeConfig(devices="cuda:1"),
            ),
            [0.9, 0.45, 0.45],
        ),
        (
            ServeConfig(
                devices="cuda:0",
                gpu_memory_utilization=0.3,
                decode=DecodeConfig(gpu_memory_utilization=0.6),
            ),
            [0.3, 0.6],
        ),
    ],
)
def test_workers_on_a_device_share_it_evenly_or_as_they_are_told(
    config: ServeConfig, wanted: list[float]
) -> None:
    """By the configuration alone: who starts first makes no difference."""
    assert shares(config) == pytest.approx(wanted)
    check_shares(workers(config))
    check_shares(list(reversed(workers(config))))


def test_more_than_there_is_is_refused_with_who_takes_it() -> None:
    config = ServeConfig(
        devices="cuda:0",
        prefill=PrefillConfig(gpu_memory_utilization=0.4),
        decode=DecodeConfig(workers=2, gpu_memory_utilization=0.35),
    )
    message = "of prefill-0, decode-0, decode-1, all on cuda:0, is 1.1 together: 1 at most"
    with pytest.raises(SetupError, match=message):
        check_shares(workers(config))


def test_a_share_of_no_gpu_is_refused() -> None:
    with pytest.raises(ValueError, match="gpu_memory_utilization is nothing without devices"):
        ServeConfig(gpu_memory_utilization=0.9)


def test_pages_are_what_is_left_on_a_gpu_and_a_gibibyte_in_memory_unless_told() -> None:
    config = ServeConfig(
        prefill=PrefillConfig(devices="cuda:0"), decode=DecodeConfig(devices="cpu")
    )
    assert [w.kv_cache_memory_bytes for w in workers(config)] == [0, GIB]
    told = msgspec.structs.replace(config, kv_cache_memory_bytes=2 * GIB)
    assert [w.kv_cache_memory_bytes for w in workers(told)] == [2 * GIB, 2 * GIB]
