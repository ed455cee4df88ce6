"""Pages from bytes, and what is said when they are too few."""

import re

import pytest

from common.config import ServeConfig, WorkerConfig, resolve_worker
from common.engine.sizing import Sizes, check_memory, sizes
from common.errors import SetupError
from common.ids import Role
from common.model.spec import Family, ModelSpec, NoScaling

MODEL = ModelSpec(
    family=Family.LLAMA,
    hidden_size=576,
    n_layers=30,
    n_heads=9,
    n_kv_heads=3,
    head_dim=64,
    intermediate_size=1536,
    vocab_size=49152,
    rms_norm_eps=1e-5,
    rope_theta=1e5,
    rope_scaling=NoScaling(),
    max_position=8192,
    tied_embeddings=True,
    qkv_bias=False,
    o_bias=False,
    mlp_bias=False,
    qk_norm=False,
    sliding_window=None,
    native_dtype="bfloat16",
)
PAGE_BYTES = 368_640  # of 16 tokens in bfloat16


def config(role: Role = Role.DECODE, **options: object) -> WorkerConfig:
    serve = ServeConfig(model="m", served_model_name="m", **options)  # type: ignore[arg-type]
    return resolve_worker(serve, role, index=0, name="d", join="ipc://x", threads=1)


def test_a_pool_is_as_many_pages_as_fit_with_their_generations() -> None:
    size = sizes(config(kv_cache_memory_bytes=600 * (PAGE_BYTES + 8) + 1), MODEL)
    assert (size.n_pages, size.n_tokens, size.max_model_len) == (600, 9600, 8192)
    assert size.kv.page_bytes == PAGE_BYTES
    assert size.limits(config(max_num_seqs=7)).max_num_seqs == 7


def test_a_wider_dtype_has_half_the_pages() -> None:
    size = sizes(config(dtype="float32", kv_cache_memory_bytes=2**30, max_model_len=16), MODEL)
    assert size.n_pages == 2**30 // (2 * PAGE_BYTES + 8)
    assert size.max_model_len == 16


def test_one_sequence_of_the_full_length_must_fit() -> None:
    needed = 512 * (PAGE_BYTES + 8)
    assert sizes(config(kv_cache_memory_bytes=needed), MODEL).n_pages == 512
    message = (
        f"--kv-cache-memory-bytes {needed - 1} holds 8176 tokens of KV, and one sequence of "
        f"--max-model-len 8192 needs {needed} bytes"
    )
    with pytest.raises(SetupError, match=re.escape(message)):
        sizes(config(kv_cache_memory_bytes=needed - 1), MODEL)


def test_the_models_context_is_the_bound() -> None:
    with pytest.raises(SetupError, match=r"--max-model-len 8193 exceeds .* 8192 tokens"):
        sizes(config(max_model_len=8193), MODEL)


def test_host_memory_is_whole_pages_or_refused() -> None:
    size = sizes(config(kv_host_memory_bytes=3 * (PAGE_BYTES + 8) + 1), MODEL)
    assert (size.n_host_pages, size.n_host_tokens) == (3, 48)
    assert sizes(config(), MODEL).n_host_pages == 0
    prefill = config(role=Role.PREFILL, kv_host_memory_bytes=4096)  # nothing is preempted there
    assert sizes(prefill, MODEL).n_host_pages == 0
    with pytest.raises(SetupError, match="--kv-host-memory-bytes 4096 holds no page of 368640"):
        sizes(config(kv_host_memory_bytes=4096), MODEL)


def test_all_pools_of_a_machine_must_fit_it_together() -> None:
    one = sizes(config(kv_cache_memory_bytes=2**30), MODEL)
    spilling = sizes(config(kv_host_memory_bytes=2**30, kv_cache_memory_bytes=2**30), MODEL)
    check_memory([one, one], 2 * one.pool_bytes)
    message = (
        f"the pages of 2 worker(s) need {2 * one.pool_bytes / 2**30:.1f} GiB of memory and "
        f"{(2 * one.pool_bytes - 1) / 2**30:.1f} GiB are available: lower --kv-cache-memory-bytes"
    )
    with pytest.raises(SetupError, match=re.escape(message)):
        check_memory([one, one], 2 * one.pool_bytes - 1)
    assert spilling.pool_bytes + spilling.host_bytes > 1.99 * 2**30
    with pytest.raises(SetupError, match="or --kv-host-memory-bytes"):
        check_memory([one, spilling], 2 * one.pool_bytes)


def test_pages_of_a_gpu_take_none_of_the_machine_s_memory() -> None:
    def size_on(device: str) -> Sizes:
        options = config(
            devices=device,
            kv_cache_memory_bytes=2**30,
            kv_host_memory_bytes=2**20,
            max_model_len=16,
        )
        return sizes(options, MODEL)

    here, there = size_on("cpu"), size_on("cuda:0")
    assert here.memory_bytes == here.pool_bytes + here.host_bytes
    assert there.memory_bytes == there.host_bytes > 0
    check_memory([there], there.host_bytes)
