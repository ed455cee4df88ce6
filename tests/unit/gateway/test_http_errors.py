"""What goes wrong, as a client sees it: always OpenAI's envelope, always the right status."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import httpx2 as httpx
import openai
import pytest

from common.config import ServeConfig
from common.errors import InvariantBroken
from common.ids import TransferId
from common.messages import Expect, Failed, FailureKind, FinishReason, Refused
from common.text.load import TextModel
from tests.unit.gateway.scripted import Said, Served, serving, until

JSON = {"content-type": "application/json"}
MIB = 2**20


def says(_expect: Expect, _sample: int) -> Said:
    return [81, 81], FinishReason.LENGTH


def run(
    text: TextModel,
    test: Callable[[Served], Coroutine[Any, Any, None]],
    *,
    worker_joins: bool = True,
    config: ServeConfig | None = None,
) -> None:
    async def whole() -> None:
        async with serving(text, says, worker_joins=worker_joins, config=config) as served:
            await test(served)

    asyncio.run(whole())


def error(response: httpx.Response, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    (name, detail), *others = response.json().items()
    assert (name, others) == ("error", [])
    assert detail["code"] == status
    assert set(detail) == {"message", "type", "param", "code"}
    return dict(detail)


def test_a_wrong_field_names_itself_its_value_and_what_it_may_be(smollm2: TextModel) -> None:
    async def test(served: Served) -> None:
        response = await served.post("/v1/completions", prompt="a", temperature=3)
        assert error(response, 400) == {
            "message": "temperature: Expected `float` <= 2.0, got 3",
            "type": "invalid_request_error",
            "param": "temperature",
            "code": 400,
        }
        assert response.headers["x-request-id"].startswith("cmpl-")

    run(smollm2, test)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[" * 30_000, "the body is nested too deeply"),
        (b'{"prompt": NaN}', "the body is not valid JSON"),
        (b'{"prompt": "\xff"}', "the body is not valid JSON: Invalid UTF-8"),
        (b'{"prompt": "\\ud800"}', "stands without its partner"),
        (b'{"prompt": "a", "top_k": 99999999999999999999}', "top_k: Expected `int` <= 2147483647"),
        (b'{"prompt": "a", "max_tokens": ' + b"9" * 5000 + b"}", "max_tokens: "),
        (
            b'{"messages": ' + b'[{"a":' * 450 + b"1" + b"}]" * 450 + b"}",
            'unknown field "messages"',
        ),
    ],
)
def test_hostile_bodies(smollm2: TextModel, content: bytes, message: str) -> None:
    async def test(served: Served) -> None:
        response = await served.client.post("/v1/completions", content=content, headers=JSON)
        assert message in error(response, 400)["message"]

    run(smollm2, test)


def test_hostile_chats(smollm2: TextModel) -> None:
    nested = b'[{"a":' * 450 + b"1" + b"}]" * 450
    bodies = {
        b'{"messages": [{"role": "user", "content": ' + nested + b"}]}": "has a part of type",
        b'{"messages": [{"role": "user", "content": "a", "b": ' + nested + b"}]}": None,
        b'{"messages": ' + nested + b"}": "messages[0].role is null",
    }

    async def test(served: Served) -> None:
        for content, message in bodies.items():
            path = "/v1/chat/completions"
            response = await served.client.post(path, content=content, headers=JSON)
            if message is None:
                assert response.status_code == 200
            else:
                assert message in error(response, 400)["message"]

    run(smollm2, test)


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ("text/plain", 'content-type is "text/plain"; send application/json'),
        (None, "there is no content-type; send application/json"),
    ],
)
def test_other_content_types(smollm2: TextModel, told: str | None, message: str) -> None:
    headers = {} if told is None else {"content-type": told}

    async def test(served: Served) -> None:
        response = await served.client.post("/v1/completions", content=b"{}", headers=headers)
        assert error(response, 415)["message"] == message
        ok = {"content-type": "application/json; charset=utf-8"}
        response = await served.client.post("/v1/completions", content=b"{}", headers=ok)
        assert error(response, 400)["message"] == "prompt is required"

    run(smollm2, test)


def test_a_body_that_is_too_long(smollm2: TextModel) -> None:
    async def test(served: Served) -> None:
        content = b" " * (16 * MIB + 1)
        response = await served.client.post("/v1/completions", content=content, headers=JSON)
        assert error(response, 413)["message"] == "the body has 16777217 bytes; at most 16777216"

    run(smollm2, test)


def test_paths_and_methods_that_are_not_there(smollm2: TextModel) -> None:
    async def test(served: Served) -> None:
        response = await served.client.get("/v1/nothing")
        detail = error(response, 404)
        assert detail["message"] == ('there is nothing at "/v1/nothing"; /docs lists what there is')
        assert detail["type"] == "not_found_error"
        response = await served.client.get("/v1/completions")
        assert error(response, 405)["message"] == '"/v1/completions" takes POST, not GET'
        response = await served.client.get("/v1/models/other")
        assert error(response, 404)["param"] == "model"

    run(smollm2, test)


@pytest.mark.parametrize(
    ("path", "host", "query"),
    [
        ("/nowhere", b"[", b""),
        ("/nowhere", b"t", b"\xff"),
        ("/v1/completions/", b"elsewhere", b""),
        ("/\x00", b"\xff", b""),
        ("/docs/assets/\x00", b"t", b""),
        ("/docs/assets/../../x", b"t", b""),
    ],
)
def test_strange_addresses(smollm2: TextModel, path: str, host: bytes, query: bytes) -> None:
    """As no client library would send them."""

    async def test(served: Served) -> None:
        sent: list[Any] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Any) -> None:  # noqa: ANN401
            sent.append(message)

        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": "GET",
            "scheme": "http",
            "path": path,
            "query_string": query,
            "root_path": "",
            "headers": [(b"host", host)],
            "server": ("t", 80),
        }
        await served.app(scope, receive, send)
        start, body = sent
        assert start["status"] == 404
        assert b'"type":"not_found_error"' in body["body"]

    run(smollm2, test, worker_joins=False)


def test_no_worker_is_there_yet(smollm2: TextModel) -> None:
    async def test(served: Served) -> None:
        response = await served.post("/v1/completions", prompt="a")
        assert error(response, 503)["message"] == "no worker is ready yet"
        assert response.headers["retry-after"] == "1"

    run(smollm2, test, worker_joins=False)


def test_a_worker_refuses(smollm2: TextModel) -> None:
    async def test(served: Served) -> None:
        name = TransferId("any")
        served.worker.refusal = Refused(
            transfer=name, attempt=0, reason="256 requests are queued", retry_after_s=2.5
        )
        response = await served.post("/v1/completions", prompt="a")
        assert error(response, 429) == {
            "message": "256 requests are queued",
            "type": "rate_limit_error",
            "param": None,
            "code": 429,
        }
        assert response.headers["retry-after"] == "3"
        served.worker.refusal = Refused(
            transfer=name, attempt=0, reason="9 pages of 8", retry_after_s=None
        )
        response = await served.post("/v1/completions", prompt="a", stream=True)
        said = error(response, 400)
        assert said["message"] == "The request does not fit: 9 pages of 8."
        assert said["param"] == "prompt"
        response = await served.post(
            "/v1/chat/completions", messages=[{"role": "user", "content": "a"}]
        )
        assert error(response, 400)["param"] == "messages"
        response = await served.post("/v1/responses", input="a")
        assert error(response, 400)["param"] == "input"

    run(smollm2, test)


def test_past_the_bound_and_while_stopping(smollm2: TextModel) -> None:
    config = ServeConfig(served_model_name="tiny", max_waiting_requests=1)

    async def test(served: Served) -> None:
        served.admission.enter()
        for path in ("/v1/completions", "/v1/chat/completions", "/tokenize"):
            response = await served.client.post(path, content=b"not read")
            assert "requests in progress: 1 of 1" in error(response, 429)["message"]
            assert response.headers["retry-after"] == "1"
        served.admission.leave()
        served.admission.draining = True
        response = await served.client.post("/v1/completions", content=b"not read")
        assert error(response, 503)["message"] == "the server is stopping"
        assert response.headers["retry-after"] == "5"
        assert served.worker.seen == []

    run(smollm2, test, config=config)


def test_a_pass_that_keeps_failing_ends_the_answer_in_words(smollm2: TextModel) -> None:
    async def fail_all(served: Served) -> None:
        """Every attempt, once it has been seen."""
        failed = 0
        while True:
            for expect in served.worker.seen[failed:]:
                failed += 1
                message = Failed(
                    transfer=expect.transfer,
                    attempt=expect.attempt,
                    kind=FailureKind.COMPUTE,
                    detail="boom",
                    alone=True,
                )
                assert served.worker.gateway is not None
                served.worker.links.send(served.worker.gateway, message, 0.0)
            await asyncio.sleep(0.001)

    async def test(served: Served) -> None:
        served.worker.silent = True
        failing = asyncio.create_task(fail_all(served))
        streamed = await served.client.post("/v1/completions", json={"prompt": "a", "stream": True})
        assert streamed.status_code == 200
        assert streamed.text == (
            'data: {"error":{"message":"the model\'s pass failed: boom","type":"server_error",'
            '"param":null,"code":503}}\n\ndata: [DONE]\n\n'
        )
        whole = await served.post("/v1/completions", prompt="a")
        assert error(whole, 503)["message"] == "the model's pass failed: boom"
        failing.cancel()

    run(smollm2, test)


def test_a_server_that_stops_says_so_instead_of_the_rest(smollm2: TextModel) -> None:
    async def test(served: Served) -> None:
        served.worker.silent = True
        body = {"prompt": "a", "stream": True}
        waiting = asyncio.create_task(served.client.post("/v1/completions", json=body))
        await until(lambda: len(served.worker.jobs) == 1)
        served.engine.close()
        assert '"message":"the server is shutting down"' in (await waiting).text
        late = await served.post("/v1/completions", prompt="a")
        assert error(late, 503)["message"] == "the server is shutting down"

    run(smollm2, test)


class _Broken:
    """A tokenizer's place in a `TextModel`, raising what it is told."""

    def __init__(self, raised: Exception) -> None:
        self._raised = raised

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        raise self._raised


@pytest.mark.parametrize("raised", [ZeroDivisionError("ours"), InvariantBroken("ours")])
def test_a_bug_is_an_envelope_and_a_log_line(
    smollm2: TextModel, raised: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    broken: Any = _Broken(raised)

    async def test(served: Served) -> None:
        with caplog.at_level(logging.ERROR):
            response = await served.post("/v1/completions", prompt="a")
        detail = error(response, 500)
        assert detail["type"] == "server_error"
        metrics = served.metrics.render().decode()
        assert 'baton:request_failure_total{model_name="tiny",status="500"} 1.0' in metrics

    run(replace(smollm2, tokenizer=broken), test)


def test_the_official_client_raises_its_own_errors(smollm2: TextModel) -> None:
    async def test(served: Served) -> None:
        client = openai.AsyncOpenAI(
            base_url="http://t/v1", api_key="none", http_client=served.client, max_retries=0
        )
        with pytest.raises(openai.BadRequestError) as raised:
            await client.completions.create(model="tiny", prompt="a", n=0)
        assert (raised.value.param, raised.value.code) == ("n", "400")
        with pytest.raises(openai.NotFoundError):
            await client.completions.create(model="other", prompt="a")
        served.admission.draining = True
        with pytest.raises(openai.InternalServerError):
            await client.completions.create(model="tiny", prompt="a")

    run(smollm2, test)
