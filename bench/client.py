"""One request to an OpenAI-compatible server, and what its client saw of the answer.

Knows HTTP and the stream's form, no schedule and no statistics. Imports nothing of the engine.
"""

import time
from itertools import pairwise
from typing import Any, Literal

import aiohttp
import msgspec

from bench import reasons
from bench.stream import Chunk, MalformedEvent, Reader
from bench.tls import Trust

Backend = Literal["openai", "vllm", "openai-chat"]
CountedBy = Literal["token_ids", "usage", "tokenizer", "chunks"]

ENDPOINTS: dict[Backend, str] = {
    "openai": "/v1/completions",
    "vllm": "/v1/completions",
    "openai-chat": "/v1/chat/completions",
}
_MESSAGE_CHARS = 300


class _Fault(msgspec.Struct):
    message: str


class _Refusal(msgspec.Struct):
    """What an OpenAI-compatible server answers instead of a stream."""

    error: _Fault


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """Where requests go, and what all of them ask for."""

    base_url: str  # without /v1
    model: str
    backend: Backend = "openai"
    endpoint: str = ""  # "": the backend's own
    headers: dict[str, str] = {}
    trust: Trust = Trust()
    extra_body: dict[str, Any] = {}
    ignore_eos: bool = True
    temperature: float | None = 0.0  # None: the server's default
    timeout_s: float = 6 * 3600.0  # of one request, whole

    @property
    def url(self) -> str:
        return self.base_url + (self.endpoint or ENDPOINTS[self.backend])


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt. A chat backend needs text."""

    prompt: str | list[int]
    max_tokens: int
    prompt_tokens: int | None = None  # None: the workload could not count them
    at_s: float | None = None  # when a trace has it, in seconds since its start
    cancel_after_s: float | None = None  # the client hangs up that long after sending
    prefix: int | None = None  # requests of the same number begin with the same tokens
    stream: bool = True  # else the answer comes whole, as one chunk


class Outcome(msgspec.Struct, kw_only=True):
    """What became of a request. Times are seconds since the load began."""

    index: int  # of the request among those of the load
    scheduled_s: float  # when it should have been sent
    sent_s: float
    ended_s: float = 0.0
    chunk_times_s: list[float] = []  # of the chunks that carried tokens
    chunk_tokens: list[int] = []  # how many each carried; empty if the server does not say
    input_tokens: int = 0
    output_tokens: int = 0
    counted_by: CountedBy = "chunks"  # where output_tokens comes from
    text: str = ""
    error: str = ""  # its kind: http_429, connect, timeout, disconnect, truncated, ...; "": none
    message: str = ""  # what the server or the library said
    cancelled: bool = False  # by the client, before its end
    request_id: str = ""  # as the server names it; "": it does not
    client_lag_s: float = 0.0  # the latest that its client's own loop was meanwhile

    @property
    def ok(self) -> bool:
        return not self.error and not self.cancelled

    @property
    def queued_s(self) -> float:
        """Spent inside this client, before it was sent."""
        return self.sent_s - self.scheduled_s

    @property
    def second_token_s(self) -> float | None:
        """Of the second chunk where the server does not say how many tokens each carried."""
        if self.chunk_tokens and self.chunk_tokens[0] > 1:
            return self.chunk_times_s[0]
        return self.chunk_times_s[1] if len(self.chunk_times_s) > 1 else None

    @property
    def ttft_s(self) -> float:
        """From sending to the first token; of a request that got one."""
        return self.chunk_times_s[0] - self.sent_s

    @property
    def e2el_s(self) -> float:
        """From sending to the last token; of a request that got one."""
        return self.chunk_times_s[-1] - self.sent_s

    @property
    def tpot_s(self) -> float | None:
        """Mean time of a token after the first; None where there is no second."""
        if self.output_tokens < 2:
            return None
        return (self.chunk_times_s[-1] - self.chunk_times_s[0]) / (self.output_tokens - 1)

    @property
    def gaps_s(self) -> list[float]:
        """Between chunks that carried tokens."""
        return [after - before for before, after in pairwise(self.chunk_times_s)]


def body(target: Target, request: Request) -> dict[str, Any]:
    """What is sent."""
    made: dict[str, Any] = {
        "model": target.model,
        "max_tokens": request.max_tokens,
        "stream": request.stream,
    }
    if request.stream:
        made["stream_options"] = {"include_usage": True}
    if target.backend == "openai-chat":
        made["messages"] = [{"role": "user", "content": request.prompt}]
    else:
        made["prompt"] = request.prompt
    if target.temperature is not None:
        made["temperature"] = target.temperature
    if target.ignore_eos:
        made["ignore_eos"] = True
    return made | target.extra_body


async def send(
    session: aiohttp.ClientSession, target: Target, request: Request, outcome: Outcome, began: float
) -> None:
    """Fills the outcome in; never raises but when it is cancelled itself.

    `began` is the clock (time.perf_counter) when the load began.
    """
    data = msgspec.json.encode(body(target, request))
    headers = {"Content-Type": "application/json", **target.headers}
    outcome.sent_s = time.perf_counter() - began
    try:
        async with await _post(session, target.url, data, headers) as response:
            outcome.request_id = response.headers.get("x-request-id", "")
            if response.status == 200:
                await _read(response, outcome, began, stream=request.stream)
                outcome.input_tokens = outcome.input_tokens or request.prompt_tokens or 0
            else:
                outcome.error = f"http_{response.status}"
                outcome.message = said(await response.text())
    except TimeoutError:
        outcome.error = "timeout"
    except aiohttp.ClientConnectorError as error:
        outcome.error, outcome.message = "connect", reasons.of(error)
    except MalformedEvent as error:
        outcome.error, outcome.message = "malformed", str(error)[:_MESSAGE_CHARS]
    except (aiohttp.ClientError, OSError) as error:
        outcome.error, outcome.message = "disconnect", reasons.of(error)
    finally:
        outcome.ended_s = time.perf_counter() - began


async def _post(
    session: aiohttp.ClientSession, url: str, data: bytes, headers: dict[str, str]
) -> aiohttp.ClientResponse:
    """Once more where the connection closes before a byte of an answer: a server may close one that
    was kept open while we send on it (RFC 9112, section 9.3.1), as llama.cpp's does after a stream.
    """
    try:
        return await session.post(url, data=data, headers=headers)
    except (aiohttp.ServerDisconnectedError, aiohttp.ClientConnectionResetError):
        return await session.post(url, data=data, headers=headers)


def said(text: str) -> str:
    """Of a refusal, its message alone; of anything else, its beginning."""
    try:
        message = msgspec.json.decode(text, type=_Refusal).error.message
    except msgspec.DecodeError:
        message = text
    return message[:_MESSAGE_CHARS]


async def _read(
    response: aiohttp.ClientResponse, outcome: Outcome, began: float, *, stream: bool
) -> None:
    """Takes the answer to its end.

    Raises MalformedEvent, and aiohttp's errors where the connection breaks.
    """
    reader = Reader()
    texts: list[str] = []
    try:
        if stream:
            async for received in response.content.iter_any():
                now_s = time.perf_counter() - began
                for chunk in reader.feed(received):
                    _take(outcome, chunk, now_s, texts)
        else:
            for chunk in reader.whole(await response.read()):
                _take(outcome, chunk, time.perf_counter() - began, texts)
    finally:
        outcome.text = "".join(texts)
        _count(outcome, reader)
    if reader.error is not None:
        outcome.error, outcome.message = "error_event", reader.error[:_MESSAGE_CHARS]
    elif not reader.done:
        outcome.error = "truncated"
    elif not outcome.chunk_times_s:
        outcome.error = "no_tokens"


def _take(outcome: Outcome, chunk: Chunk, now_s: float, texts: list[str]) -> None:
    outcome.chunk_times_s.append(now_s)
    texts.append(chunk.text)
    if chunk.n_tokens is not None:
        outcome.chunk_tokens.append(chunk.n_tokens)


def _count(outcome: Outcome, reader: Reader) -> None:
    """Tokens by the best that the server gave: ids, its usage, else one a chunk."""
    outcome.input_tokens = reader.prompt_tokens or 0
    told = len(outcome.chunk_tokens) == len(outcome.chunk_times_s)
    if not told:
        outcome.chunk_tokens = []
    if reader.completion_tokens is not None:
        outcome.output_tokens, outcome.counted_by = reader.completion_tokens, "usage"
    elif told and outcome.chunk_tokens:
        outcome.output_tokens, outcome.counted_by = sum(outcome.chunk_tokens), "token_ids"
    else:
        outcome.output_tokens, outcome.counted_by = len(outcome.chunk_times_s), "chunks"
