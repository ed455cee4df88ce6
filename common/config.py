"""The only configuration: typed, frozen, refused loudly.

A field's name is also its flag (`--max-model-len`), its TOML key (`max_model_len`), its
environment variable (`BATON_MAX_MODEL_LEN`) and its name in the log. Names are vLLM's where vLLM
has one. `launch/settings.py` fills `ServeConfig`; `resolve` turns it into what one worker needs.

Must not read files, argv, the environment or the machine, and must not import torch.
"""

from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from common.ids import Role
from common.spellings import parse_cpus
from common.values import (
    AdmissionPolicy,
    BlockSize,
    Bytes,
    BytesOrNone,
    ContextTokens,
    Count,
    CpuList,
    DeviceList,
    Disaggregate,
    DType,
    LogLevel,
    Milliseconds,
    Port,
    Quantization,
    Seed,
    Text,
    ToolCallParser,
    TransportName,
)


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of every part of the configuration."""


class PoolTuning(Section, frozen=True, kw_only=True):
    """Every tuning flag, declared once; it exists for both pools and for each.

    None: not given here. A pool's own value wins over the one for both, that over the role's
    default (`DEFAULTS`).
    """

    max_num_batched_tokens: Annotated[
        Count | None, Meta(description="tokens in one pass, of all sequences together")
    ] = None
    max_num_seqs: Annotated[Count | None, Meta(description="sequences in one pass, at most")] = None
    chunk_tokens: Annotated[
        Count | None,
        Meta(description="tokens of one prompt (decode: of all beside answers) in one pass"),
    ] = None
    kv_cache_memory_bytes: Annotated[
        Bytes | None, Meta(description="memory of each worker's KV pages, such as 512MiB or 2G")
    ] = None
    enable_prefix_caching: Annotated[
        bool | None, Meta(description="keep finished pages, to be found by their tokens")
    ] = None
    kv_host_memory_bytes: Annotated[
        BytesOrNone | None,
        Meta(description="host memory of a decode worker for preempted sequences' pages; 0: none"),
    ] = None
    quantization: Annotated[
        Quantization | None,
        Meta(
            description="how weights are held: none; int8, per output channel; "
            "gguf, in the file's own groups (Q4_1, Q8_0)"
        ),
    ] = None
    max_waiting: Annotated[
        Count | None, Meta(description="requests that a worker queues before it refuses")
    ] = None
    threads: Annotated[
        Count | None, Meta(description="compute threads of each worker [its share of the CPUs]")
    ] = None
    cpus: Annotated[
        CpuList | None,
        Meta(description="CPUs that the pool's workers share"),
    ] = None
    devices: Annotated[
        DeviceList | None,
        Meta(
            description="devices that the pool's workers take in turn",
        ),
    ] = None


class Tuning(Section, frozen=True, kw_only=True):
    """The tuning of one pool, every value decided but the share of CPUs."""

    max_num_batched_tokens: int
    max_num_seqs: int
    chunk_tokens: int
    kv_cache_memory_bytes: int = 2**30
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


class ModelOptions(PoolTuning, frozen=True, kw_only=True):
    """What is served. Must be equal in the server and in the workers that join it."""

    model: Annotated[
        Text | None,
        Meta(
            description="directory, .gguf file or hub id [SmolLM2-135M-Instruct, fetched once]",
        ),
    ] = None
    served_model_name: Annotated[
        Text | None, Meta(description="the model's name in the API [from --model]")
    ] = None
    dtype: Annotated[DType, Meta(description="of weights and KV; auto: the model's own")] = "auto"
    max_model_len: Annotated[
        ContextTokens | None,
        Meta(description="tokens of prompt and output together [the model's own]"),
    ] = None
    block_size: Annotated[BlockSize, Meta(description="tokens of a KV page")] = 16


class ProcessOptions(ModelOptions, frozen=True, kw_only=True):
    """What every process is told of its surroundings."""

    transport: Annotated[
        TransportName, Meta(description="how pages travel; auto: the best both sides have")
    ] = "auto"
    control_host: Annotated[
        Text, Meta(description="address where this process's own sockets listen")
    ] = "127.0.0.1"
    shutdown_timeout: Annotated[
        float, Meta(ge=0, le=86400, description="seconds that streams in flight get to finish")
    ] = 30.0
    request_log: Annotated[
        Text | None,
        Meta(description="file for one JSON line per event of a request's life"),
    ] = None
    run_dir: Annotated[
        Text | None,
        Meta(description="directory of sockets and worker logs [a temporary one]"),
    ] = None
    cache_dir: Annotated[
        Text | None, Meta(description="where fetched models are kept [the user's]")
    ] = None
    log_level: Annotated[LogLevel, Meta(description="least severe line that is logged")] = "info"


class ServeConfig(ProcessOptions, frozen=True, kw_only=True):
    """`baton serve`: the pools, the gateway and their supervision."""

    host: Annotated[Text, Meta(description="address of the HTTP API")] = "127.0.0.1"
    port: Annotated[Port, Meta(description="port of the HTTP API; 0: any")] = 8000
    control_port: Annotated[
        Port, Meta(description="port where workers join; 0: any, shown at start")
    ] = 0
    chat_template: Annotated[
        Text | None, Meta(description="file of a jinja2 template [the model's own]")
    ] = None
    tool_call_parser: Annotated[
        ToolCallParser, Meta(description="how the model writes calls; auto: as its template tells")
    ] = "auto"
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
        if self.prefill.kv_host_memory_bytes:
            raise ValueError(
                f"prefill.kv_host_memory_bytes ({self.prefill.kv_host_memory_bytes}) must be 0: "
                "only decode workers preempt; give it as decode.kv_host_memory_bytes"
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
    block_size: BlockSize
    max_model_len: int | None
    max_num_batched_tokens: int
    max_num_seqs: int
    chunk_tokens: int
    kv_cache_memory_bytes: int
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
    transport: TransportName
    shutdown_timeout: float  # seconds
    request_log: str | None
    run_dir: str | None
    log_level: LogLevel


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
        kv_cache_memory_bytes=given.kv_cache_memory_bytes or default.kv_cache_memory_bytes,
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
    """The workers of one pool on this machine, whose CPUs are `cpus`; see `resolve_worker`."""
    pool = _pool(config, role)
    share = len(cpus) // max(1, config.prefill.workers + config.decode.workers)
    return tuple(
        resolve_worker(
            config, role, index=index, name=f"{role}-{index}", join=join, threads=max(1, share)
        )
        for index in range(pool.workers)
    )


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
    devices = own.devices.split(",")
    return WorkerConfig(
        role=role,
        name=name,
        model=config.model,
        served_model_name=config.served_model_name,
        dtype=config.dtype,
        block_size=config.block_size,
        max_model_len=config.max_model_len,
        max_num_batched_tokens=own.max_num_batched_tokens,
        max_num_seqs=own.max_num_seqs,
        chunk_tokens=own.chunk_tokens,
        kv_cache_memory_bytes=own.kv_cache_memory_bytes,
        enable_prefix_caching=own.enable_prefix_caching,
        kv_host_memory_bytes=own.kv_host_memory_bytes,
        quantization=own.quantization,
        max_waiting=own.max_waiting,
        threads=own.threads or (len(cpus) if cpus else threads),
        cpus=cpus,
        device=devices[index % len(devices)],
        join=join,
        control_host=config.control_host,
        transport=config.transport,
        shutdown_timeout=config.shutdown_timeout,
        request_log=config.request_log,
        run_dir=config.run_dir,
        log_level=config.log_level,
    )


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
