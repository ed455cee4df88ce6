"""What to say of an endpoint that vLLM, SGLang or OpenAI has and this server has not."""

import re

_NO_VECTORS = "models here generate text, and give no vectors or scores"
_TEXT_ALONE = "text alone is served"
_NOT_STORED = "nothing is stored here; each request brings all of its conversation"
_NO_SLEEP = "workers do not sleep; stop the server, or start it with others"
_NO_ADAPTERS = "there are no adapters; each server has one model"
_WHOLE = "prompts are rendered and answered in one request; see /tokenize"
_METRICS = "see /status and /metrics"

ENDPOINTS = {
    "/v1/embeddings": _NO_VECTORS,
    "/v2/embed": _NO_VECTORS,
    "/pooling": _NO_VECTORS,
    "/classify": _NO_VECTORS,
    "/score": _NO_VECTORS,
    "/v1/score": _NO_VECTORS,
    "/rerank": _NO_VECTORS,
    "/v1/rerank": _NO_VECTORS,
    "/v2/rerank": _NO_VECTORS,
    "/generative_scoring": "use /v1/completions with echo and logprobs",
    "/encode": _NO_VECTORS,
    "/v1/audio/transcriptions": _TEXT_ALONE,
    "/v1/audio/translations": _TEXT_ALONE,
    "/v1/audio/speech": _TEXT_ALONE,
    "/v1/images/generations": _TEXT_ALONE,
    "/v1/realtime": _TEXT_ALONE,
    "/v1/moderations": "nothing is moderated here",
    "/v1/messages": "Anthropic's API is not spoken here; use /v1/chat/completions",
    "/v1/messages/count_tokens": "use /tokenize, which takes messages",
    "/v1/chat/completions/batch": "send requests at once; they are computed together",
    "/v1/chat/completions/render": _WHOLE,
    "/v1/completions/render": _WHOLE,
    "/inference/v1/generate": "use /v1/completions, which takes token ids",
    "/generate": "use /v1/completions, which takes token ids",
    "/invocations": "use /v1/chat/completions or /v1/completions",
    "/v1/batches": "send requests at once; they are computed together",
    "/v1/files": _NOT_STORED,
    "/v1/assistants": _NOT_STORED,
    "/v1/threads": _NOT_STORED,
    "/v1/conversations": _NOT_STORED,
    "/v1/load_lora_adapter": _NO_ADAPTERS,
    "/v1/unload_lora_adapter": _NO_ADAPTERS,
    "/server_info": _METRICS,
    "/get_server_info": _METRICS,
    "/get_load": "use /load",
    "/get_model_info": "use /v1/models",
    "/model_info": "use /v1/models",
    "/health_generate": "use /ready",
    "/liveness": "use /health",
    "/readiness": "use /ready",
    "/flush_cache": "use /reset_prefix_cache",
    "/reset_mm_cache": _TEXT_ALONE,
    "/reset_encoder_cache": _TEXT_ALONE,
    "/sleep": _NO_SLEEP,
    "/wake_up": _NO_SLEEP,
    "/is_sleeping": _NO_SLEEP,
    "/pause": "stop sending; SIGTERM lets what is in flight end",
    "/resume": "nothing is paused here",
    "/is_paused": "nothing is paused here",
    "/abort_request": "close the request's connection",
    "/abort_requests": "close the requests' connections",
    "/start_profile": "use --request-log, or --otlp-traces-endpoint",
    "/stop_profile": "use --request-log, or --otlp-traces-endpoint",
    "/scale_elastic_ep": "start workers with baton prefill --join or baton decode --join",
    "/collective_rpc": "no code of a client's is run",
    "/update_weights": "restart the server with other weights",
    "/tokenizer_info": "start the server with --enable-tokenizer-info-endpoint",
    "/redoc": "use /docs",
}
_STORED = re.compile(r"/v1/(?:responses|chat/completions|conversations|files|batches|threads)/.+")


def instead(path: str) -> str:
    """What there is in its place."""
    told = ENDPOINTS.get(path.rstrip("/"))
    if told is None and _STORED.fullmatch(path):
        told = _NOT_STORED
    return told or "/docs lists what there is"
