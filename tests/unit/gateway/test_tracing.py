"""What becomes of a request, as spans: the tree, its times, and what is known of each."""

import asyncio
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from starlette.types import Message, Receive, Scope, Send

from common.engine.events import Note, Received
from common.errors import SetupError
from common.ids import InstanceId, TransferId
from common.messages import Marks
from common.moments import Mark, Moment
from launch.gateway.api.delivery import REQUEST_ID
from launch.gateway.stories import MAX_ANSWERS, Stories
from launch.gateway.traces_endpoint import traces_url
from launch.gateway.tracing import EXIT_S, EXPORT_S, LINGER_S, Exporter, Traced, Tracing, provider
from tests.unit.gateway.builders import D2, D, P, T, generate

ANSWER, REQUEST = "cmpl-1", "cmpl-1-0"
TRACE, CALLER = 0xAF7651916CD43DD8448EB211C80319C5, 0xB7AD6B7169203331
PARENT = f"00-{TRACE:032x}-{CALLER:016x}-01"


class Bench:
    """A traced application whose engine is played by the test, and a clock that the test turns."""

    def __init__(self) -> None:
        self.now = 100.0
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracing = Tracing(provider.get_tracer("test"), "tiny", lambda: self.now)
        self.headers: dict[bytes, bytes] = {}

    def note(self, name: str, attempt: int = 1, transfer: TransferId = T, **fields: Any) -> None:  # noqa: ANN401
        self.tracing.note(Note(transfer, attempt, name, fields))

    def routed(self, attempt: int = 1, **fields: Any) -> None:  # noqa: ANN401
        why = {"request": REQUEST, "decision": "remote", "reason": "flag"}
        self.note("routed", attempt, **{**why, "prefill": P, "decode": D, **fields})

    def marks(self, sender: InstanceId, *marks: tuple[Moment, float], attempt: int = 1) -> None:
        told = tuple(Mark(T, attempt, moment, self.now - at) for moment, at in marks)
        self.tracing.heard(Received(sender, Marks(marks=told)))

    def ask(self, *, status: int = 200, parent: str = "", answer: str = ANSWER) -> None:
        """A request that is over at once; `answer` "": it was refused before it had an id."""

        async def app(scope: Scope, _: Receive, send: Send) -> None:
            if answer:
                scope[REQUEST_ID] = answer
            await send({"type": "http.response.start", "status": status, "headers": []})
            await send({"type": "http.response.body", "body": b""})

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.headers = dict(message["headers"])

        async def receive() -> Message:
            raise AssertionError

        headers = [(b"traceparent", parent.encode())] if parent else []
        scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": headers}
        asyncio.run(Traced(app, self.tracing)(scope, receive, send))

    def spans(self) -> dict[str, ReadableSpan]:
        """By name; of attempts and their stages, that of attempt n as `name n`."""
        found: dict[str, ReadableSpan] = {}
        all_spans = self._exporter.get_finished_spans()
        numbers = {s.context.span_id: s.attributes["baton.attempt"] for s in all_spans
                   if s.name == "attempt" and s.context and s.attributes}  # fmt: skip
        for span in all_spans:
            assert span.context is not None
            above = span.parent.span_id if span.parent else 0
            number = numbers.get(span.context.span_id) or numbers.get(above)
            found[span.name if number is None else f"{span.name} {number}"] = span
        assert len(found) == len(all_spans)
        return found

    def later(self) -> dict[str, ReadableSpan]:
        """When workers have had the time to tell."""
        self.now += LINGER_S
        self.marks(D)
        return self.spans()


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.tracing.flush()


def took(span: ReadableSpan) -> float:
    assert span.start_time is not None
    assert span.end_time is not None
    return (span.end_time - span.start_time) / 1e9


def test_a_request_its_attempt_and_the_stages_of_that(bench: Bench) -> None:
    bench.tracing.submitted(generate(REQUEST, n_prompt=5))
    bench.routed()
    bench.now = 101.0
    bench.note("first_token")
    bench.now = 103.0
    bench.note("finished", request=REQUEST, tokens=7, longest=7, finish="length")
    bench.ask(parent=PARENT)
    bench.marks(
        P, (Moment.QUEUED, 100.0), (Moment.CONTEXT_BEGIN, 100.25), (Moment.CONTEXT_END, 101)
    )
    bench.marks(D, (Moment.QUEUED, 100.0), (Moment.MIGRATION_BEGIN, 100.5))
    bench.marks(D, (Moment.MIGRATION_END, 101.5), (Moment.DECODING_BEGIN, 101.5))
    bench.marks(D, (Moment.DECODING_END, 102.75))
    assert bench.spans() == {}  # not before workers can have told of it
    spans = bench.later()
    root = spans.pop("text_completion tiny")
    assert root.context is not None
    assert root.parent is not None
    assert (root.parent.trace_id, root.parent.span_id, root.kind) == (
        TRACE,
        CALLER,
        SpanKind.SERVER,
    )
    told = bench.headers[b"traceresponse"].decode()
    assert told == f"00-{TRACE:032x}-{root.context.span_id:016x}-01"
    assert dict(root.attributes or {}) == {
        "http.request.method": "POST",
        "url.path": "/v1/completions",
        "http.response.status_code": 200,
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "baton",
        "gen_ai.request.model": "tiny",
        "gen_ai.response.id": ANSWER,
        "gen_ai.request.max_tokens": generate().params.max_tokens,
        "gen_ai.request.temperature": generate().params.temperature,
        "gen_ai.request.top_p": 1.0,
        "gen_ai.request.choice.count": 1,
        "gen_ai.usage.input_tokens": 5,
        "gen_ai.usage.output_tokens": 7,
        "gen_ai.response.finish_reasons": ("length",),
        "gen_ai.latency.e2e": 3.0,
        "gen_ai.latency.time_to_first_token": 1.0,
    }
    assert [event.name for event in root.events] == ["first token"]
    attempt = spans.pop("attempt 1")
    assert attempt.parent == root.context
    assert took(attempt) == pytest.approx(3.0, abs=0.2)
    assert {name: round(took(span), 2) for name, span in spans.items()} == {
        "queue 1": 0.25,
        "prefill 1": 0.75,
        "transfer 1": 1.0,
        "decode 1": 1.25,
    }
    assert all(span.parent == attempt.context for span in spans.values())
    assert (spans["prefill 1"].attributes or {})["baton.worker"] == P[:8]
    assert (spans["decode 1"].attributes or {})["baton.worker"] == D[:8]


def test_an_attempt_that_failed_and_the_next_one(bench: Bench) -> None:
    bench.tracing.submitted(generate(REQUEST))
    bench.routed()
    bench.marks(D, (Moment.DECODING_BEGIN, 100.0))
    bench.now = 102.0
    bench.note("failed", detail="lost d")
    bench.routed(attempt=2, decision="local", prefill=None, decode=D2)
    begun = (Moment.QUEUED, 102.0), (Moment.CONTEXT_BEGIN, 102.5), (Moment.CONTEXT_END, 103.0)
    bench.now = 104.0
    bench.marks(D2, *begun, attempt=2)
    bench.note("aborted", 2, request=REQUEST, tokens=3)
    bench.ask()
    spans = bench.later()
    root = spans["text_completion tiny"]
    assert root.status.status_code is StatusCode.UNSET
    failed, second = spans["attempt 1"], spans["attempt 2"]
    assert (failed.status.status_code, failed.status.description) == (StatusCode.ERROR, "lost d")
    assert took(spans["decode 1"]) == pytest.approx(2.0, abs=0.2)  # to the end of its attempt
    assert second.status.status_code is StatusCode.UNSET
    assert (second.attributes or {})["baton.decision"] == "local"
    assert took(spans["prefill 2"]) == pytest.approx(0.5, abs=0.2)
    assert (root.attributes or {})["gen_ai.response.finish_reasons"] == ("aborted",)


def test_what_is_refused_has_a_span_by_itself(bench: Bench) -> None:
    bench.ask(status=400, answer="")
    (refused,) = bench.later().values()
    assert refused.status.status_code is StatusCode.UNSET  # the client's doing
    assert (refused.attributes or {})["http.response.status_code"] == 400


def test_what_no_worker_takes_is_an_error(bench: Bench) -> None:
    bench.tracing.submitted(generate(REQUEST))
    bench.note("failed", 0, request=REQUEST, detail="no worker")
    bench.ask(status=503)
    (failed,) = bench.later().values()
    assert (failed.status.status_code, failed.status.description) == (StatusCode.ERROR, "no worker")


def test_what_its_caller_does_not_sample_leaves_nothing(bench: Bench) -> None:
    bench.tracing.submitted(generate(REQUEST))
    bench.ask(parent=PARENT[:-1] + "0")
    assert bench.later() == {}
    assert bench.headers[b"traceresponse"].endswith(b"-00")


def test_of_more_requests_than_are_kept_the_oldest_are_forgotten() -> None:
    stories = Stories()
    for n in range(MAX_ANSWERS + 1):
        stories.submitted(generate(f"cmpl-{n}-0"))
    assert stories.take("cmpl-0") == []
    assert len(stories.take(f"cmpl-{MAX_ANSWERS}")) == 1


def test_a_collector_that_is_not_there_keeps_no_process_from_its_end() -> None:
    with socket.socket() as nobody:  # bound, and not listening
        nobody.bind(("127.0.0.1", 0))
        exporter = Exporter(f"http://127.0.0.1:{nobody.getsockname()[1]}/v1/traces")
        exporter.exiting()
        began = time.monotonic()
        while time.monotonic() < began + EXIT_S:
            assert exporter.export([]) is SpanExportResult.FAILURE
        assert time.monotonic() < began + EXIT_S + EXPORT_S + 1
        exporter.shutdown()


def test_where_traces_go() -> None:
    assert traces_url("http://localhost:4318") == "http://localhost:4318/v1/traces"
    assert traces_url("https://there/otlp/x") == "https://there/otlp/x"
    for endpoint in ("localhost:4317", "grpc://localhost:4317", "http://"):
        with pytest.raises(SetupError, match="OTLP over HTTP"):
            traces_url(endpoint)


def test_without_the_packages_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launch.gateway.traces_endpoint._NEEDED", ("opentelemetry.not_there.x",))
    with pytest.raises(SetupError, match=r"pip install 'baton-serving\[otel\]'"):
        traces_url("http://localhost:4318")


@pytest.mark.parametrize(
    "variable",
    ["OTEL_BSP_SCHEDULE_DELAY", "OTEL_BSP_MAX_QUEUE_SIZE", "OTEL_SPAN_EVENT_COUNT_LIMIT"],
)
def test_a_variable_of_opentelemetrys_that_makes_no_sense(
    variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "-5")
    with pytest.raises(SetupError, match="OpenTelemetry's variables"):
        provider("http://127.0.0.1:1/v1/traces")
