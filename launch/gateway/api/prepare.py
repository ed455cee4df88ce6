"""From a checked body to prompts and parameters: every default resolved, every limit tried.

Pure but for tokenisation, and slow for that: called in a worker thread.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from common.errors import ClientError, ContextOverflow
from common.params import SamplingParams
from launch.gateway.api.requests import (
    MAX_STOPS,
    ChatRequest,
    CompletionRequest,
    Sampling,
    SloBody,
    shown,
)
from launch.gateway.text.load import TextModel
from launch.gateway.text.stops import StopAutomaton
from launch.gateway.text.tokenizer import check_prompt_ids
from launch.gateway.transfers import Slo

COMPLETION_MAX_TOKENS = 16  # OpenAI's default
MAX_STOP_CHARS = 1000
MAX_CHOICES = 1024  # prompts times n
_MAX_ID_DIGITS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What the server offers, as far as requests are concerned."""

    model: str  # its name in the API
    text: TextModel
    max_model_len: int
    max_logprobs: int
    draw_seed: Callable[[], int]
    slo: Slo  # of requests that state none


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One prompt of a request."""

    ids: tuple[int, ...]
    text: str | None  # as the client wrote it; None: it sent ids
    params: SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A request, ready to run."""

    prompts: tuple[Prompt, ...]
    n: int
    stops: StopAutomaton
    include_stop: bool
    skip_special_tokens: bool
    min_tokens: int
    logprobs: bool
    echo: bool
    generates: bool  # False: the client asked for no tokens, only for an echo
    stream: bool
    include_usage: bool
    return_token_ids: bool
    slo: Slo
    timeout_s: float | None

    @property
    def returned_prompts(self) -> tuple[tuple[int, ...], ...]:
        """The prompt of each choice, where the client asked for token ids."""
        if not self.return_token_ids:
            return ()
        return tuple(prompt.ids for prompt in self.prompts for _ in range(self.n))


def prepare_completion(request: CompletionRequest, served: Served) -> Prepared:
    """Raises ClientError."""
    _check_model(request.model, served)
    if request.suffix:
        raise ClientError("suffix is not supported: this model cannot infill", param="suffix")
    if request.best_of is not None and request.best_of != (request.n or 1):
        raise ClientError(
            f"best_of is {request.best_of} and n {request.n or 1}: best_of is not supported beyond "
            "n; ask for n answers and choose among them",
            param="best_of",
        )
    max_tokens = COMPLETION_MAX_TOKENS if request.max_tokens is None else request.max_tokens
    if max_tokens == 0 and not request.echo:
        raise ClientError("max_tokens is 0: nothing is left to do without echo", param="max_tokens")
    prompts = [_encoded(p, served, param="prompt") for p in _prompts(request.prompt)]
    top = _top(request.logprobs, served, "logprobs")
    prompt_top = top if request.echo else None
    return _prepared(request, served, prompts, max_tokens, "max_tokens", top, prompt_top)


def prepare_chat(request: ChatRequest, served: Served) -> Prepared:
    """Raises ClientError."""
    _check_model(request.model, served)
    _refuse_unsupported(request)
    template = served.text.template
    if template is None:
        raise ClientError(
            "this model has no chat template; give one with --chat-template, or use "
            "/v1/completions",
            param="messages",
        )
    _check_messages(request.messages)
    text = template.render(
        request.messages,
        add_generation_prompt=request.add_generation_prompt,
        options=request.chat_template_kwargs,
    )
    ids = _encode(text, served, param="messages", add_special_tokens=False)
    param, max_tokens = "max_completion_tokens", request.max_completion_tokens
    if max_tokens is None:
        param, max_tokens = "max_tokens", request.max_tokens
    if max_tokens == 0:
        raise ClientError(f"{param} is 0; ask for 1 or more", param=param)
    top = None
    if request.logprobs:
        top = _top(request.top_logprobs or 0, served, "top_logprobs")
    elif request.top_logprobs:
        raise ClientError("top_logprobs needs logprobs to be true", param="top_logprobs")
    return _prepared(request, served, [(ids, None)], max_tokens, param, top, None)


def _prepared(  # noqa: PLR0913 - the two endpoints meet here
    request: Sampling,
    served: Served,
    prompts: Sequence[tuple[tuple[int, ...], str | None]],
    max_tokens: int | None,
    param: str,
    top: int | None,
    prompt_top: int | None,
) -> Prepared:
    n = request.n or 1
    if len(prompts) * n > MAX_CHOICES:
        raise ClientError(
            f"{len(prompts)} prompts with n {n} make {len(prompts) * n} choices; at most "
            f"{MAX_CHOICES} in one request",
            param="n" if len(prompts) == 1 else "prompt",
        )
    stops = _stops(request.stop)
    base = _params(request, served, top, prompt_top)
    seed = served.draw_seed() if request.seed is None else request.seed % 2**63
    made: list[Prompt] = []
    for index, (ids, text) in enumerate(prompts):
        own = _max_tokens(len(ids), max_tokens, served, param)
        if base.min_tokens > own > 0:
            raise ClientError(
                f"min_tokens is {base.min_tokens}, but {param} is {own}", param="min_tokens"
            )
        params = replace(base, max_tokens=max(1, own), seed=_own_seed(seed, index))
        made.append(Prompt(ids=ids, text=text, params=params))
    options = request.stream_options
    if options is not None and not request.stream:
        raise ClientError("stream_options needs stream to be true", param="stream_options")
    return Prepared(
        prompts=tuple(made),
        n=n,
        stops=StopAutomaton(stops),
        include_stop=request.include_stop_str_in_output,
        skip_special_tokens=request.skip_special_tokens,
        min_tokens=base.min_tokens,
        logprobs=top is not None,
        echo=isinstance(request, CompletionRequest) and bool(request.echo),
        generates=max_tokens != 0,
        stream=bool(request.stream),
        include_usage=options is not None and bool(options.include_usage),
        return_token_ids=bool(request.return_token_ids),
        slo=_slo(request.slo, served.slo),
        timeout_s=request.timeout_s,
    )


def _params(
    request: Sampling, served: Served, top: int | None, prompt_top: int | None
) -> SamplingParams:
    """With every default resolved: the request's, else the model's own, else OpenAI's."""
    own = served.text.generation_defaults

    def value(name: str, default: float) -> Any:  # noqa: ANN401 - an int or a float, by name
        given = getattr(request, name)
        if given is None:
            given = getattr(own, name, None)
        return default if given is None else given

    vocab_size = served.text.vocab_size
    stop_ids = tuple(request.stop_token_ids or ())
    check_prompt_ids(stop_ids, vocab_size=vocab_size, param="stop_token_ids")
    return SamplingParams(
        max_tokens=1,  # each prompt has its own
        seed=0,
        temperature=float(value("temperature", 1.0)),
        top_p=float(value("top_p", 1.0)),
        top_k=max(0, int(value("top_k", 0))),
        min_p=float(value("min_p", 0.0)),
        presence_penalty=request.presence_penalty or 0.0,
        frequency_penalty=request.frequency_penalty or 0.0,
        repetition_penalty=float(value("repetition_penalty", 1.0)),
        logit_bias=_logit_bias(request.logit_bias, vocab_size),
        min_tokens=request.min_tokens or 0,
        end_token_ids=() if request.ignore_eos else tuple(sorted(served.text.end_token_ids)),
        stop_token_ids=stop_ids,
        logprobs=top,
        prompt_logprobs=prompt_top,
    )


def _slo(asked: SloBody | None, own: Slo) -> Slo:
    if asked is None:
        return own
    return Slo(
        ttft_s=own.ttft_s if asked.ttft_ms is None else asked.ttft_ms / 1e3,
        tpot_s=own.tpot_s if asked.tpot_ms is None else asked.tpot_ms / 1e3,
    )


def _check_model(name: str | None, served: Served) -> None:
    if name is not None and name != served.model:
        raise ClientError(
            f"The model `{name[:200]}` does not exist; this server has `{served.model}`.",
            param="model",
            status=404,
        )


def _refuse_unsupported(request: ChatRequest) -> None:
    kind = (request.response_format or {}).get("type", "text")
    unsupported = {
        "tools": bool(request.tools),
        "functions": bool(request.functions),
        "tool_choice": request.tool_choice not in (None, "none", "auto"),
        "function_call": request.function_call not in (None, "none", "auto"),
        "response_format": kind != "text",
        "modalities": request.modalities not in (None, ["text"]),
        "audio": request.audio is not None,
        "web_search_options": request.web_search_options is not None,
    }
    for name, asked in unsupported.items():
        if asked:
            raise ClientError(f"{name} is not supported by this server; leave it out", param=name)


def _check_messages(messages: Sequence[Mapping[str, Any]]) -> None:
    """What every template takes for granted."""
    for n, message in enumerate(messages):
        role, content = message.get("role"), message.get("content")
        if not isinstance(role, str) or not role:
            raise ClientError(
                f"messages[{n}].role is {shown(role)}; it must be a name such as user",
                param=f"messages[{n}].role",
            )
        calls = message.get("tool_calls") or message.get("function_call")
        if not isinstance(content, str | list) and not (content is None and calls):
            raise ClientError(
                f"messages[{n}].content is {shown(content)}; it must be a text or a list of parts",
                param=f"messages[{n}].content",
            )


def _prompts(prompt: str | list[str | int | list[int]]) -> list[str | list[int]]:
    """One kind of four: a text, texts, ids, lists of ids. The type cannot say it."""
    if isinstance(prompt, str):
        return [prompt]
    kinds = {type(item) for item in prompt}
    if not prompt:
        raise ClientError("prompt is an empty list; give at least one", param="prompt")
    if len(kinds) > 1:
        raise ClientError(
            "prompt mixes kinds; give a text, a list of texts, a list of token ids or a list of "
            "such lists",
            param="prompt",
        )
    if kinds == {int}:
        return [[item for item in prompt if isinstance(item, int)]]
    return [item for item in prompt if not isinstance(item, int)]


def _encoded(
    prompt: str | list[int], served: Served, *, param: str
) -> tuple[tuple[int, ...], str | None]:
    if isinstance(prompt, str):
        return _encode(prompt, served, param=param, add_special_tokens=True), prompt
    if not prompt:
        raise ClientError("a prompt has no tokens; give at least one", param=param)
    check_prompt_ids(prompt, vocab_size=served.text.vocab_size, param=param)
    return tuple(prompt), None


def _encode(text: str, served: Served, *, param: str, add_special_tokens: bool) -> tuple[int, ...]:
    tokenizer = served.text.tokenizer
    fewest = tokenizer.fewest_tokens(text)
    if fewest > served.max_model_len:  # hopeless: not worth the time to count it exactly
        raise ContextOverflow(fewest, 1, served.max_model_len, param=param)
    try:
        ids = tuple(tokenizer.encode(text, add_special_tokens=add_special_tokens))
    except ClientError as error:
        raise ClientError(str(error), param=param) from error
    if not ids:
        raise ClientError("a prompt has no tokens; give at least one", param=param)
    return ids


def _max_tokens(n_prompt: int, asked: int | None, served: Served, param: str) -> int:
    room = served.max_model_len - n_prompt
    if asked is None:
        own = served.text.generation_defaults.max_tokens
        asked = max(1, room) if own is None else max(1, min(own, room))
    if asked > room or room < 1:
        raise ContextOverflow(n_prompt, max(asked, 1), served.max_model_len, param=param)
    return asked


def _top(asked: int | None, served: Served, param: str) -> int | None:
    if asked is not None and asked > served.max_logprobs:
        raise ClientError(
            f"{param} is {asked}; at most {served.max_logprobs} (--max-logprobs)", param=param
        )
    return asked


def _stops(stop: str | list[str] | None) -> list[str]:
    stops = [stop] if isinstance(stop, str) else stop or []
    if len(stops) > MAX_STOPS:
        raise ClientError(f"stop has {len(stops)} strings; at most {MAX_STOPS}", param="stop")
    for text in stops:
        if not text:
            raise ClientError("stop has an empty string; leave it out", param="stop")
        if len(text) > MAX_STOP_CHARS:
            raise ClientError(
                f"a stop string has {len(text)} characters; at most {MAX_STOP_CHARS}", param="stop"
            )
    return stops


def _logit_bias(bias: dict[str, float] | None, vocab_size: int) -> tuple[tuple[int, float], ...]:
    made: list[tuple[int, float]] = []
    for key, value in (bias or {}).items():
        is_id = key.isascii() and key.isdigit() and len(key) <= _MAX_ID_DIGITS
        if not (is_id and int(key) < vocab_size):
            raise ClientError(
                f"logit_bias has the key {shown(key)}; keys are token ids, 0 to {vocab_size - 1}",
                param="logit_bias",
            )
        made.append((int(key), value))
    return tuple(sorted(made))


def _own_seed(seed: int, index: int) -> int:
    """Prompts of one request draw independently; the first draws as if it were alone."""
    if index == 0:
        return seed
    digest = hashlib.blake2b(f"{seed} {index}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") % 2**63
