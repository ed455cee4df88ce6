"""OpenTelemetry spans of requests: one for each, its attempts below it, and the stages of these.

All are made here, when a request is over and the workers have told of it: workers know nothing of
spans. They leave by the SDK's own thread and bounded queue, which drops what it cannot hold; a
request never waits for them. Imports OpenTelemetry, so it is itself imported only where traces are
wanted (`launch.gateway.traces_endpoint`). Must decide nothing.
"""

import atexit
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from common.engine.events import Event, Note
from common.errors import SetupError
from common.worker_metrics import SHORT_INSTANCE
from launch.gateway.api.delivery import REQUEST_ID
from launch.gateway.stories import Attempt, Stories, Story
from launch.gateway.transfers import Generate

EXPORT_S = 3.0  # tries included
EXIT_S = 1.0  # for the last spans to leave
LINGER_S = 2.5  # after a request: workers tell of it once a second
MAX_LINGERING = 8192
TRACEPARENT, TRACESTATE, TRACERESPONSE = "traceparent", "tracestate", "traceresponse"
_OPERATIONS = {
    "/v1/completions": "text_completion",
    "/v1/chat/completions": "chat",
    "/v1/responses": "chat",
}
_PROPAGATOR = TraceContextTextMapPropagator()

Attributes = dict[str, str | bool | int | float | list[str]]


class Exporter(OTLPSpanExporter):
    """At the process's exit, what a collector does not take soon is dropped."""

    def __init__(self, endpoint: str) -> None:
        super().__init__(endpoint, timeout=EXPORT_S)
        self._give_up_at: float | None = None

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        if self._give_up_at is not None and time.monotonic() >= self._give_up_at:
            return SpanExportResult.FAILURE
        return super().export(spans)

    def exiting(self) -> None:
        self._give_up_at = time.monotonic() + EXIT_S


def provider(endpoint: str) -> TracerProvider:
    """Sends to `endpoint` by OTLP over HTTP. Its name, sampler, headers, queue and certificates are
    set by OpenTelemetry's own variables (OTEL_SERVICE_NAME, OTEL_TRACES_SAMPLER, ...). Raises
    SetupError where one of these makes no sense."""
    try:
        return _provider(endpoint)
    except ValueError as error:
        raise SetupError(f"one of OpenTelemetry's variables (OTEL_...): {error}") from error


def _provider(endpoint: str) -> TracerProvider:
    ours = {"service.name": "baton", "service.version": version("baton-serving")}
    made = TracerProvider(resource=Resource(ours).merge(OTELResourceDetector().detect()))
    exporter = Exporter(endpoint)
    made.add_span_processor(BatchSpanProcessor(exporter))
    atexit.register(exporter.exiting)  # called before the provider's own, which sends the rest
    logging.getLogger(OTLPSpanExporter.__module__).setLevel(logging.ERROR)  # not each try
    return made


@dataclass(slots=True, eq=False)
class _Call:
    """An HTTP request that is traced. Times are seconds, the clock's."""

    span: Span
    answer: str = ""  # its id; "": it was refused before it had one
    status: int = 0
    ended: float = 0.0


class Tracing:
    """A watcher of the engine, told by `Traced` of the HTTP requests. The event loop's thread's."""

    def __init__(
        self, tracer: Tracer, model: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._tracer = tracer
        self._model = model
        self._clock = clock
        self._stories = Stories(clock)
        self._over: deque[_Call] = deque()  # in the order of their ends
        atexit.register(self.flush)

    def submitted(self, generate: Generate) -> None:
        self._stories.submitted(generate)

    def note(self, note: Note) -> None:
        self._stories.note(note)

    def heard(self, event: Event) -> None:
        self._stories.heard(event)
        self._tell(self._clock() - LINGER_S)

    # --- HTTP requests -----------------------------------------------------------------------

    def begin(self, operation: str, scope: Scope) -> _Call:
        told = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        carrier = {name: told[name] for name in (TRACEPARENT, TRACESTATE) if name in told}
        span = self._tracer.start_span(
            f"{operation} {self._model}",
            _PROPAGATOR.extract(carrier),
            kind=SpanKind.SERVER,
            start_time=self._unix_ns(self._clock()),
            attributes={
                "http.request.method": "POST",
                "url.path": scope["path"],
                "gen_ai.operation.name": operation,
                "gen_ai.provider.name": "baton",
                "gen_ai.request.model": self._model,
            },
        )
        return _Call(span)

    def ended(self, call: _Call) -> None:
        call.ended = self._clock()
        if not call.span.is_recording():  # not sampled
            self._stories.take(call.answer)
            return
        self._over.append(call)
        self._tell(call.ended - LINGER_S if len(self._over) <= MAX_LINGERING else call.ended)

    # --- spans -------------------------------------------------------------------------------

    def flush(self) -> None:
        """Tell of all that is over."""
        self._tell(self._clock())

    def _tell(self, ended_by: float) -> None:
        while self._over and self._over[0].ended <= ended_by:
            call = self._over.popleft()
            self._end(call, self._stories.take(call.answer))

    def _end(self, call: _Call, stories: list[Story]) -> None:
        span = call.span
        below = set_span_in_context(span)
        for story in stories:
            for attempt in story.attempts:
                self._attempt(below, story, attempt, call)
            if story.first_token is not None:
                span.add_event("first token", {}, self._unix_ns(story.first_token))
        span.set_attributes(_of_call(call, stories))
        trouble = next((story.trouble for story in stories if story.trouble), "")
        if call.status >= 500 or trouble:
            span.set_status(Status(StatusCode.ERROR, trouble or None))
        span.end(self._unix_ns(call.ended))

    def _attempt(self, below: Context, story: Story, attempt: Attempt, call: _Call) -> None:
        ended = attempt.ended or story.ended or call.ended
        attributes: Attributes = {
            "baton.request": story.generate.request,
            "baton.attempt": attempt.number,
            "baton.decision": attempt.decision,
            "baton.reason": attempt.reason,
        }
        span = self._tracer.start_span(
            "attempt", below, attributes=attributes, start_time=self._unix_ns(attempt.began)
        )
        inside = set_span_in_context(span)
        for stage in attempt.stages(ended):
            worker = {"baton.worker": stage.worker[:SHORT_INSTANCE]}
            begin, end = self._unix_ns(stage.begin), self._unix_ns(stage.end)
            child = self._tracer.start_span(stage.name, inside, attributes=worker, start_time=begin)
            child.end(max(begin, end))
        if attempt.trouble:
            span.set_status(Status(StatusCode.ERROR, attempt.trouble))
        span.end(self._unix_ns(ended))

    def _unix_ns(self, at: float) -> int:
        """Of the clock's seconds, by the difference of the two now."""
        return time.time_ns() - round((self._clock() - at) * 1e9)


def _of_call(call: _Call, stories: list[Story]) -> Attributes:
    """By OpenTelemetry's conventions for generative AI; `gen_ai.latency.*` are vLLM's."""
    attributes: Attributes = {"http.response.status_code": call.status}
    if not stories:
        return attributes
    first = stories[0]
    params = first.generate.params
    attributes |= {
        "gen_ai.response.id": call.answer,
        "gen_ai.request.max_tokens": params.max_tokens,
        "gen_ai.request.temperature": params.temperature,
        "gen_ai.request.top_p": params.top_p,
        "gen_ai.request.choice.count": first.generate.n,
        "gen_ai.usage.input_tokens": sum(len(story.generate.prompt) for story in stories),
        "gen_ai.usage.output_tokens": sum(story.output_tokens for story in stories),
        "gen_ai.response.finish_reasons": [story.finish for story in stories if story.finish],
        "gen_ai.latency.e2e": call.ended - first.arrived,
    }
    if first.first_token is not None:
        attributes["gen_ai.latency.time_to_first_token"] = first.first_token - first.arrived
    return attributes


class Traced:
    """ASGI: requests for answers are traced; whoever asked is told the span in `traceresponse`, as
    W3C names it."""

    def __init__(self, app: ASGIApp, tracing: Tracing) -> None:
        self._app = app
        self._tracing = tracing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        operation = _OPERATIONS.get(scope.get("path", ""))
        if operation is None or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        call = self._tracing.begin(operation, scope)

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                call.status = message["status"]
                message = {**message, "headers": [*message["headers"], *_told(call.span)]}
            await send(message)

        try:
            await self._app(scope, receive, answer)
        except Exception:
            call.status = 500
            raise
        finally:
            call.answer = scope.get(REQUEST_ID, "")
            self._tracing.ended(call)


def _told(span: Span) -> list[tuple[bytes, bytes]]:
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier, set_span_in_context(span))
    return [(TRACERESPONSE.encode(), carrier[TRACEPARENT].encode())]
