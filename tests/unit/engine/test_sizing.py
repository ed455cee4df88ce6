"""Pages from bytes, and what is said when they are too few."""

import re

import pytest

from common.config import ServeConfig, WorkerConfig, resolve_worker
from common.engine.sizing import Sizes, check_memory, kv_name, sizes
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


@pytest.mark.parametrize("asked", ["fp8", "fp8_e4m3"])
def test_pages_of_fp8_take_little_more_than_half(asked: str) -> None:
    """A byte a number and, for 64 of them, 4 of scale; a page is whole 4096s."""
    options = {"devices": "cuda:0", "kv_cache_memory_bytes": 2**30, "max_model_len": 16}
    wide, narrow = (
        sizes(config(kv_cache_dtype=dtype, **options), MODEL) for dtype in ("auto", asked)
    )
    assert (narrow.dtype, narrow.kv.dtype) == ("bfloat16", "fp8_e4m3")
    assert narrow.kv.token_bytes == 30 * 2 * 3 * (64 + 4)
    assert narrow.kv.page_bytes == 48 * 4096 == PAGE_BYTES * 8 // 15
    assert narrow.n_pages == 2**30 // (48 * 4096 + 8)
    assert narrow.n_tokens > 1.87 * wide.n_tokens
    assert kv_name(narrow.kv, narrow.dtype) == "fp8_e4m3/bfloat16"
    assert narrow.kv.describe() == f"{wide.kv.describe()},scales=float32"


@pytest.mark.parametrize("device", ["auto", "cpu"])
def test_fp8_on_a_cpu_is_refused_with_the_remedy(device: str) -> None:
    message = "--kv-cache-dtype fp8: d computes on the CPU.*8.9 or above .--devices cuda:0."
    with pytest.raises(SetupError, match=message):
        sizes(config(devices=device, kv_cache_dtype="fp8"), MODEL)
    assert sizes(config(devices="interpreter", kv_cache_dtype="fp8"), MODEL).kv.is_fp8


def test_pages_are_in_the_dtype_that_is_computed_in_or_in_fp8() -> None:
    assert sizes(config(kv_cache_dtype="bfloat16"), MODEL) == sizes(config(), MODEL)
    with pytest.raises(
        SetupError, match=r"--kv-cache-dtype bfloat16: .* is float32 here, or in fp8"
    ):
        sizes(config(kv_cache_dtype="bfloat16", dtype="float32"), MODEL)


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
