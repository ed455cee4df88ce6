"""The only configuration: typed, frozen, refused loudly.

A field's name is also its flag (`--max-model-len`), its TOML key (`max_model_len`), its
environment variable (`BATON_MAX_MODEL_LEN`) and its name in the log. Names are vLLM's where vLLM
has one. `launch/settings.py` fills `ServeConfig`; `resolve` turns it into what one worker needs.

Must not read files, argv, the environment or the machine, and must not import torch.
"""

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta
from msgspec.structs import replace

from common.ids import Role
from common.sections import HttpOptions, PoolTuning, Section
from common.spellings import cuda_number, parse_cpus
from common.values import (
    AdmissionPolicy,
    BlockSize,
    Disaggregate,
    DType,
    KVCacheDType,
    LogFormat,
    LogLevel,
    Milliseconds,
    Port,
    Quantization,
    ReasoningParser,
    Seed,
    Text,
    ToolCallParser,
    TransportName,
)


class Tuning(Section, frozen=True, kw_only=True):
    """The tuning of one pool, every value decided but the share of CPUs."""

    max_num_batched_tokens: int
    max_num_seqs: int
    chunk_tokens: int
    kv_cache_memory_bytes: int | None = None
    gpu_memory_utilization: float | None = None
    enable_prefix_caching: bool = True
    kv_host_memory_bytes: int = 0
    quantization: Quantization = "none"
    max_waiting: int = 256
    threads: int | None = None
    cpus: str | None = None
    devices: str = "auto"


class PrefillConfig(PoolTuning, frozen=True, kw_only=True):
    """The prefill pool. With no workers, the decode pool computes prompts too (colocated)."""

    workers: Annotated[int, Meta(ge=0, le=64, description="prefill workers; 0: colocated")] = 1


class DecodeConfig(PoolTuning, frozen=True, kw_only=True):
    """The decode pool."""

    workers: Annotated[
        int, Meta(ge=0, le=64, description="decode workers; 0: all of them join by themselves")
    ] = 1


class ServeConfig(HttpOptions, frozen=True, kw_only=True):
    """`baton serve`: the pools, the gateway and their supervision."""

    control_port: Annotated[
        Port, Meta(description="port where workers join; 0: any, shown at start")
    ] = 0
    chat_template: Annotated[
        Text | None, Meta(description="file of a jinja2 template [the model's own]")
    ] = None
    trust_request_chat_template: Annotated[
        bool, Meta(description="run chat templates that requests bring: whoever asks is trusted")
    ] = False
    enable_tokenizer_info_endpoint: Annotated[
        bool, Meta(description="tell the tokenizer and its chat template at /tokenizer_info")
    ] = False
    tool_call_parser: Annotated[
        ToolCallParser, Meta(description="how the model writes calls; auto: as its template tells")
    ] = "auto"
    reasoning_parser: Annotated[
        ReasoningParser, Meta(description="how the model writes thoughts; none: they are text")
    ] = "none"
    max_logprobs: Annotated[
        int, Meta(ge=0, le=1000, description="alternatives per token that a client may ask for")
    ] = 20
    max_waiting_requests: Annotated[
        int, Meta(ge=1, description="HTTP requests in progress; beyond it the answer is 429")
    ] = 1024
    disaggregate: Annotated[
        Disaggregate, Meta(description="prefill workers compute prompts; auto: where it pays")
    ] = "auto"
    slo_ttft: Annotated[
        Milliseconds | None,
        Meta(description="a request's first token is due after so many ms, unless it says itself"),
    ] = None
    slo_tpot: Annotated[
        Milliseconds | None,
        Meta(description="ms a token after the first, in the mean, unless the request says itself"),
    ] = None
    admission: Annotated[
        AdmissionPolicy,
        Meta(
            description="by what load requests that state targets are refused early: none; load, "
            "what there is; predicted, what there will be when their prompts are computed"
        ),
    ] = "predicted"
    recovery_seconds: Annotated[
        float,
        Meta(
            ge=1,
            le=86400,
            description="seconds that an answer in progress waits for a worker to go on with it",
        ),
    ] = 60.0
    seed: Annotated[
        Seed | None,
        Meta(description="source of the seeds of requests that give none"),
    ] = None
    prefill: PrefillConfig = PrefillConfig()
    decode: DecodeConfig = DecodeConfig()

    def __post_init__(self) -> None:
        """Raises ValueError, naming both fields, where two values contradict each other."""
        super().__post_init__()
        if self.prefill.kv_host_memory_bytes:
            raise ValueError(
                f"prefill.kv_host_memory_bytes ({self.prefill.kv_host_memory_bytes}) must be 0: "
                "only decode workers preempt; give it as decode.kv_host_memory_bytes"
            )
        pools = [tuning(self, role) for role in (Role.PREFILL, Role.DECODE)]
        if any(p.gpu_memory_utilization for p in pools) and not any(
            "cuda" in p.devices for p in pools
        ):
            raise ValueError(
                "--gpu-memory-utilization: only with --devices cuda:N; on CPUs "
                "--kv-cache-memory-bytes 2GiB says what pages take"
            )
        formats = {tuning(self, role).quantization for role in (Role.PREFILL, Role.DECODE)}
        if self.dtype == "float32" and self.prefill.workers and formats > {"int8"}:
            raise ValueError(
                "prefill.quantization and decode.quantization must be equal in float32 where one "
                "is int8: an answer must not depend on who computed it; or use --dtype bfloat16"
            )
        for role in (Role.PREFILL, Role.DECODE):
            pool = tuning(self, role)
            if pool.chunk_tokens > pool.max_num_batched_tokens:
                raise ValueError(
                    f"{role}.chunk_tokens ({pool.chunk_tokens}) must be <= "
                    f"{role}.max_num_batched_tokens ({pool.max_num_batched_tokens})"
                )
            if role is Role.DECODE and pool.max_num_seqs > pool.max_num_batched_tokens:
                raise ValueError(
                    f"{role}.max_num_seqs ({pool.max_num_seqs}) must be <= "
                    f"{role}.max_num_batched_tokens ({pool.max_num_batched_tokens})"
                )


class EngineConfig(Section, frozen=True, kw_only=True):
    """What one worker computes with: every value decided, `max_model_len` and `dtype` alone left
    to the model's own files."""

    role: Role
    name: str  # "prefill-0": of logs and metrics
    model: str  # a directory or a .gguf file
    served_model_name: str
    dtype: DType
    kv_cache_dtype: KVCacheDType
    block_size: BlockSize
    max_model_len: int | None
    max_num_batched_tokens: int
    max_num_seqs: int
    chunk_tokens: int
    kv_cache_memory_bytes: int  # 0: what the device has left
    gpu_memory_utilization: float  # of the device, what this worker may take
    gpu_sharers: int = 1  # of one copy of the weights on its GPU, this worker among them
    enable_prefix_caching: bool
    kv_host_memory_bytes: int
    quantization: Quantization
    max_waiting: int
    threads: int
    cpus: tuple[int, ...] | None  # None: wherever the system puts it
    device: str  # "auto", "cpu", "cuda:1"


class WorkerConfig(EngineConfig, frozen=True, kw_only=True):
    """Everything that one worker process needs. Travels to it as JSON."""

    join: str  # ZeroMQ address of the gateway's control socket
    control_host: str
    control_key_file: str | None
    transport: TransportName
    shutdown_timeout: float  # seconds
    request_log: str | None
    run_dir: str | None
    log_level: LogLevel
    log_format: LogFormat = "text"


KV_CACHE_BYTES = 2**30  # of a worker's pages in memory
GPU_MEMORY_UTILIZATION = 0.9  # of the workers on one device together
DEFAULTS = {  # where the operator sets nothing
    Role.PREFILL: Tuning(max_num_batched_tokens=512, max_num_seqs=64, chunk_tokens=512),
    Role.DECODE: Tuning(max_num_batched_tokens=512, max_num_seqs=64, chunk_tokens=128),
}


def tuning(config: ServeConfig, role: Role) -> Tuning:
    """The pool's own values, else those for both pools, else the role's defaults.

    A default gives way to a given value that it would contradict.
    """
    pool, default = _pool(config, role), DEFAULTS[role]
    given = PoolTuning(
        **{
            name: getattr(config, name) if getattr(pool, name) is None else getattr(pool, name)
            for name in PoolTuning.__struct_fields__
        }
    )
    n_seqs, chunk, caching = given.max_num_seqs, given.chunk_tokens, given.enable_prefix_caching
    budget = given.max_num_batched_tokens or max(
        default.max_num_batched_tokens, n_seqs or 1, chunk or 1
    )
    return Tuning(
        max_num_batched_tokens=budget,
        max_num_seqs=n_seqs or min(default.max_num_seqs, budget),
        chunk_tokens=chunk or min(default.chunk_tokens, budget),
        kv_cache_memory_bytes=given.kv_cache_memory_bytes,
        gpu_memory_utilization=given.gpu_memory_utilization,
        enable_prefix_caching=default.enable_prefix_caching if caching is None else caching,
        kv_host_memory_bytes=given.kv_host_memory_bytes or default.kv_host_memory_bytes,
        quantization=given.quantization or default.quantization,
        max_waiting=given.max_waiting or default.max_waiting,
        threads=given.threads,
        cpus=given.cpus,
        devices=given.devices or default.devices,
    )


def resolve(
    config: ServeConfig, role: Role, *, join: str, cpus: Sequence[int]
) -> tuple[WorkerConfig, ...]:
    """The workers of one pool on this machine, whose CPUs are `cpus`; see `resolve_worker`.

    They start together and have one run directory: those on one GPU share weights.
    """
    pool = _pool(config, role)
    share = len(cpus) // max(1, config.prefill.workers + config.decode.workers)
    workers = [
        resolve_worker(
            config, role, index=index, name=f"{role}-{index}", join=join, threads=max(1, share)
        )
        for index in range(pool.workers)
    ]
    return tuple(replace(worker, gpu_sharers=_sharers(config, worker)) for worker in workers)


def resolve_worker(
    config: ServeConfig, role: Role, *, index: int, name: str, join: str, threads: int
) -> WorkerConfig:
    """Worker `index` of its pool, with `threads` where the configuration does not say.

    `config.model` (a path by now) and `config.served_model_name` must be settled.
    """
    if config.model is None or config.served_model_name is None:
        raise ValueError("model and served_model_name must be settled before workers are")
    own = tuning(config, role)
    n_workers = _pool(config, role).workers
    cpus = _share(parse_cpus(own.cpus), index, n_workers) if own.cpus else None
    device = _device(config, role, index)
    on_gpu = cuda_number(device) is not None
    return WorkerConfig(
        role=role,
        name=name,
        model=config.model,
        served_model_name=config.served_model_name,
        dtype=config.dtype,
        kv_cache_dtype=config.kv_cache_dtype,
        block_size=config.block_size,
        max_model_len=config.max_model_len,
        max_num_batched_tokens=own.max_num_batched_tokens,
        max_num_seqs=own.max_num_seqs,
        chunk_tokens=own.chunk_tokens,
        kv_cache_memory_bytes=own.kv_cache_memory_bytes or (0 if on_gpu else KV_CACHE_BYTES),
        gpu_memory_utilization=own.gpu_memory_utilization or _even_share(config, device),
        enable_prefix_caching=own.enable_prefix_caching,
        kv_host_memory_bytes=own.kv_host_memory_bytes,
        quantization=own.quantization,
        max_waiting=own.max_waiting,
        threads=own.threads or (len(cpus) if cpus else threads),
        cpus=cpus,
        device=device,
        join=join,
        control_host=config.control_host,
        control_key_file=config.control_key_file,
        transport=config.transport,
        shutdown_timeout=config.shutdown_timeout,
        request_log=config.request_log,
        run_dir=config.run_dir,
        log_level=config.log_level,
        log_format=config.log_format,
    )


def _device(config: ServeConfig, role: Role, index: int) -> str:
    devices = tuning(config, role).devices.split(",")
    return devices[index % len(devices)]


def _even_share(config: ServeConfig, device: str) -> float:
    """Of what the workers that the configuration names take together of that device."""
    return GPU_MEMORY_UTILIZATION / max(1, len(_roles_on(config, device)))


def _sharers(config: ServeConfig, worker: WorkerConfig) -> int:
    """The workers on its GPU that compute with the same weights, itself among them; 1 on a CPU."""
    if cuda_number(worker.device) is None:
        return 1
    kept = [tuning(config, role).quantization for role in _roles_on(config, worker.device)]
    return kept.count(worker.quantization)


def _roles_on(config: ServeConfig, device: str) -> list[Role]:
    """Of the workers that the configuration puts on that device, each's."""
    return [
        role
        for role in (Role.PREFILL, Role.DECODE)
        for index in range(_pool(config, role).workers)
        if cuda_number(_device(config, role, index)) == cuda_number(device)
    ]


def _pool(config: ServeConfig, role: Role) -> PrefillConfig | DecodeConfig:
    match role:
        case Role.PREFILL:
            return config.prefill
        case Role.DECODE:
            return config.decode
        case Role.GATEWAY:
            raise ValueError("the gateway is not a pool")


def _share(cpus: tuple[int, ...], index: int, n_workers: int) -> tuple[int, ...]:
    """Worker `index`'s part; all of them where there are fewer CPUs than workers."""
    if len(cpus) < n_workers:
        return cpus
    first, last = (len(cpus) * i // n_workers for i in (index, index + 1))
    return cpus[first:last]
