"""From an answer to bytes on a connection: streamed or whole, and given up when the client goes."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from common.errors import BatonError, TimedOut
from common.log import line
from common.metrics import GatewayMetrics
from launch.gateway.api.answer import Answer
from launch.gateway.api.errors import detail, envelope, error_detail, json_response, status_of
from launch.gateway.api.forms import Form, Gathered, chosen
from launch.gateway.connection import BODY

_Result = TypeVar("_Result")
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
CLIENT_GONE_STATUS = 499  # nobody reads it; as nginx logs it
REQUEST_ID = "x-request-id"
_FEW_SCORES = 2000  # of an answer, encoded within 10 ms
_INTERNAL = "internal error; the server's log has the details"

_log = logging.getLogger(__name__)


class ClientGone(Exception):
    """The client has closed its connection."""


async def while_connected(request: Request, work: Coroutine[Any, Any, _Result]) -> _Result:
    """The work's result, or ClientGone, the work cancelled, when the client leaves first."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(request.receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        await _cancelled(task, gone)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _cancelled(*tasks: asyncio.Future[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def whole(answer: Answer, form: Form) -> Response:
    """Gather it all."""
    prepared = answer.prepared
    choices = [Gathered() for _ in range(len(prepared.prompts) * prepared.n)]
    async for pieces in answer.pieces():
        for piece in pieces:
            choices[piece.choice].add(piece)
    body = await _told(form, chosen(choices, prepared), answer)
    return json_response(body, headers={REQUEST_ID: answer.id})


async def _told(form: Form, choices: Sequence[Gathered], answer: Answer) -> bytes:
    """A long one not in the loop's own time."""
    n_scores = sum(len(choice.scored) + len(choice.prompt_scores) for choice in choices)
    n_each = 1 + max(answer.prepared.logprobs or 0, answer.prepared.prompt_logprobs or 0)
    if n_scores * n_each <= _FEW_SCORES:
        return form.whole(choices, answer.usage)
    return await asyncio.to_thread(form.whole, choices, answer.usage)


def _unable(_data: bytes) -> bool:
    """As `connection.BODY`, where there is none."""
    return False


def internal_error() -> bytes:
    """The body of an answer that a bug of ours has ended."""
    return envelope(_INTERNAL, 500)


class EventStream(Response):
    """The answer as server-sent events. Closes the answer, whatever ends it."""

    def __init__(
        self, answer: Answer, form: Form, metrics: GatewayMetrics, on_end: Callable[[], None]
    ) -> None:
        super().__init__(media_type="text/event-stream")
        self._answer = answer
        self._form = form
        self._metrics = metrics
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        write = scope.get("extensions", {}).get(BODY, _unable)
        writing = asyncio.ensure_future(self._write(send, write))
        gone = asyncio.ensure_future(_disconnected(receive))
        try:
            await asyncio.wait({writing, gone}, return_when=asyncio.FIRST_COMPLETED)
            if writing.done():
                writing.result()
            else:
                self._metrics.success("abort")
        finally:
            await _cancelled(writing, gone)
            self._answer.close()
            self._on_end()

    async def _write(self, send: Send, write: Callable[[bytes], bool]) -> None:
        headers = [*_HEADERS, (REQUEST_ID.encode(), self._answer.id.encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        try:
            await self._tell(send, write)
            last = self._form.last(self._answer.usage)
        except BatonError as error:  # the status is out already
            self._failed(error, status_of(error))
            last = self._form.broken(error_detail(error))
        except Exception as error:  # noqa: BLE001 - the client must not take half for the whole
            self._failed(error, 500)
            last = self._form.broken(detail(_INTERNAL, 500))
        await send({"type": "http.response.body", "body": last + self._form.done})

    async def _tell(self, send: Send, write: Callable[[bytes], bool]) -> None:
        """Event by event, until all is told. Raises the BatonError that ends it early."""
        form, answer = self._form, self._answer
        opening = form.opening(len(answer.prepared.prompts) * answer.prepared.n)
        while not answer.over:
            if pieces := answer.take():
                data = opening + b"".join(map(form.event, pieces))
                opening = b""
                if data and not write(data):  # none: a text that may become a call is held back
                    await send({"type": "http.response.body", "body": data, "more_body": True})
            elif not answer.over:
                await answer.more()

    def _failed(self, error: Exception, status: int) -> None:
        self._metrics.failure(status)
        if isinstance(error, TimedOut):  # its client's own doing
            return
        bug = error if status == 500 else None
        fields = {"request": self._answer.id, "status": status, "detail": str(error)}
        _log.error(line("answer_failed", **fields), exc_info=bug)
