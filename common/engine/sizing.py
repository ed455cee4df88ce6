"""How long sequences may be and how many pages a worker has: from its configuration and the model.

Must not import torch: it is asked before anything is loaded.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from common.config import EngineConfig
from common.errors import SetupError
from common.ids import Role
from common.kv.layout import DTYPE_BYTES, FP8, KVSpec, pages_for
from common.messages import Limits
from common.model.spec import ModelSpec
from common.sections import ModelOptions
from common.spellings import INTERPRETER, cuda_number
from common.values import KVCacheDType

_GENERATION_BYTES = 8  # of a page, beside its content


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What a worker's memory is divided into."""

    kv: KVSpec
    dtype: str  # of weights and rows
    max_model_len: int
    n_pages: int
    n_host_pages: int = 0  # for sequences that had to give way
    on_device: bool = False  # the pages are, and not in memory

    @property
    def pool_bytes(self) -> int:
        return self.n_pages * (self.kv.page_bytes + _GENERATION_BYTES)

    @property
    def host_bytes(self) -> int:
        return self.n_host_pages * (self.kv.page_bytes + _GENERATION_BYTES)

    @property
    def memory_bytes(self) -> int:
        """Of all its pages that are in memory."""
        return self.host_bytes + (0 if self.on_device else self.pool_bytes)

    @property
    def n_tokens(self) -> int:
        """Tokens whose KV fits."""
        return self.n_pages * self.kv.page_tokens

    @property
    def n_host_tokens(self) -> int:
        """Tokens whose KV fits into host memory, beside."""
        return self.n_host_pages * self.kv.page_tokens

    def limits(self, config: EngineConfig) -> Limits:
        return Limits(
            n_pages=self.n_pages,
            page_tokens=self.kv.page_tokens,
            max_model_len=self.max_model_len,
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            max_waiting=config.max_waiting,
        )


def kv_spec(model: ModelSpec, dtype: str, page_tokens: int) -> KVSpec:
    """What a token of that model leaves behind."""
    return KVSpec(
        n_layers=model.n_layers,
        n_kv_heads=model.n_kv_heads,
        head_dim=model.head_dim,
        page_tokens=page_tokens,
        dtype=dtype,
    )


def spec_of(config: EngineConfig | ModelOptions, model: ModelSpec) -> KVSpec:
    """What a token leaves behind in a worker of that configuration. Raises SetupError."""
    dtype, asked = dtype_of(config, model), config.kv_cache_dtype
    if is_fp8(asked):
        return kv_spec(model, FP8, config.block_size)
    if asked not in ("auto", dtype):
        raise SetupError(
            f"--kv-cache-dtype {asked}: pages are in --dtype, which is {dtype} here, or in fp8"
        )
    return kv_spec(model, dtype, config.block_size)


def dtype_of(config: EngineConfig | ModelOptions, model: ModelSpec) -> str:
    """What a worker of that configuration computes in. Raises SetupError."""
    dtype = model.native_dtype if config.dtype == "auto" else config.dtype
    if dtype not in DTYPE_BYTES:
        raise SetupError(f"dtype {dtype} is not one of {', '.join(DTYPE_BYTES)}: set --dtype")
    return dtype


def kv_name(kv: KVSpec, dtype: str) -> str:
    """What pages hold, to people and in hellos: their dtype, and in fp8 also the one that they are
    computed in."""
    return f"{kv.dtype}/{dtype}" if kv.is_fp8 else kv.dtype


def is_fp8(kv_cache_dtype: KVCacheDType) -> bool:
    return kv_cache_dtype in ("fp8", FP8)


def check_page_dtype(config: EngineConfig) -> None:
    """Raises SetupError where pages are to be fp8 and a CPU computes."""
    on_cpu = cuda_number(config.device) is None and config.device != INTERPRETER
    if on_cpu and is_fp8(config.kv_cache_dtype):
        raise SetupError(
            f"--kv-cache-dtype {config.kv_cache_dtype}: {config.name} computes on the CPU, where "
            "pages are in --dtype alone: leave it out, or use a GPU of compute capability 8.9 or "
            "above (--devices cuda:0)"
        )


def context_of(config: EngineConfig | ModelOptions, model: ModelSpec) -> int:
    """How long a sequence may be, in tokens. Raises SetupError."""
    max_model_len = config.max_model_len or model.context_tokens
    if max_model_len > model.context_tokens:
        raise SetupError(
            f"--max-model-len {max_model_len} exceeds the model's context of "
            f"{model.context_tokens} tokens"
        )
    return max_model_len


def sizes(config: EngineConfig, model: ModelSpec) -> Sizes:
    """Raises SetupError, with both numbers, where one sequence of the full length does not fit.

    There are no pages yet where a GPU's memory is still to be divided.
    """
    check_page_dtype(config)
    kv = spec_of(config, model)
    max_model_len = context_of(config, model)
    n_pages = config.kv_cache_memory_bytes // (kv.page_bytes + _GENERATION_BYTES)
    n_needed = pages_for(max_model_len, kv.page_tokens)
    if n_pages < n_needed and config.kv_cache_memory_bytes:
        needed_bytes = n_needed * (kv.page_bytes + _GENERATION_BYTES)
        raise SetupError(
            f"--kv-cache-memory-bytes {config.kv_cache_memory_bytes} holds "
            f"{n_pages * kv.page_tokens} tokens of KV, and one sequence of --max-model-len "
            f"{max_model_len} needs {needed_bytes} bytes: raise the one or lower the other"
        )
    host_bytes = config.kv_host_memory_bytes if config.role is Role.DECODE else 0
    n_host_pages = host_bytes // (kv.page_bytes + _GENERATION_BYTES)
    if host_bytes and not n_host_pages:
        raise SetupError(
            f"--kv-host-memory-bytes {host_bytes} holds no page of {kv.page_bytes} bytes: raise it"
        )
    return Sizes(
        kv=kv,
        dtype=dtype_of(config, model),
        max_model_len=max_model_len,
        n_pages=n_pages,
        n_host_pages=n_host_pages,
        on_device=cuda_number(config.device) is not None,
    )


def check_memory(workers: Sequence[Sizes], available_bytes: int) -> None:
    """Raises SetupError, with both numbers, where their pages do not fit one machine together."""
    n_bytes = sum(size.memory_bytes for size in workers)
    if n_bytes > available_bytes:
        flags = "--kv-cache-memory-bytes"
        if any(size.n_host_pages for size in workers):
            flags += " or --kv-host-memory-bytes"
        raise SetupError(
            f"the pages of {len(workers)} worker(s) need {n_bytes / 2**30:.1f} GiB of memory and "
            f"{available_bytes / 2**30:.1f} GiB are available: lower {flags}"
        )
