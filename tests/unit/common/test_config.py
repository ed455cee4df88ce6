import msgspec
import pytest

from common.config import (
    DecodeConfig,
    PrefillConfig,
    ServeConfig,
    WorkerConfig,
    resolve,
    resolve_worker,
    tuning,
)
from common.ids import Role


def workers(role: Role, config: ServeConfig, n_cpus: int = 8) -> tuple[WorkerConfig, ...]:
    settled = msgspec.structs.replace(config, model="/models/m", served_model_name="m")
    return resolve(settled, role, join="tcp://127.0.0.1:1", cpus=range(n_cpus))


def test_a_pools_own_value_wins_over_the_one_for_both_and_that_over_the_default() -> None:
    config = ServeConfig(max_num_seqs=7, prefill=PrefillConfig(max_num_seqs=3))
    assert tuning(config, Role.PREFILL).max_num_seqs == 3
    assert tuning(config, Role.DECODE).max_num_seqs == 7
    assert tuning(ServeConfig(), Role.DECODE).max_num_seqs == 64


def test_off_for_one_pool_is_not_taken_for_not_given() -> None:
    config = ServeConfig(
        enable_prefix_caching=True, decode=DecodeConfig(enable_prefix_caching=False)
    )
    assert tuning(config, Role.PREFILL).enable_prefix_caching
    assert not tuning(config, Role.DECODE).enable_prefix_caching


def test_a_default_gives_way_to_a_given_value_that_it_would_contradict() -> None:
    small = tuning(ServeConfig(max_num_batched_tokens=16), Role.DECODE)
    assert (small.chunk_tokens, small.max_num_seqs) == (16, 16)
    large = tuning(ServeConfig(chunk_tokens=4096), Role.PREFILL)
    assert (large.chunk_tokens, large.max_num_batched_tokens) == (4096, 4096)
    assert tuning(ServeConfig(max_num_seqs=900), Role.DECODE).max_num_batched_tokens == 900


def test_given_values_that_contradict_each_other_are_refused_with_both_named() -> None:
    with pytest.raises(
        ValueError,
        match=r"^prefill\.chunk_tokens \(64\) must be <= prefill\.max_num_batched_tokens \(32\)$",
    ):
        ServeConfig(chunk_tokens=64, prefill=PrefillConfig(max_num_batched_tokens=32))
    with pytest.raises(
        ValueError,
        match=r"^decode\.max_num_seqs \(64\) must be <= decode\.max_num_batched_tokens \(32\)$",
    ):
        ServeConfig(max_num_seqs=64, decode=DecodeConfig(max_num_batched_tokens=32))


def test_workers_share_the_machine_and_are_numbered() -> None:
    config = ServeConfig(prefill=PrefillConfig(workers=2), decode=DecodeConfig(workers=2))
    prefill = workers(Role.PREFILL, config)
    assert [worker.name for worker in prefill] == ["prefill-0", "prefill-1"]
    assert [worker.threads for worker in prefill] == [2, 2]
    assert [worker.threads for worker in workers(Role.DECODE, config, n_cpus=1)] == [1, 1]


def test_a_pools_cpus_are_cut_into_consecutive_parts() -> None:
    config = ServeConfig(decode=DecodeConfig(workers=2, cpus="4-7,1"))
    assert [worker.cpus for worker in workers(Role.DECODE, config)] == [(1, 4), (5, 6, 7)]
    assert [worker.threads for worker in workers(Role.DECODE, config)] == [2, 3]
    assert workers(Role.PREFILL, config)[0].cpus is None


def test_fewer_cpus_than_workers_are_shared_by_all() -> None:
    config = ServeConfig(prefill=PrefillConfig(workers=3, cpus="0,2", threads=1))
    assert [(worker.cpus, worker.threads) for worker in workers(Role.PREFILL, config)] == [
        ((0, 2), 1)
    ] * 3


def test_devices_are_taken_in_turn() -> None:
    config = ServeConfig(devices="cuda:0,cuda:1", decode=DecodeConfig(workers=3, devices="cpu"))
    assert [worker.device for worker in workers(Role.DECODE, config)] == ["cpu", "cpu", "cpu"]
    assert workers(Role.PREFILL, config)[0].device == "cuda:0"
    two = ServeConfig(prefill=PrefillConfig(workers=3, devices="cuda:0,cuda:1"))
    assert [worker.device for worker in workers(Role.PREFILL, two)] == [
        "cuda:0",
        "cuda:1",
        "cuda:0",
    ]


def test_no_prefill_workers_is_the_colocated_engine_with_the_whole_machine() -> None:
    config = ServeConfig(prefill=PrefillConfig(workers=0))
    assert workers(Role.PREFILL, config) == ()
    assert [worker.threads for worker in workers(Role.DECODE, config)] == [8]


def test_a_workers_configuration_survives_the_way_to_it() -> None:
    config = workers(Role.DECODE, ServeConfig(cpus="0-1"))[0]
    text = msgspec.json.encode(config)
    assert msgspec.json.decode(text, type=WorkerConfig) == config
    with pytest.raises(msgspec.ValidationError, match="unknown field `page_size`"):
        msgspec.json.decode(text.replace(b"block_size", b"page_size"), type=WorkerConfig)


def test_workers_are_not_resolved_before_the_model_is() -> None:
    with pytest.raises(ValueError, match="must be settled"):
        resolve_worker(ServeConfig(), Role.DECODE, index=0, name="d", join="tcp://a:1", threads=1)
    with pytest.raises(ValueError, match="not a pool"):
        tuning(ServeConfig(), Role.GATEWAY)


def test_host_memory_is_for_decode_workers() -> None:
    config = ServeConfig(kv_host_memory_bytes=2**20)
    assert tuning(config, Role.DECODE).kv_host_memory_bytes == 2**20
    off = ServeConfig(kv_host_memory_bytes=2**20, decode=DecodeConfig(kv_host_memory_bytes=0))
    assert tuning(off, Role.DECODE).kv_host_memory_bytes == 0
    with pytest.raises(ValueError, match=r"give it as decode\.kv_host_memory_bytes"):
        ServeConfig(prefill=PrefillConfig(kv_host_memory_bytes=2**20))


def test_in_float32_both_pools_keep_weights_alike() -> None:
    prefill, decode = PrefillConfig(quantization="int8"), DecodeConfig(quantization="gguf")
    with pytest.raises(ValueError, match=r"prefill\.quantization .* equal in float32"):
        ServeConfig(dtype="float32", prefill=prefill, decode=decode)
    ServeConfig(dtype="float32", quantization="int8")
    ServeConfig(dtype="float32", decode=decode)  # a file's own groups are what the file says
    ServeConfig(dtype="bfloat16", prefill=prefill, decode=decode)
    ServeConfig(dtype="float32", prefill=PrefillConfig(workers=0), decode=decode)
