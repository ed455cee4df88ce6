"""From a checked body to prompts and parameters: every default resolved, every limit tried.

Pure but for tokenisation, and slow for that: called in a worker thread.
"""

import dataclasses
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from common.errors import ClientError, ContextOverflow
from common.params import SamplingParams
from common.text.stops import StopAutomaton
from common.text.tokenizer import check_prompt_ids
from common.values import MAX_WAIT_S
from launch.gateway.api.calling import Calling, calling_of
from launch.gateway.api.decoding import shown
from launch.gateway.api.item_request import ItemRequest
from launch.gateway.api.prompts import (
    Encoded,
    chat_prompt,
    completion_prompts,
    with_template,
)
from launch.gateway.api.requests import (
    NO_BEAMS,
    ChatRequest,
    CompletionRequest,
    Sampling,
    SloBody,
    StreamOptions,
)
from launch.gateway.api.rules import with_rules
from launch.gateway.api.served import Served, check_model
from launch.gateway.api.structured import grammar_of
from launch.gateway.reasoning.think import begins_thinking
from launch.gateway.transfers import Fields, Slo

COMPLETION_MAX_TOKENS = 16  # OpenAI's default
_MAX_ID_DIGITS = 10
_TAIL_TOKENS = 16  # of a prompt: `<think>` is in them, if it ends with that
_REMEDIES = {
    "functions": "use tools",
    "function_call": "use tool_choice",
    "modalities": 'answers are text; leave it out, or say ["text"]',
    "audio": "answers are text; leave it out",
    "web_search_options": "nothing is searched; leave it out",
    "moderation": "nothing is moderated; leave it out",
}


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
    n: int  # samples of each prompt
    n_told: int  # of these the likeliest, if they are fewer: choices of each prompt
    stops: StopAutomaton
    include_stop: bool
    skip_special_tokens: bool
    min_tokens: int
    logprobs: int | None  # alternatives told of each output token; None: no logprobs
    prompt_logprobs: int | None  # the same of each prompt token, apart from any echo
    echo: bool
    generates: bool  # False: the client asked for no tokens, only for an echo
    stream: bool
    include_usage: bool
    continuous_usage: bool  # with every event
    return_token_ids: bool
    slo: Slo
    timeout_s: float | None
    salt: str  # prompts with different ones share no pages
    priority: int  # lower ones come first
    calling: Calling | None  # of tools; None: the answer is text
    thinks: bool | None  # from the first token on; None: no thoughts are told apart
    tells_thoughts: bool = True
    tokens_as_ids: bool = False  # where logprobs are told
    fields: Fields
    items: ItemRequest | None = None  # that was asked, of /v1/responses

    @property
    def n_prompt_tokens(self) -> int:
        return sum(len(prompt.ids) for prompt in self.prompts)

    @property
    def scores(self) -> bool:
        """The log-probability of every output token is wanted, by the client or to choose by."""
        return self.logprobs is not None or self.n > self.n_told

    @property
    def returned_prompts(self) -> tuple[tuple[int, ...], ...]:
        """The prompt of each choice, where the client asked for token ids."""
        if not self.return_token_ids:
            return ()
        return tuple(prompt.ids for prompt in self.prompts for _ in range(self.n_told))


def prepare_completion(request: CompletionRequest, served: Served) -> Prepared:
    """Raises ClientError."""
    check_model(request.model, served.model)
    if request.suffix:
        raise ClientError("suffix is not supported: this model cannot infill", param="suffix")
    _refuse_beams(request)
    _check_best_of(request)
    max_tokens = COMPLETION_MAX_TOKENS if request.max_tokens is None else request.max_tokens
    if max_tokens == 0 and not request.echo:
        raise ClientError("max_tokens is 0: nothing is left to do without echo", param="max_tokens")
    prompts = completion_prompts(request, served, served.max_model_len - max(1, max_tokens))
    top = _top(request.logprobs, served, "logprobs")
    asked = _Asked(
        prompts=prompts,
        source="prompt",
        max_tokens=max_tokens,
        param="max_tokens",
        top=top,
        echo_top=top if request.echo else None,
        best_of=request.best_of,
    )
    return _prepared(request, served, asked)


def _refuse_beams(request: Sampling) -> None:
    if request.use_beam_search:
        raise ClientError(f"use_beam_search is not supported: {NO_BEAMS}", param="use_beam_search")


def _check_best_of(request: CompletionRequest) -> None:
    n, best_of = request.n or 1, request.best_of
    if best_of is None or best_of == n:
        return
    if best_of < n:
        raise ClientError(
            f"best_of is {best_of} and n {n}: so many cannot be chosen of it; ask for {n} or more",
            param="best_of",
        )
    if request.stream:
        raise ClientError(
            f"best_of is {best_of} and n {n}: which are the best is known in the end, so they "
            "cannot be streamed; leave stream out",
            param="best_of",
        )


def prepare_chat(request: ChatRequest, served: Served) -> Prepared:
    """Raises ClientError."""
    check_model(request.model, served.model)
    _refuse_beams(request)
    _refuse_unsupported(request)
    text = with_template(served.text, request.chat_template, trusted=served.trusts_templates)
    served = dataclasses.replace(served, text=text)
    param, max_tokens = "max_completion_tokens", request.max_completion_tokens
    if max_tokens is None:
        param, max_tokens = "max_tokens", request.max_tokens
    calling = calling_of(request, served)
    offered = None if calling is None else calling.offered
    prompt = chat_prompt(request, served, served.max_model_len - (max_tokens or 1), offered)
    top = None
    if request.logprobs:
        top = _top(request.top_logprobs or 0, served, "top_logprobs")
    elif request.top_logprobs:
        raise ClientError("top_logprobs needs logprobs to be true", param="top_logprobs")
    asked = _Asked(
        prompts=[prompt],
        source="messages",
        max_tokens=max_tokens,
        param=param,
        top=top,
        calling=calling,
        thinks=_begins_thinking(prompt, served),
    )
    return _prepared(request, served, asked)


def _begins_thinking(prompt: Encoded, served: Served) -> bool | None:
    if served.reasoning_parser == "none":
        return None
    ids, _ = prompt
    tail = served.text.tokenizer.decode(ids[-_TAIL_TOKENS:], skip_special_tokens=False)
    return begins_thinking(served.reasoning_parser, tail)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """What the two endpoints say each in its own way."""

    prompts: Sequence[Encoded]
    source: str  # the name of the field that they come from
    max_tokens: int | None
    param: str  # the name of that field
    top: int | None  # alternatives told of each output token; None: no logprobs
    echo_top: int | None = None  # the same of the prompt's tokens
    best_of: int | None = None  # samples of each prompt; None: n
    calling: Calling | None = None
    thinks: bool | None = None


def _prepared(request: Sampling, served: Served, asked: _Asked) -> Prepared:
    prompts, param, calling = asked.prompts, asked.param, asked.calling
    n_told = request.n or 1
    n = asked.best_of or n_told
    stops = [request.stop] if isinstance(request.stop, str) else request.stop or []
    form = grammar_of(request, served, "" if calling is None else calling.grammar)
    base = _params(request, served, asked, form)
    seed = served.draw_seed() if request.seed is None else request.seed % 2**63
    made: list[Prompt] = []
    for index, (ids, text) in enumerate(prompts):
        own = _max_tokens(len(ids), asked, served)
        if base.min_tokens > own > 0:
            raise ClientError(
                f"min_tokens is {base.min_tokens}, but {param} is {own}", param="min_tokens"
            )
        params = replace(base, max_tokens=max(1, own), seed=_own_seed(seed, index))
        made.append(Prompt(ids=ids, text=text, params=params))
    options = request.stream_options or StreamOptions()
    if request.prompt_logprobs is not None and request.stream:
        raise ClientError(
            "prompt_logprobs is not told in a stream; leave stream out", param="prompt_logprobs"
        )
    if request.stream_options is not None and not request.stream:
        raise ClientError("stream_options needs stream to be true", param="stream_options")
    return Prepared(
        prompts=tuple(made),
        n=n,
        n_told=n_told,
        stops=StopAutomaton(stops),
        include_stop=request.include_stop_str_in_output,
        skip_special_tokens=request.skip_special_tokens
        and not (calling is not None and calling.marks_are_special),
        min_tokens=base.min_tokens,
        logprobs=asked.top,
        prompt_logprobs=request.prompt_logprobs,
        echo=isinstance(request, CompletionRequest) and bool(request.echo),
        generates=asked.max_tokens != 0,
        stream=bool(request.stream),
        include_usage=bool(options.include_usage),
        continuous_usage=bool(options.include_usage and options.continuous_usage_stats),
        return_token_ids=bool(request.return_token_ids),
        tokens_as_ids=bool(request.return_tokens_as_token_ids),
        slo=_slo(request.slo, served.slo),
        timeout_s=request.timeout_s,
        salt=request.cache_salt or "",
        priority=request.priority,
        calling=calling,
        thinks=None if form else asked.thinks,  # a form leaves no room for thoughts
        tells_thoughts=not isinstance(request, ChatRequest) or request.include_reasoning,
        fields=Fields(prompt=asked.source, max_tokens=param),
    )


def _params(request: Sampling, served: Served, asked: _Asked, form: str) -> SamplingParams:
    """With every default resolved: the request's, else the model's own, else OpenAI's. `form`: the
    grammar of what the answer must be."""
    own = served.text.generation_defaults

    def value(name: str, default: float) -> Any:  # noqa: ANN401 - an int or a float, by name
        given = getattr(request, name)
        if given is None:
            given = getattr(own, name, None)
        return default if given is None else given

    vocab_size = served.text.vocab_size
    chooses = asked.best_of is not None and asked.best_of > (request.n or 1)
    stop_ids = tuple(request.stop_token_ids or ())
    check_prompt_ids(stop_ids, vocab_size=vocab_size, param="stop_token_ids")
    end_ids = () if request.ignore_eos else tuple(sorted(served.text.end_token_ids))
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
        end_token_ids=end_ids,
        stop_token_ids=stop_ids,
        logprobs=0 if chooses and asked.top is None else asked.top,
        prompt_logprobs=_prompt_top(request, served, asked.echo_top),
        grammar=with_rules(form, request, served, end_ids + stop_ids),
    )


def _slo(asked: SloBody | None, own: Slo) -> Slo:
    if asked is None:
        return own
    return Slo(ttft_s=_owed_s(asked.ttft_ms, own.ttft_s), tpot_s=_owed_s(asked.tpot_ms, own.tpot_s))


def _owed_s(asked_ms: float | None, own_s: float | None) -> float | None:
    """A day is to be owed nothing, whatever the server owes others."""
    if asked_ms is None:
        return own_s
    asked_s = asked_ms / 1e3
    return asked_s if asked_s < MAX_WAIT_S else None


def _refuse_unsupported(request: ChatRequest) -> None:
    unsupported = {
        "functions": bool(request.functions),
        "function_call": request.function_call not in (None, "none", "auto"),
        "modalities": request.modalities not in (None, ["text"]),
        "audio": request.audio is not None,
        "web_search_options": request.web_search_options is not None,
        "moderation": request.moderation is not None,
    }
    for name, asked in unsupported.items():
        if asked:
            raise ClientError(
                f"{name} is not supported by this server; {_REMEDIES[name]}", param=name
            )


def _max_tokens(n_prompt: int, asked: _Asked, served: Served) -> int:
    room, n = served.max_model_len - n_prompt, asked.max_tokens
    if n is None:
        own = served.text.generation_defaults.max_tokens
        n = max(1, room) if own is None else max(1, min(own, room))
    if n > room or room < 1:
        param = asked.source if room < 1 else asked.param
        raise ContextOverflow(n_prompt, max(n, 1), served.max_model_len, param=param)
    return n


def _top(asked: int | None, served: Served, param: str) -> int | None:
    if asked is not None and asked > served.max_logprobs:
        raise ClientError(
            f"{param} is {asked}; at most {served.max_logprobs} (--max-logprobs)", param=param
        )
    return asked


def _prompt_top(request: Sampling, served: Served, echo_top: int | None) -> int | None:
    """What both an echo with logprobs and `prompt_logprobs` are made from."""
    asked = _top(request.prompt_logprobs, served, "prompt_logprobs")
    if asked is None or echo_top is None:
        return asked if echo_top is None else echo_top
    return max(asked, echo_top)


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
