"""What to say of a flag that vLLM or SGLang has and `baton serve` has not."""

_NOT_YET = "not supported yet"
_ALWAYS = "not needed: it is always so"

ANSWERS = {
    "--mem-fraction-static": "use --gpu-memory-utilization; on CPUs --kv-cache-memory-bytes",
    "--swap-space": "use --kv-host-memory-bytes",
    "--enable-chunked-prefill": _ALWAYS,
    "--chunked-prefill-size": "use --chunk-tokens",
    "--page-size": "use --block-size",
    "--context-length": "use --max-model-len",
    "--max-running-requests": "use --max-num-seqs",
    "--model-path": "use --model",
    "--disable-radix-cache": "use --no-enable-prefix-caching",
    "--disable-log-requests": "not needed: prompts are logged with --enable-log-requests alone",
    "--disable-log-stats": "not needed: statistics are at /metrics, not in the log",
    "--disable-uvicorn-access-log": "not needed: use --log-level warning for no line a request",
    "--uvicorn-log-level": "use --log-level",
    "--enable-request-id-headers": "not needed: answers always bear x-request-id",
    "--collect-detailed-traces": "not needed: traces tell each stage of each attempt",
    "--enforce-eager": _ALWAYS,
    "--enable-auto-tool-choice": _ALWAYS,
    "--enable-reasoning": "use --reasoning-parser",
    "--scheduling-policy": "not needed: whatever has a priority is ordered by it",
    "--api-server-count": "use --gateways",
    "--device": "use --devices",
    "--kv-transfer-config": "not needed: pages travel by --transport",
    "--disaggregation-mode": "not needed: use --prefill N and --decode M",
    "--trust-remote-code": "not supported: no code of a model's repository is run",
} | dict.fromkeys(
    (
        *("--tensor-parallel-size", "--tp-size", "--tp", "--pipeline-parallel-size", "--pp-size"),
        *("--data-parallel-size", "--dp-size", "--enable-expert-parallel"),
        *("--root-path", "--ssl-ciphers", "--enable-ssl-refresh", "--ssl-keyfile-password"),
        *("--enable-lora", "--lora-modules", "--lora-paths", "--speculative-config"),
        *("--kv-cache-dtype", "--load-format", "--revision", "--tokenizer", "--tokenizer-path"),
        *("--hf-overrides", "--rope-scaling", "--limit-mm-per-prompt"),
        *("--distributed-executor-backend", "--max-loras", "--task", "--runner"),
    ),
    _NOT_YET,
)
"""By flag, the remark after "unknown flag --NAME: "."""
