"""Parts of the configuration: what is set together, and who is told it.

Each class adds its own to what the one before it has; `common/config.py` makes the whole. Must hold
declarations only.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

from common.values import (
    ApiKeys,
    BlockSize,
    Bytes,
    BytesOrNone,
    CertReqs,
    ContextTokens,
    Count,
    CpuList,
    DeviceList,
    DType,
    KVCacheDType,
    LogFormat,
    LogLevel,
    Port,
    Quantization,
    Share,
    Text,
    Texts,
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
        Bytes | None,
        Meta(
            description="memory of each worker's KV pages, such as 512MiB or 2G [1GiB; on a GPU "
            "what --gpu-memory-utilization leaves]"
        ),
    ] = None
    gpu_memory_utilization: Annotated[
        Share | None,
        Meta(
            description="share of a GPU's memory that each worker may take in all, unless "
            "--kv-cache-memory-bytes says what its pages take [0.9 over the workers on it]"
        ),
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
    kv_cache_dtype: Annotated[
        KVCacheDType,
        Meta(
            description="of KV pages; auto: --dtype, which the others but fp8 must be, too; "
            "fp8 (fp8_e4m3): with scales in the page, on GPUs"
        ),
    ] = "auto"
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
    control_key_file: Annotated[
        Text | None,
        Meta(description="file of a secret that all processes share; needed off loopback"),
    ] = None
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
    log_format: Annotated[
        LogFormat, Meta(description="of log lines: key=value, or one JSON object a line")
    ] = "text"


class HttpOptions(ProcessOptions, frozen=True, kw_only=True):
    """Where the HTTP API is, who may use it, and what its clients may cost."""

    host: Annotated[Text, Meta(description="address of the HTTP API")] = "127.0.0.1"
    port: Annotated[Port, Meta(description="port of the HTTP API; 0: any")] = 8000
    gateways: Annotated[int, Meta(ge=1, le=64, description="processes that share that port")] = 1
    api_key: Annotated[
        ApiKeys | None,
        Meta(description="keys, one of which requests must bear; safer in a file or the variable"),
    ] = None
    api_key_file: Annotated[
        Text | None, Meta(description="file of such keys, one a line; # begins a remark")
    ] = None
    max_streams_per_key: Annotated[
        Count | None,
        Meta(description="requests of one key in progress; beyond it the answer is 429"),
    ] = None
    ssl_certfile: Annotated[
        Text | None, Meta(description="certificate chain, PEM: the API is https then")
    ] = None
    ssl_keyfile: Annotated[
        Text | None, Meta(description="its private key, PEM [in --ssl-certfile]")
    ] = None
    ssl_ca_certs: Annotated[
        Text | None, Meta(description="authorities that clients' certificates are checked by, PEM")
    ] = None
    ssl_cert_reqs: Annotated[
        CertReqs, Meta(description="clients' certificates: 0 not asked for, 1 checked, 2 required")
    ] = 0
    allowed_origins: Annotated[
        Texts | None, Meta(description="origins whose pages may use the API; * is any [none]")
    ] = None
    allowed_methods: Annotated[Texts, Meta(description="methods that such pages may use")] = ("*",)
    allowed_headers: Annotated[Texts, Meta(description="headers that they may send")] = ("*",)
    allow_credentials: Annotated[
        bool, Meta(description="let them send cookies and certificates")
    ] = False
    ui: Annotated[bool, Meta(description="serve the live page at /ui/")] = True
    slow_reader_seconds: Annotated[
        float,
        Meta(ge=1, le=86400, description="a client that takes nothing for so long is cut off"),
    ] = 60.0

    otlp_traces_endpoint: Annotated[
        Text | None,
        Meta(description="URL of a collector of OpenTelemetry traces, by OTLP over HTTP [none]"),
    ] = None
    enable_log_requests: Annotated[
        bool, Meta(description="log each request's prompt and parameters; else no text of a client")
    ] = False
    max_log_len: Annotated[
        Count | None,
        Meta(description="characters, or token ids, of a prompt that are logged then [2000]"),
    ] = None

    def __post_init__(self) -> None:
        """Raises ValueError, naming both fields, where one needs another."""
        for name, needed in _NEEDS:
            if getattr(self, name) and not any(getattr(self, other) for other in needed):
                raise ValueError(f"{name} is nothing without {' or '.join(needed)}")


_NEEDS = (
    ("max_log_len", ("enable_log_requests",)),
    ("max_streams_per_key", ("api_key_file", "api_key")),
    ("ssl_keyfile", ("ssl_certfile",)),
    ("ssl_ca_certs", ("ssl_certfile",)),
    ("ssl_ca_certs", ("ssl_cert_reqs",)),
    ("ssl_cert_reqs", ("ssl_ca_certs",)),
    ("allow_credentials", ("allowed_origins",)),
)
