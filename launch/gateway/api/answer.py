"""Tokens to choices: the streams of a request's prompts, each sample's text, and what it used.

Knows the order of an answer, not its form: `chat_form` and `completion_form` render it.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from common.errors import BatonError, SloMissed
from common.metrics import GatewayMetrics
from common.params import FinishReason, TokenLogprob
from common.text.detokenize import Detokenizer
from common.text.load import TextModel
from common.text.stops import StopStrings
from common.text.stream import TextStream
from launch.gateway.api.prepare import Prepared, Prompt
from launch.gateway.engine import Engine, Stream
from launch.gateway.events import Delta
from launch.gateway.transfers import Generate, RequestId


@dataclass(frozen=True, slots=True)
class Scored:
    """A token with its log-probability (None: a prompt's first) and its place in the text."""

    token: int
    logprob: TokenLogprob | None
    offset: int


@dataclass(frozen=True, slots=True)
class Piece:
    """What one choice gains at once."""

    choice: int
    text: str  # "": of tokens that are hidden, or whose text is held back and comes later
    tokens: tuple[int, ...] = ()  # what it counts
    scored: tuple[Scored, ...] = ()
    finish: str | None = None  # "stop" or "length"
    stop_reason: str | int | None = None  # the stop string or stop token that ended it
    n_tokens: int = 0  # of the choice, these included: what it counts so far
    prompt_scores: tuple[TokenLogprob | None, ...] = ()  # of its prompt, where they are asked for


@dataclass(slots=True)
class Usage:
    """Counted as the client is billed: to where each text ends."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0


@dataclass(slots=True, eq=False)
class _Choice:
    """One sample of one prompt."""

    index: int
    text: TextStream
    offset: int = 0  # characters of the choice before the sample's own text: an echo
    over: bool = False
    first_at: float | None = None
    last_at: float = 0.0


@dataclass(slots=True, eq=False)
class _Run:
    """One prompt, its stream, and its choices by sample."""

    prompt: Prompt
    stream: Stream
    choices: list[_Choice]
    echoed: bool = False

    @property
    def over(self) -> bool:
        return all(choice.over for choice in self.choices)


@dataclass(slots=True, eq=False)
class Answer:
    """The answer to one HTTP request. Begin it, iterate over it, and always close it."""

    id: str  # unique; of the log, and of the body
    prepared: Prepared
    text: TextModel
    metrics: GatewayMetrics
    usage: Usage = field(default_factory=Usage)
    _runs: list[_Run] = field(default_factory=list[_Run])
    _refused: bool = False  # early, for what it is owed
    _arrived: asyncio.Event = field(default_factory=asyncio.Event)  # something, at some stream
    _began: float = field(default_factory=time.perf_counter)

    async def begin(self, engine: Engine) -> None:
        """Until every worker of every prompt has accepted. Raises a BatonError if one does not."""
        n = self.prepared.n
        for at, prompt in enumerate(self.prepared.prompts):
            request = RequestId(f"{self.id}-{at}")
            generate = Generate(
                request=request,
                prompt=prompt.ids,
                n=n,
                params=prompt.params,
                salt=self.prepared.salt,
                slo=self.prepared.slo,
                timeout_s=self.prepared.timeout_s,
                priority=self.prepared.priority,
            )
            choices = [_Choice(at * n + i, self._text_stream(prompt)) for i in range(n)]
            self._runs.append(_Run(prompt, engine.submit(generate, self._arrived), choices))
            self.usage.prompt_tokens += len(prompt.ids)
            self._count_request(prompt)
        for run in self._runs:
            try:
                await run.stream.admitted()
            except SloMissed:
                self._refused = True
                raise

    def _text_stream(self, prompt: Prompt) -> TextStream:
        prepared = self.prepared
        detokenizer = Detokenizer(
            self.text.tokenizer,
            skip_special_tokens=prepared.skip_special_tokens,
            prompt_ids=prompt.ids if prepared.echo else (),
        )
        stops = StopStrings(prepared.stops, include_in_output=prepared.include_stop)
        return TextStream(detokenizer, stops, min_tokens=prepared.min_tokens)

    def close(self) -> None:
        """Whatever still runs is wanted no more. Idempotent."""
        runs, self._runs = self._runs, []
        for run in runs:
            run.stream.quit()
            if not self._refused:  # that is counted by itself
                self._judge_missing(run)

    async def pieces(self) -> AsyncIterator[tuple[Piece, ...]]:
        """What all choices gain, in the order it comes. Raises a BatonError that ends it early."""
        running = self._runs
        while running:
            self._arrived.clear()
            pieces: list[Piece] = []
            try:
                for run in running:
                    pieces += self._take(run, run.stream.take())
            except BatonError:
                if pieces:  # what the others said before one of them broke
                    yield tuple(pieces)
                raise
            running = [run for run in running if not run.over]
            if pieces:
                yield tuple(pieces)
            elif running:
                await self._arrived.wait()

    def _take(self, run: _Run, deltas: Sequence[Delta]) -> list[Piece]:
        pieces: list[Piece] = []
        now = time.perf_counter()
        for delta in deltas:
            if not run.echoed:
                run.echoed = True
                self.usage.cached_tokens += delta.cached_tokens or 0
                self.metrics.cached_prompt_tokens_total.inc(delta.cached_tokens or 0)
                if self.prepared.echo:
                    pieces += self._echo(run, delta)
                if self.prepared.prompt_logprobs is not None:
                    scores = delta.prompt_logprobs or ()
                    pieces += [Piece(one.index, "", prompt_scores=scores) for one in run.choices]
            choice = run.choices[delta.sample]
            if not choice.over:
                self._time(choice, now)
                pieces += self._extend(run, choice, delta)
        if run.over:
            run.stream.quit()
        return pieces

    def _echo(self, run: _Run, delta: Delta) -> list[Piece]:
        """The prompt, as every choice of it begins."""
        ids, text = run.prompt.ids, run.prompt.text
        offsets, whole = self._offsets(ids)
        if text is None:
            text = whole
        elif whole.endswith(text):  # what encoding put before it is not the client's
            added = len(whole) - len(text)
            offsets = [max(0, offset - added) for offset in offsets]
        scored: tuple[Scored, ...] = ()
        if delta.prompt_logprobs is not None and self.prepared.logprobs is not None:
            scored = tuple(map(Scored, ids, delta.prompt_logprobs, offsets))
        for choice in run.choices:
            choice.offset = len(text)
        return [Piece(choice.index, text, scored=scored) for choice in run.choices]

    def _offsets(self, ids: Sequence[int]) -> tuple[list[int], str]:
        """Of each token of a prompt, the characters before its own; and all of them."""
        detokenizer = Detokenizer(self.text.tokenizer, skip_special_tokens=False)
        offsets: list[int] = []
        text = ""
        for token in ids:
            offsets.append(len(text))
            text += detokenizer.push(token)
        return offsets, text + detokenizer.finish()

    def _extend(self, run: _Run, choice: _Choice, delta: Delta) -> list[Piece]:
        if not self.prepared.generates:
            choice.over = True
            self._count_choice(choice, "length")
            return [Piece(choice.index, "", finish="length")]
        ended_by_token = delta.finish is FinishReason.STOP
        hides_last = ended_by_token and not self.prepared.include_stop
        got = choice.text.push(delta.tokens, last_is_stop_token=hides_last)
        text, stopped_on = got.text, got.stopped_on
        if stopped_on is None and delta.finish is not None:
            rest = choice.text.finish()
            text, stopped_on = text + rest.text, rest.stopped_on
        self.usage.completion_tokens += got.n_tokens
        self.metrics.generation_tokens_total.inc(got.n_tokens)
        finish: str | None = None if delta.finish is None else str(delta.finish)
        reason: str | int | None = stopped_on
        if stopped_on is not None:
            finish = "stop"
            run.stream.stop(delta.sample)
        elif ended_by_token and delta.tokens[-1] in run.prompt.params.stop_token_ids:
            reason = delta.tokens[-1]
        scored: tuple[Scored, ...] = ()
        if self.prepared.scores:
            rows = zip(delta.tokens, delta.logprobs, got.text_offsets, strict=False)
            scored = tuple(Scored(t, p, choice.offset + at) for t, p, at in rows)
        if finish is not None:
            choice.over = True
            self._count_choice(choice, finish)
        tokens = delta.tokens[: got.n_tokens] if self.prepared.return_token_ids else ()
        n_tokens = choice.text.n_tokens
        return [Piece(choice.index, text, tokens, scored, finish, reason, n_tokens)]

    # --- metrics -----------------------------------------------------------------------------

    def _count_request(self, prompt: Prompt) -> None:
        self.metrics.prompt_tokens_total.inc(len(prompt.ids))
        self.metrics.request_prompt_tokens.observe(len(prompt.ids))
        self.metrics.request_params_max_tokens.observe(prompt.params.max_tokens)
        self.metrics.request_params_n.observe(self.prepared.n_told)

    def _time(self, choice: _Choice, now: float) -> None:
        if choice.first_at is None:
            choice.first_at = now
            self.metrics.time_to_first_token_seconds.observe(now - self._began)
            self._judge("ttft", self.prepared.slo.ttft_s, now - self._began)
        else:
            self.metrics.inter_token_latency_seconds.observe(now - choice.last_at)
        choice.last_at = now

    def _count_choice(self, choice: _Choice, finish: str) -> None:
        n_tokens = choice.text.n_tokens
        self.metrics.success(finish)
        self.metrics.request_generation_tokens.observe(n_tokens)
        self.metrics.e2e_request_latency_seconds.observe(choice.last_at - self._began)
        if n_tokens > 1 and choice.first_at is not None:
            decode_s = choice.last_at - choice.first_at
            mean = decode_s / (n_tokens - 1)
            self.metrics.request_decode_time_seconds.observe(decode_s)
            self.metrics.request_time_per_output_token_seconds.observe(mean)
            self._judge("tpot", self.prepared.slo.tpot_s, mean)

    def _judge_missing(self, run: _Run) -> None:
        """First tokens that are owed by now, and never came."""
        owed_s, waited_s = self.prepared.slo.ttft_s, time.perf_counter() - self._began
        if owed_s is not None and waited_s > owed_s:
            for choice in run.choices:
                if choice.first_at is None:
                    self.metrics.slo("ttft", met=False)

    def _judge(self, slo: str, owed_s: float | None, took_s: float) -> None:
        if owed_s is not None:
            self.metrics.slo(slo, met=took_s <= owed_s)
