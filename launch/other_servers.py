"""What to say of a flag that vLLM or SGLang has and `baton serve` has not."""

import re

_NOT_YET = "not supported yet"
_ALWAYS = "not needed: it is always so"
_ANYWAY = "not needed: it is so anyway"
_JOIN = "leave it out: workers of other hosts join a server, baton prefill --join and decode --join"
_REPLICAS = "not supported yet; more workers (--prefill N, --decode M) are replicas"
_SWAP = "use --decode.kv-host-memory-bytes NGiB (a number alone would be bytes)"
_ONE_BACKEND = "not needed: there is one backend, and requests say the form"
_OWN_KERNELS = "not needed: kernels are Baton's own, chosen by the machine"
_NO_CODE = "not supported: no code of others is run in the server"
_NO_IMAGES = "not supported: models take text alone"
_ONE_TOKENIZER = "leave it out: the model's own tokenizer is read, by one library"
_COUNTED = "not needed: /metrics and /status tell it"
_AHEAD = "not needed: whether steps are planned ahead is the worker's affair"
_LONG_PROMPTS = "use --chunk-tokens: what a pass takes of one prompt"
_GRAPHS = "not needed: CPUs have no graphs, and on GPUs steps are always graphs"
_HTTP = "not supported: the API listens on --host and --port"

ANSWERS = {
    "--mem-fraction-static": "use --gpu-memory-utilization; on CPUs --kv-cache-memory-bytes",
    "--num-gpu-blocks-override": "use --kv-cache-memory-bytes",
    "--max-total-tokens": "use --kv-cache-memory-bytes",
    "--swap-space": _SWAP,
    "--kv-offloading-size": _SWAP,
    "--kv-offloading-backend": _SWAP,
    "--enable-hierarchical-cache": _SWAP,
    "--cpu-offload-gb": "not supported yet: weights are whole where a worker computes",
    "--enable-chunked-prefill": _ALWAYS,
    "--chunked-prefill-size": "use --chunk-tokens",
    "--page-size": "use --block-size",
    "--context-length": "use --max-model-len",
    "--max-running-requests": "use --max-num-seqs",
    "--max-prefill-tokens": "use --max-num-batched-tokens",
    "--max-queued-requests": "use --max-waiting-requests",
    "--model-path": "use --model",
    "--download-dir": "use --cache-dir",
    "--hf-token": "use the variable HF_TOKEN",
    "--random-seed": "use --seed",
    "--disable-radix-cache": "use --no-enable-prefix-caching",
    "--disable-log-requests": "not needed: prompts are logged with --enable-log-requests alone",
    "--log-requests": "use --enable-log-requests",
    "--disable-log-stats": "not needed: statistics are at /metrics, not in the log",
    "--enable-metrics": _ALWAYS,
    "--disable-uvicorn-access-log": "not needed: use --log-level warning for no line a request",
    "--uvicorn-log-level": "use --log-level",
    "--enable-request-id-headers": "not needed: answers always bear x-request-id",
    "--enable-server-load-tracking": "not needed: /load always tells it",
    "--show-hidden-metrics-for-version": _COUNTED,
    "--kv-cache-metrics": _COUNTED,
    "--collect-detailed-traces": "not needed: traces tell each stage of each attempt",
    "--enforce-eager": _GRAPHS,
    "--no-enforce-eager": _GRAPHS,
    "--enable-auto-tool-choice": _ALWAYS,
    "--enable-reasoning": "use --reasoning-parser",
    "--scheduling-policy": "not needed: whatever has a priority is ordered by it",
    "--schedule-policy": "not needed: whatever has a priority is ordered by it",
    "--async-scheduling": _AHEAD,
    "--no-async-scheduling": _AHEAD,
    "--stream-interval": "not needed: each token is told at once",
    "--max-seq-len-to-capture": "not needed: a graph serves sequences of any length",
    "--api-server-count": "use --gateways",
    "--device": "use --devices",
    "--calculate-kv-scales": "not needed: pages of fp8 hold a scale for each token and head",
    "--kv-transfer-config": "leave it out: one server has both pools; pages go by --transport",
    "--disaggregation-mode": "use --prefill N and --decode M",
    "--disaggregation-transfer-backend": "use --transport",
    "--disaggregation-bootstrap-port": "use --control-port",
    "--disaggregation-ib-device": "not supported yet: between hosts pages travel by TCP",
    "--num-reserved-decode-tokens": "not needed: decode workers set back whom pages run out for",
    "--trust-remote-code": "not supported: no code of a model's repository is run",
    "--generation-config": "leave it out: the model's generation_config.json is read",
    "--override-generation-config": "not supported: requests say how they are sampled",
    "--preferred-sampling-params": "not supported: requests say how they are sampled",
    "--enable-prompt-tokens-details": _ALWAYS,
    "--enable-cache-report": _ALWAYS,
    "--enable-force-include-usage": "not supported: requests ask by stream_options.include_usage",
    "--return-tokens-as-token-ids": "leave it out: requests ask by return_tokens_as_token_ids",
    "--chat-template-content-format": "leave it out: templates get a message's content as text",
    "--default-chat-template-kwargs": "not supported: requests give chat_template_kwargs",
    "--response-role": "not supported: who answers is the assistant",
    "--skip-tokenizer-init": "not supported: requests may give token ids as their prompt",
    "--log-config-file": "use --log-level and --log-format",
    "--root-path": _NOT_YET,
    "-q": "use --quantization",
    "-O": _OWN_KERNELS,
    "-cc": _OWN_KERNELS,
    **dict.fromkeys(("--nnodes", "--node-rank", "--headless", "--master-addr"), _JOIN),
    **dict.fromkeys(("-n", "-r", "--master-port", "--dist-init-addr"), _JOIN),
    **dict.fromkeys(("--data-parallel-address", "--data-parallel-rpc-port"), _JOIN),
    **dict.fromkeys(("--guided-decoding-backend", "--grammar-backend"), _ONE_BACKEND),
    "--structured-outputs-config": "leave it out: there is one backend, and requests say the form",
    **dict.fromkeys(("--compilation-config", "--attention-backend"), _OWN_KERNELS),
    **dict.fromkeys(("--attention-config", "--kernel-config", "--model-impl"), _OWN_KERNELS),
    **dict.fromkeys(("--sampling-backend", "--enable-torch-compile"), _OWN_KERNELS),
    **dict.fromkeys(("--disable-cuda-graph", "--cuda-graph-max-bs"), _OWN_KERNELS),
    **dict.fromkeys(("--cudagraph-capture-sizes", "--disable-custom-all-reduce"), _OWN_KERNELS),
    **dict.fromkeys(("--middleware", "--logits-processors"), _NO_CODE),
    **dict.fromkeys(("--logits-processor-pattern", "--tool-parser-plugin"), _NO_CODE),
    **dict.fromkeys(("--reasoning-parser-plugin", "--worker-cls", "--scheduler-cls"), _NO_CODE),
    **dict.fromkeys(("--worker-extension-cls", "--io-processor-plugin"), _NO_CODE),
    **dict.fromkeys(("--mm-processor-kwargs", "--limit-mm-per-prompt"), _NO_IMAGES),
    **dict.fromkeys(("--mm-processor-cache-gb", "--mm-encoder-tp-mode"), _NO_IMAGES),
    **dict.fromkeys(("--media-io-kwargs", "--allowed-local-media-path"), _NO_IMAGES),
    **dict.fromkeys(("--allowed-media-domains", "--enable-multimodal"), _NO_IMAGES),
    **dict.fromkeys(("--language-model-only", "--skip-mm-profiling"), _NO_IMAGES),
    **dict.fromkeys(("--tokenizer-mode", "--tokenizer-pool-size"), _ONE_TOKENIZER),
    **dict.fromkeys(("--long-prefill-token-threshold",), _LONG_PROMPTS),
    **dict.fromkeys(("--max-num-partial-prefills",), _LONG_PROMPTS),
    **dict.fromkeys(("--max-long-partial-prefills",), _LONG_PROMPTS),
    **dict.fromkeys(("--uds", "--fd"), _HTTP),
    **dict.fromkeys(
        ("--h11-max-incomplete-event-size", "--h11-max-header-count"),
        "not needed: the size of requests is bounded (16 MiB of body)",
    ),
    **dict.fromkeys(("--disable-fastapi-docs",), "not supported: /docs is always there"),
    **dict.fromkeys(("--tensor-parallel-size", "--tp-size", "--tp", "-tp"), _REPLICAS),
    **dict.fromkeys(("--pipeline-parallel-size", "--pp-size", "--pp", "-pp"), _REPLICAS),
    **dict.fromkeys(("--data-parallel-size", "--dp-size", "--dp", "-dp"), _REPLICAS),
    **dict.fromkeys(("--data-parallel-size-local", "-dpl"), _REPLICAS),
} | dict.fromkeys(
    (
        *("--data-parallel-rank", "--data-parallel-backend", "--data-parallel-hybrid-lb"),
        *("--enable-expert-parallel", "-ep", "--ep-size", "--enable-eplb", "--eplb-config"),
        *("--decode-context-parallel-size", "-dcp", "--prefill-context-parallel-size", "-pcp"),
        *("--ssl-ciphers", "--enable-ssl-refresh", "--ssl-keyfile-password"),
        *("--enable-lora", "--lora-modules", "--lora-paths", "--max-loras", "--max-lora-rank"),
        *("--max-cpu-loras", "--lora-dtype", "--fully-sharded-loras", "--speculative-config"),
        *("--speculative-algorithm", "--speculative-draft-model-path"),
        *("--load-format", "--model-loader-extra-config"),
        *("--revision", "--code-revision", "--tokenizer-revision"),
        *("--tokenizer", "--tokenizer-path", "--hf-config-path", "--hf-overrides"),
        *("--rope-scaling", "--rope-theta", "--json-model-override-args"),
        *("--distributed-executor-backend", "--task", "--runner", "--convert"),
        *("--enable-sleep-mode", "--pooler-config", "--is-embedding", "--kv-events-config"),
        *(
            "--disable-sliding-window",
            "--disable-cascade-attn",
            "--disable-hybrid-kv-cache-manager",
        ),
        *("--additional-config", "--prefix-caching-hash-algo"),
        *("--config-format", "--tool-server", "--profiler-config", "--use-tqdm-on-load"),
    ),
    _NOT_YET,
)
"""By flag, the remark after "unknown flag --NAME: ". One that is "not needed" is taken."""

SWITCHES = frozenset(
    (
        *("--enable-chunked-prefill", "--enable-metrics", "--enable-auto-tool-choice"),
        *("--enable-prompt-tokens-details", "--enable-cache-report", "--kv-cache-metrics"),
        *("--disable-log-requests", "--disable-log-stats", "--disable-uvicorn-access-log"),
        *("--enable-request-id-headers", "--enable-server-load-tracking"),
        *("--enforce-eager", "--no-enforce-eager", "--async-scheduling", "--no-async-scheduling"),
        *("--calculate-kv-scales", "--enable-torch-compile", "--disable-cuda-graph"),
        "--disable-custom-all-reduce",
    )
)
"""Those of the flags that are not needed that take no value."""

_WHERE_THERE_IS_ONE = (
    *("--tensor-parallel-size", "--tp-size", "--tp", "-tp"),
    *("--pipeline-parallel-size", "--pp-size", "--pp", "-pp"),
    *("--data-parallel-size", "--dp-size", "--dp", "-dp", "--data-parallel-size-local", "-dpl"),
    *("--decode-context-parallel-size", "-dcp", "--prefill-context-parallel-size", "-pcp"),
    *("--nnodes", "-n", "--ep-size", "--api-server-count", "--max-num-partial-prefills"),
)
_WHERE_THERE_IS_NONE = ("--node-rank", "-r", "--swap-space", "--cpu-offload-gb")
ANYWAY = {
    **dict.fromkeys(_WHERE_THERE_IS_ONE, ("1",)),
    **dict.fromkeys(_WHERE_THERE_IS_NONE, ("0",)),
    "--load-format": ("auto", "safetensors"),
    "--config-format": ("auto", "hf"),
    "--tokenizer-mode": ("auto", "hf"),
    "--generation-config": ("auto",),
    "--chat-template-content-format": ("auto", "string"),
    "--response-role": ("assistant",),
    "--runner": ("auto", "generate"),
    "--task": ("auto", "generate"),
    "--convert": ("auto", "none"),
    "--distributed-executor-backend": ("mp", "uni"),
    "--revision": ("main",),
}
"""Values of flags that are not here which ask for what is so anyway."""

_NOT_READ = "checkpoints quantised so are not read; int8 makes 8 bits of all others at start"
_QUANTISED = (
    *("awq", "awq_marlin", "gptq", "gptq_marlin", "fp8", "fbgemm_fp8", "ptpc_fp8", "bitsandbytes"),
    *("compressed-tensors", "modelopt", "modelopt_fp4", "mxfp4", "quark", "torchao", "auto-round"),
    *("w8a8_fp8", "w8a8_int8", "moe_wna16", "experts_int8", "hqq", "bitblas", "gptq_bitblas"),
)
_NO_LATENT = "no model of latent attention is served"
VALUES = {
    **dict.fromkeys((("quantization", name) for name in _QUANTISED), _NOT_READ),
    ("kv_cache_dtype", "fp8_e5m2"): "fp8 is e4m3, as small and nearer to what it keeps",
    ("kv_cache_dtype", "fp8_inc"): "that is for Gaudi; fp8 is for GPUs",
    ("kv_cache_dtype", "fp8_ds_mla"): _NO_LATENT,
    ("kv_cache_dtype", "nvfp4"): "no page has 4 bits a number; fp8 has 8",
}
"""By setting and value, why those of other servers are not there."""

_LEVEL = re.compile(r"-O(?:\d|\.).*")  # vLLM's -O3 and -O.level=3
_LEVEL_AT_ONCE = re.compile(r"-O\d")
_POOL = re.compile(r"--(?:prefill|decode)\.")


def answer(flag: str) -> str | None:
    """Of that flag, as it stands on a command line. None: it is nobody's that is known.

    `--no-NAME`, `--NAME.KEY` (vLLM's for one key of a JSON object) and `--prefill.NAME` are NAME's.
    """
    name = _POOL.sub("--", _LEVEL.sub("-O", flag))
    spellings = (name, name.partition(".")[0])
    for spelling in spellings:
        for one in (spelling, spelling.replace("--no-", "--", 1)):
            if one in ANSWERS:
                is_off = one != spelling  # what is always so cannot be put off
                told = ANSWERS[one]
                return told.replace("not needed", "not supported") if is_off else told
    return None


def not_needed(flag: str, value: str | None) -> str | None:
    """Why that flag, as it stands on a command line, may as well be left out. None: it may not."""
    name = _name(flag)
    if value is not None and value in ANYWAY.get(name, ()):
        return _ANYWAY
    why = ANSWERS.get(name, "")
    return why if why.startswith("not needed") else None


def takes_value(flag: str) -> bool:
    """Of the flags that may not be needed, whether a value comes next."""
    name = _name(flag)
    if name in SWITCHES or _LEVEL_AT_ONCE.fullmatch(flag):
        return False
    return name in ANYWAY or ANSWERS.get(name, "").startswith("not needed")


def _name(flag: str) -> str:
    return _LEVEL.sub("-O", flag).partition(".")[0]
