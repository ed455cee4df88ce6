"""Tokens to choices: the streams of a request's prompts, each sample's text, and what it used.

Knows the order of an answer, not its form: `chat_form` and `completion_form` render it.
"""

import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Sequence
from dataclasses import dataclass, field

import msgspec

from common.errors import BatonError, SloMissed
from common.metrics import GatewayMetrics
from common.params import FinishReason, TokenLogprob
from common.text.detokenize import Detokenizer
from common.text.load import TextModel
from common.text.stops import StopStrings
from common.text.stream import TextStream
from launch.gateway.api.prepare import Prepared, Prompt
from launch.gateway.arrival import Arrival
from launch.gateway.engine import Engine, Stream
from launch.gateway.events import Delta
from launch.gateway.transfers import Generate, RequestId

FIRST_PROMPTS = 16
"""Of an answer: workers must accept all of them before it begins, and of the others no more are
asked about at a time."""


class Scored(msgspec.Struct, frozen=True, gc=False):
    """A token with its log-probability (None: a prompt's first) and its place in the text."""

    token: int
    logprob: TokenLogprob | None
    offset: int


class Piece(msgspec.Struct, frozen=True, gc=False):
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
    n_open: int  # of these: not over
    echoed: bool = False

    @property
    def over(self) -> bool:
        return not self.n_open


@dataclass(slots=True, eq=False)
class Answer:
    """The answer to one HTTP request. Begin it, iterate over it, and always close it."""

    id: str  # unique; of the log, and of the body
    prepared: Prepared
    text: TextModel
    metrics: GatewayMetrics
    usage: Usage = field(default_factory=Usage)
    _runs: list[_Run] = field(default_factory=list[_Run])
    _running: list[_Run] = field(default_factory=list[_Run])  # of these
    _waiting: deque[Prompt] = field(default_factory=deque[Prompt])  # until others are through
    _engine: Engine | None = None
    _broken: BatonError | None = None  # how it has ended, to be told next
    _refused: bool = False  # early, for what it is owed
    _arrived: Arrival = field(default_factory=Arrival)  # something, at some stream
    _began: float = field(default_factory=time.perf_counter)

    async def begin(self, engine: Engine) -> None:
        """Until workers have accepted the first prompts. Raises a BatonError if one does not; the
        others wait for room."""
        self._engine = engine
        self._waiting.extend(self.prepared.prompts)
        for prompt in self.prepared.prompts:
            self.usage.prompt_tokens += len(prompt.ids)
            self._count_request(prompt)
        first = [self._submit(engine) for _ in self.prepared.prompts[:FIRST_PROMPTS]]
        for run in first:
            try:
                await run.stream.admitted()
            except SloMissed:
                self._refused = True
                raise
        self._go_on()

    def _submit(self, engine: Engine, *, promised: bool = False) -> _Run:
        """The next prompt that waits."""
        prepared, at = self.prepared, len(self._runs)
        prompt = self._waiting.popleft()
        generate = Generate(
            request=RequestId(f"{self.id}-{at}"),
            prompt=prompt.ids,
            n=prepared.n,
            params=prompt.params,
            salt=prepared.salt,
            slo=prepared.slo,
            timeout_s=prepared.timeout_s,
            priority=prepared.priority,
            fields=prepared.fields,
            waited_s=time.perf_counter() - self._began if promised else 0.0,
            promised=promised,
        )
        choices = [
            _Choice(at * prepared.n + i, self._text_stream(prompt)) for i in range(prepared.n)
        ]
        run = _Run(prompt, engine.submit(generate, self._arrived), choices, prepared.n)
        self._runs.append(run)
        self._running.append(run)
        return run

    def _go_on(self) -> None:
        """Submit prompts that wait, as far as one answer may."""
        while self._waiting and self._engine is not None and self._has_room(self._engine):
            self._submit(self._engine, promised=True)

    def _has_room(self, engine: Engine) -> bool:
        n_seqs = sum(run.n_open for run in self._running)
        n_asked = sum(not run.stream.is_admitted for run in self._running)
        fits = n_seqs + self.prepared.n <= engine.most_seqs_of_one and n_asked < FIRST_PROMPTS
        return fits or not n_seqs

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
        """Whatever still runs or waits is wanted no more. Idempotent."""
        self._waiting.clear()
        runs, self._runs = self._runs, []
        for run in runs:
            run.stream.quit()
            if not self._refused:  # that is counted by itself
                self._judge_missing(run)

    async def pieces(self) -> AsyncIterator[list[Piece]]:
        """What all choices gain, in the order it comes. Raises a BatonError that ends it early."""
        while not self.over:
            if pieces := self.take():
                yield pieces
            elif not self.over:
                await self.more()

    @property
    def over(self) -> bool:
        """Nothing more is to be taken."""
        return not self._running and self._broken is None

    def take(self) -> list[Piece]:
        """What has come since the last call: `pieces` for who is called by nobody else. Raises the
        BatonError that ends the answer early, after what came before it."""
        self._arrived.clear()
        if self._broken is not None:
            raise self._broken
        pieces: list[Piece] = []
        for run in self._running:
            try:
                deltas = run.stream.take()
            except BatonError as error:
                if not pieces:
                    raise
                self._broken = error  # what the others said before one of them broke is told first
                break
            if deltas:
                pieces += self._take(run, deltas)
                if run.over:
                    self._running = [one for one in self._running if not one.over]
        if self._waiting:
            self._go_on()
        return pieces

    def more(self) -> Awaitable[None]:
        """Until something has come since the last `take`. To be awaited at once."""
        return self._arrived.wait()

    def _take(self, run: _Run, deltas: Sequence[Delta]) -> list[Piece]:
        pieces: list[Piece] = []
        now = time.perf_counter()
        for delta in deltas:
            if not run.echoed:
                run.echoed = True
                self.usage.cached_tokens += delta.cached_tokens or 0
                self._count_prompt(run.prompt, delta.cached_tokens or 0)
                if self.prepared.echo:
                    pieces += self._echo(run, delta)
                if self.prepared.prompt_logprobs is not None:
                    scores = delta.prompt_logprobs or ()
                    pieces += [Piece(one.index, "", prompt_scores=scores) for one in run.choices]
            choice = run.choices[delta.sample]
            if not choice.over:
                self._time(choice, now)
                pieces.append(self._extend(run, choice, delta))
        if run.over:
            run.stream.quit()
            longest = max(choice.text.n_tokens for choice in run.choices)
            self.metrics.request_max_num_generation_tokens.observe(longest)
        return pieces

    def _echo(self, run: _Run, delta: Delta) -> list[Piece]:
        """The prompt, as every choice of it begins."""
        ids, text = run.prompt.ids, run.prompt.text
        scored: tuple[Scored, ...] = ()
        if delta.prompt_logprobs is not None and self.prepared.logprobs is not None:
            offsets, whole = self._offsets(ids)
            if text is not None and whole.endswith(text):  # what encoding adds is not the client's
                added = len(whole) - len(text)
                offsets = [max(0, offset - added) for offset in offsets]
            scored = tuple(map(Scored, ids, delta.prompt_logprobs, offsets))
        if text is None:
            text = self.text.tokenizer.decode(ids, skip_special_tokens=False)
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

    def _extend(self, run: _Run, choice: _Choice, delta: Delta) -> Piece:
        prepared = self.prepared
        if not prepared.generates:
            self._end(run, choice, "length")
            return Piece(choice.index, "", finish="length")
        hides_last = delta.finish is FinishReason.STOP and not prepared.include_stop
        got = choice.text.push(delta.tokens, last_is_stop_token=hides_last)
        self.usage.completion_tokens += got.n_tokens
        self.metrics.tally.add(got.n_tokens)
        scored: tuple[Scored, ...] = ()
        if prepared.scores:
            rows = zip(delta.tokens, delta.logprobs, got.text_offsets, strict=False)
            scored = tuple(Scored(t, p, choice.offset + at) for t, p, at in rows)
        text, finish, reason = got.text, None, None
        if delta.finish is not None or got.stopped_on is not None:
            rest, finish, reason = self._finish(run, choice, delta)
            text += rest
        tokens = delta.tokens[: got.n_tokens] if prepared.return_token_ids else ()
        n_tokens = choice.text.n_tokens
        return Piece(choice.index, text, tokens, scored, finish, reason, n_tokens)

    def _finish(
        self, run: _Run, choice: _Choice, delta: Delta
    ) -> tuple[str, str, str | int | None]:
        """Text that was held back to the end, why it ends, and on which stop string or token."""
        rest = choice.text.finish()
        finish, reason = "stop", rest.stopped_on
        if reason is not None:
            run.stream.stop(delta.sample)
        else:
            finish = str(delta.finish)
            if delta.finish is FinishReason.STOP and (
                delta.tokens[-1] in run.prompt.params.stop_token_ids
            ):
                reason = delta.tokens[-1]
        self._end(run, choice, finish)
        return rest.text, finish, reason

    # --- metrics -----------------------------------------------------------------------------

    def _count_request(self, prompt: Prompt) -> None:
        self.metrics.prompt_tokens_total.inc(len(prompt.ids))
        self.metrics.request_prompt_tokens.observe(len(prompt.ids))
        self.metrics.request_params_max_tokens.observe(prompt.params.max_tokens)
        self.metrics.request_params_n.observe(self.prepared.n_told)

    def _count_prompt(self, prompt: Prompt, cached_tokens: int) -> None:
        self.metrics.prompt_tokens_cached_total.inc(cached_tokens)
        n_computed = len(prompt.ids) - cached_tokens
        self.metrics.request_prefill_kv_computed_tokens.observe(n_computed)

    def _time(self, choice: _Choice, now: float) -> None:
        if choice.first_at is None:
            choice.first_at = now
            self.metrics.time_to_first_token_seconds.observe(now - self._began)
            self._judge("ttft", self.prepared.slo.ttft_s, now - self._began)
        else:
            self.metrics.tally.gap(now - choice.last_at)
        choice.last_at = now

    def _end(self, run: _Run, choice: _Choice, finish: str) -> None:
        choice.over = True
        run.n_open -= 1
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
