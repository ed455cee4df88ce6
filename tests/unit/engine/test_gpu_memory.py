"""Memory of a GPU, divided among the workers on it: by what is configured and what each takes."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.config import (
    DecodeConfig,
    PrefillConfig,
    ServeConfig,
    WorkerConfig,
    resolve,
    resolve_worker,
)
from common.engine.gpu_memory import (
    CONTEXT_BYTES,
    Needs,
    check_shares,
    draws_bytes,
    graphs_bytes,
    pages_bytes,
    part_bytes,
)
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


def test_rows_have_room_for_counts_biases_and_masks_of_the_vocabulary() -> None:
    assert draws_bytes(64, 800) == 64 * (2 * 4 * 800 + 104)


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
    with pytest.raises(ValueError, match="--gpu-memory-utilization: only with --devices"):
        ServeConfig(gpu_memory_utilization=0.9)


def test_pages_are_what_is_left_on_a_gpu_and_a_gibibyte_in_memory_unless_told() -> None:
    config = ServeConfig(
        prefill=PrefillConfig(devices="cuda:0"), decode=DecodeConfig(devices="cpu")
    )
    assert [w.kv_cache_memory_bytes for w in workers(config)] == [0, GIB]
    told = msgspec.structs.replace(config, kv_cache_memory_bytes=2 * GIB)
    assert [w.kv_cache_memory_bytes for w in workers(told)] == [2 * GIB, 2 * GIB]


@pytest.mark.parametrize(
    ("config", "wanted"),
    [
        (ServeConfig(devices="cuda:0"), [2, 2]),
        (ServeConfig(devices="cuda:0", decode=DecodeConfig(workers=3, devices="cuda")), [4] * 4),
        (ServeConfig(), [1, 1]),  # on CPUs there is nothing to count
        (
            ServeConfig(
                prefill=PrefillConfig(workers=2, devices="cuda:0,cuda:1"),
                decode=DecodeConfig(devices="cuda:1"),
            ),
            [1, 2, 2],
        ),
        (
            ServeConfig(
                devices="cuda:0", dtype="bfloat16", prefill=PrefillConfig(quantization="int8")
            ),
            [1, 1],  # other values
        ),
    ],
)
def test_those_with_the_same_weights_on_a_gpu_share_them(
    config: ServeConfig, wanted: list[int]
) -> None:
    assert [worker.gpu_sharers for worker in workers(config)] == wanted


def test_a_worker_that_joins_by_itself_shares_with_nobody() -> None:
    """Nobody knows that another will come, nor that it meets this one."""
    config = ServeConfig(model="/m", served_model_name="m", devices="cuda:0")
    alone = resolve_worker(config, Role.DECODE, index=0, name="d", join="", threads=1)
    assert alone.gpu_sharers == 1


@given(st.data())
def test_no_order_of_starts_and_deaths_takes_more_than_there_is(data: st.DataObject) -> None:
    """Workers start, die and come back in any order; some cannot open the copy that is there, and
    have one of their own beside it. At each moment the device holds what they have taken."""
    device_bytes, weights = 80 * GIB, data.draw(st.integers(1, 12 * GIB), label="weights")
    n = data.draw(st.integers(2, 5), label="workers")
    cannot_open = data.draw(st.lists(st.booleans(), min_size=n, max_size=n), label="cannot open")
    running: dict[int, tuple[int, int]] = {}  # worker -> beside the common copy, of that one
    started = data.draw(st.lists(st.integers(0, n - 1), max_size=20), label="starts or dies")
    for worker in started:
        if running.pop(worker, None) is not None:
            continue
        is_there = any(common for _, common in running.values())
        own = weights if is_there and cannot_open[worker] else 0
        needs = Needs(
            weights_bytes=own + part_bytes(weights, n), activations_bytes=GIB * worker // 4
        )
        pages = pages_bytes(device_bytes, 1 / n, needs)
        taken = needs.all_bytes - part_bytes(weights, n) + pages
        running[worker] = (taken, 0 if own else weights)
        of_common = max(common for _, common in running.values())
        assert sum(beside for beside, _ in running.values()) + of_common <= device_bytes
