"""The kinds of values that a configuration may hold, and requests may state, with their bounds.

A value's type carries its bounds and, where they need words, what is expected. A field's own `Meta`
describes the field: `Annotated[Count | None, Meta(description=...)]`.
"""

from typing import Annotated, Literal

from msgspec import Meta

DType = Literal["auto", "bfloat16", "float16", "float32"]
KVCacheDType = Literal["auto", "bfloat16", "float16", "float32", "fp8", "fp8_e4m3"]
TransportName = Literal["auto", "shm", "tcp", "cuda_ipc"]
LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["text", "json"]
Quantization = Literal["none", "int8", "gguf"]
BlockSize = Literal[1, 2, 4, 8, 16, 32, 64, 128, 256]
Disaggregate = Literal["auto", "always", "never"]
ToolCallParser = Literal["auto", "hermes", "llama3_json", "mistral"]
ReasoningParser = Literal["none", "deepseek_r1", "qwen3"]
AdmissionPolicy = Literal["none", "load", "predicted"]

MAX_WAIT_S = 86_400.0  # that anybody can ask for

Count = Annotated[int, Meta(ge=1)]
Share = Annotated[float, Meta(gt=0, le=1, description="a number above 0, at most 1")]
Bytes = Annotated[
    int, Meta(ge=1, description="a number of bytes, at least 1, such as 512MiB or 2G")
]
BytesOrNone = Annotated[int, Meta(ge=0, description="a number of bytes, such as 512MiB or 2G")]
ContextTokens = Annotated[  # a token of prompt and one of output
    int, Meta(ge=2, description="an integer >= 2, or auto, which is the model's own")
]
Milliseconds = Annotated[
    float, Meta(ge=1, le=MAX_WAIT_S * 1e3, description="milliseconds, 1 at least, a day at most")
]
Port = Annotated[int, Meta(ge=0, le=65535)]
Text = Annotated[str, Meta(min_length=1)]
Texts = Annotated[tuple[Text, ...], Meta(min_length=1)]
CertReqs = Literal[0, 1, 2]  # ssl.CERT_NONE, CERT_OPTIONAL, CERT_REQUIRED
ApiKey = Annotated[str, Meta(pattern=r"^[!-+\-.-~]+\Z")]
ApiKeys = Annotated[
    tuple[ApiKey, ...],
    Meta(min_length=1, description="keys of printable ASCII without spaces, separated by commas"),
]
Seed = Annotated[int, Meta(ge=0, le=2**63 - 1)]
CpuList = Annotated[
    str, Meta(pattern=r"^\d+(-\d+)?(,\d+(-\d+)?)*$", description="CPUs such as 0-3,5")
]
DeviceList = Annotated[
    str,
    Meta(
        pattern=r"^(auto|cpu|interpreter|cuda(:\d+)?)(,cuda:\d+)*$",
        description="auto or cpu, or GPUs such as cuda:0,cuda:1",
    ),
]
