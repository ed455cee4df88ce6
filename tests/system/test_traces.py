"""Traces of a real server, as a collector receives them: one tree for each request; and its log."""

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from signal import SIGKILL

import openai
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from tests.api_client import until
from tests.servers import RunningServer, serving
from tests.system.streams import SMALL, connected

pytestmark = pytest.mark.slow
PROMPT = [(7 * n) % 40_000 + 500 for n in range(200)]  # several chunks, so pages travel early
TRACE, CALLER = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
CLOCKS_S = 0.05  # by which times may differ that two processes took


@dataclass(slots=True, eq=False)
class Collector:
    """What was sent to it."""

    url: str = ""
    service: dict[str, str] = field(default_factory=dict[str, str])
    spans: list[Span] = field(default_factory=list[Span])

    def take(self, body: bytes) -> None:
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            told = resource.resource.attributes
            self.service = {one.key: one.value.string_value for one in told}
            for scope in resource.scope_spans:
                self.spans += scope.spans

    def of(self, trace: str) -> list[Span]:
        return [span for span in self.spans if span.trace_id.hex() == trace]


@contextmanager
def collecting() -> Iterator[Collector]:
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert (self.path, self.headers["content-type"]) == (
                "/v1/traces",
                "application/x-protobuf",
            )
            collector.take(self.rfile.read(int(self.headers["content-length"])))
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_response(200)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        collector.url = f"http://127.0.0.1:{server.server_port}"
        try:
            yield collector
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with collecting() as made:
        yield made


@pytest.fixture(scope="module")
def traced(default_model: Path, collector: Collector) -> Iterator[RunningServer]:
    where = ("--otlp-traces-endpoint", collector.url, "--log-format", "json")
    with serving(default_model, *SMALL, "--disaggregate", "always", *where) as running:
        yield running


def attributes(span: Span) -> dict[str, object]:
    values = {one.key: one.value for one in span.attributes}
    return {key: getattr(v, v.WhichOneof("value") or "") for key, v in values.items()}


def below(spans: list[Span], parent: Span) -> dict[str, Span]:
    return {span.name: span for span in spans if span.parent_span_id == parent.span_id}


def assert_inside(inner: Span, outer: Span) -> None:
    slack_ns = CLOCKS_S * 1e9
    assert outer.start_time_unix_nano - slack_ns <= inner.start_time_unix_nano
    assert inner.start_time_unix_nano <= inner.end_time_unix_nano
    assert inner.end_time_unix_nano <= outer.end_time_unix_nano + slack_ns


def stream(client: openai.OpenAI, trace: str, n_tokens: int) -> Iterator[str]:
    """Texts, as they come. First the header that tells of the span."""
    with client.completions.with_streaming_response.create(
        model="smollm2",
        prompt=PROMPT,
        stream=True,
        max_tokens=n_tokens,
        temperature=0,
        extra_body={"ignore_eos": True},
        extra_headers={"traceparent": f"00-{trace}-{CALLER}-01"},
    ) as response:
        yield response.headers["traceresponse"]
        yield from response.iter_lines()


def test_a_streamed_request_as_a_tree(traced: RunningServer, collector: Collector) -> None:
    with connected(traced) as client:
        told, *lines = stream(client, TRACE, 12)
        assert lines[-2] == "data: [DONE]"
    until(lambda: len(collector.of(TRACE)) == 6, "its spans", within_s=20)
    assert collector.service["service.name"] == "baton"
    spans = collector.of(TRACE)
    root = next(span for span in spans if span.parent_span_id.hex() == CALLER)
    assert told == f"00-{TRACE}-{root.span_id.hex()}-01"
    assert (root.name, root.kind) == ("text_completion smollm2", Span.SPAN_KIND_SERVER)
    said = attributes(root)
    assert said["gen_ai.usage.input_tokens"] == len(PROMPT)
    assert said["gen_ai.usage.output_tokens"] == 12
    assert said["http.response.status_code"] == 200
    (attempt,) = below(spans, root).values()
    assert attributes(attempt)["baton.decision"] == "remote"
    stages = below(spans, attempt)
    assert stages.keys() == {"queue", "prefill", "transfer", "decode"}
    assert_inside(attempt, root)
    for stage in stages.values():
        assert_inside(stage, attempt)
    workers = {name: attributes(span)["baton.worker"] for name, span in stages.items()}
    assert workers["queue"] == workers["prefill"] != workers["decode"] == workers["transfer"]
    begins = {name: span.start_time_unix_nano for name, span in stages.items()}
    assert begins["queue"] <= begins["prefill"] < begins["decode"]
    assert begins["prefill"] <= begins["transfer"] <= begins["decode"]
    first = root.events[0].time_unix_nano
    assert begins["prefill"] < first < root.end_time_unix_nano
    assert said["gen_ai.latency.time_to_first_token"] == pytest.approx(
        (first - root.start_time_unix_nano) / 1e9, abs=CLOCKS_S
    )


def test_each_line_of_its_log_is_an_object(traced: RunningServer) -> None:
    with connected(traced) as client:
        answer = client.completions.create(model="smollm2", prompt="a secret", max_tokens=3)
    until(lambda: answer.id in traced.log(), "how it ended")
    *lines, rest = traced.log().split("\n")
    assert rest == ""
    told = [json.loads(line) for line in lines]
    assert {"time", "level", "process", "event"} <= set.intersection(*map(set, told))
    (ended,) = (one for one in told if one.get("request") == f"{answer.id}-0")
    assert (ended["event"], ended["tokens"], ended["level"]) == ("finished", 3, "info")
    assert {one["process"].partition("-")[0] for one in told} == {"gateway", "prefill", "decode"}
    assert "secret" not in traced.log()


@pytest.mark.full
def test_the_attempt_that_a_worker_died_of_and_the_next(
    traced: RunningServer, collector: Collector
) -> None:
    trace = TRACE[::-1]
    with connected(traced) as client:
        events = stream(client, trace, 40)
        for _ in range(8):
            next(events)
        (pid,) = traced.workers("decode")
        os.kill(pid, SIGKILL)
        *_, done, _ = events
        assert done == "data: [DONE]"
    until(lambda: len(collector.of(trace)) >= 6, "its spans", within_s=30)
    spans = collector.of(trace)
    root = next(span for span in spans if span.parent_span_id.hex() == CALLER)
    attempts = sorted(
        (span for span in spans if span.name == "attempt"),
        key=lambda span: span.start_time_unix_nano,
    )
    assert [attributes(span)["baton.attempt"] for span in attempts] == [1, 2]
    assert [span.status.code for span in attempts] == [
        Status.STATUS_CODE_ERROR,
        Status.STATUS_CODE_UNSET,
    ]
    assert all(span.parent_span_id == root.span_id for span in attempts)
    assert attempts[0].end_time_unix_nano <= attempts[1].start_time_unix_nano
    assert "prefill" in below(spans, attempts[0])
    assert "decode" in below(spans, attempts[1])
    assert attributes(root)["gen_ai.usage.output_tokens"] == 40
    assert root.status.code == Status.STATUS_CODE_UNSET
