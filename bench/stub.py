"""A server whose timings are known exactly: what the client measures can be held against it.

    python -m bench.stub [--port 8001]

Speaks /v1/completions and /v1/chat/completions; what a request gets, its own `extra_body` says
(`stub`, the fields of Script), so that one process serves all cases. Every chunk's text is the
moment that it was sent at, in ns on the clock that all processes of a host share. When a client
hangs up, it is counted (GET /hang_ups). It prints its URL first. Imports nothing of the engine.
"""

import asyncio
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import aclosing, contextmanager, suppress

import msgspec
from aiohttp import web

from bench.flag_types import Parser, whole
from bench.stub_engine import Engine, EngineCosts

CONTEXT_TOKENS = 4096


class Script(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a request is answered."""

    ttft_s: float = 0.02
    gap_s: float = 0.005  # between chunks
    tokens_per_chunk: int = 1
    stall_s: float = 0.0  # later by that much from the chunk `stall_at` on
    stall_at: int = 2
    status: int = 200
    fail_at: int | None = None  # an error event instead of that chunk, the last thing sent
    drop_at: int | None = None  # the connection is cut instead of that chunk
    role_first: bool = False  # a chunk that only says "assistant", at once
    usage: bool = True
    running_usage: bool = False  # every chunk says how many tokens so far
    token_ids: bool = False
    done: bool = True  # ends as the protocol has it
    engine: EngineCosts | None = None  # instead of all times here: requests wait for each other

    def at_s(self, n: int) -> float:
        """When chunk n is sent, in seconds after the request has come."""
        late_s = self.stall_s if n >= self.stall_at else 0.0
        return self.ttft_s + n * self.gap_s + late_s


class Body(msgspec.Struct):
    """The fields of a request that matter here."""

    max_tokens: int
    prompt: str | list[int] = ""
    messages: list[dict[str, str]] = []
    stub: Script = Script()

    def n_prompt_tokens(self) -> int:
        return len(self.messages[0]["content"] if self.messages else self.prompt)


class Stub:
    """The handlers, and what they saw. A token of text is a character."""

    def __init__(self) -> None:
        self.hang_ups = 0
        self.bodies: list[object] = []
        self._engines: dict[EngineCosts, Engine] = {}

    def app(self) -> web.Application:
        app = web.Application(client_max_size=1 << 26)
        app.router.add_post("/v1/completions", self.answer)
        app.router.add_post("/v1/chat/completions", self.answer)
        app.router.add_post("/tokenize", self.tokenize)
        app.router.add_post("/detokenize", self.detokenize)
        app.router.add_get("/v1/models", self.models)
        app.router.add_get("/seen", self.seen)
        return app

    async def models(self, _: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "stub", "max_model_len": CONTEXT_TOKENS}]})

    async def seen(self, _: web.Request) -> web.Response:
        """All that was asked so far, and how many clients hung up."""
        return web.json_response({"hang_ups": self.hang_ups, "bodies": self.bodies})

    async def tokenize(self, request: web.Request) -> web.Response:
        return web.json_response({"tokens": [ord(c) for c in (await request.json())["prompt"]]})

    async def detokenize(self, request: web.Request) -> web.Response:
        return web.json_response({"prompt": "".join(map(chr, (await request.json())["tokens"]))})

    async def answer(self, request: web.Request) -> web.StreamResponse:
        began_s = time.perf_counter()
        data = await request.read()
        self.bodies.append(msgspec.json.decode(data))
        body = msgspec.json.decode(data, type=Body)
        if body.stub.status != 200:
            error = {"error": {"message": "as the script has it"}}
            return web.json_response(error, status=body.stub.status)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        try:
            answer = Answer(response, body, chat=request.path.endswith("chat/completions"))
            costs = body.stub.engine
            if costs is None:
                await answer.run(began_s)
            else:
                await answer.run_by(self._engines.setdefault(costs, Engine(costs)))
        except ConnectionResetError:
            self.hang_ups += 1
        except CutOff:
            if request.transport is not None:
                request.transport.abort()
        return response


class CutOff(Exception):
    """The script has the connection cut here."""


class Answer:
    """One stream."""

    def __init__(self, response: web.StreamResponse, body: Body, *, chat: bool) -> None:
        self._response = response
        self._body = body
        self._chat = chat

    async def run(self, began_s: float) -> None:
        script = self._body.stub
        if script.role_first:
            await self._event({"choices": [{"index": 0, "delta": {"role": "assistant"}}]})
        n_sent = 0
        for n in range(-(-self._body.max_tokens // script.tokens_per_chunk)):
            if (wait_s := began_s + script.at_s(n) - time.perf_counter()) > 0:
                await asyncio.sleep(wait_s)
            if n == script.fail_at:
                return await self._event({"error": {"message": "as the script has it"}})
            if n == script.drop_at:
                raise CutOff
            n_new = min(script.tokens_per_chunk, self._body.max_tokens - n_sent)
            n_sent += n_new
            await self._event(self._chunk(n_new, n_sent))
        await self._end(n_sent)
        return None

    async def run_by(self, engine: Engine) -> None:
        """At an engine's times, a token a chunk."""
        n_sent = 0
        async with aclosing(
            engine.tokens(self._body.n_prompt_tokens(), self._body.max_tokens)
        ) as tokens:
            async for _ in tokens:
                n_sent += 1
                await self._event(self._chunk(1, n_sent))
        await self._end(n_sent)

    async def _end(self, n_sent: int) -> None:
        if self._body.stub.usage:
            await self._event({"choices": [], "usage": self._usage(n_sent)})
        if self._body.stub.done:
            await self._response.write(b"data: [DONE]\n\n")

    def _chunk(self, n_new: int, n_sent: int) -> dict[str, object]:
        text = f"{time.perf_counter_ns()} "
        choice: dict[str, object] = {"index": 0}
        choice |= {"delta": {"content": text}} if self._chat else {"text": text}
        if self._body.stub.token_ids:
            choice["token_ids"] = [7] * n_new
        usage = {"usage": self._usage(n_sent)} if self._body.stub.running_usage else {}
        return {"choices": [choice], **usage}

    def _usage(self, n_sent: int) -> dict[str, int]:
        return {"prompt_tokens": self._body.n_prompt_tokens(), "completion_tokens": n_sent}

    async def _event(self, event: dict[str, object]) -> None:
        await self._response.write(b"data: " + msgspec.json.encode(event) + b"\n\n")


@contextmanager
def started(port: int = 0) -> Iterator[str]:
    """Its URL, in a process of its own."""
    command = [sys.executable, "-P", "-m", "bench.stub", "--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.kill()


async def serve(port: int) -> None:
    """Until it is ended from outside."""
    runner = web.AppRunner(Stub().app())
    await runner.setup()
    with socket.create_server(("127.0.0.1", port), backlog=1024) as listener:
        await web.SockSite(runner, listener).start()
        print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
        await asyncio.Event().wait()


def main(argv: Sequence[str]) -> int:
    """Runs until SIGINT or SIGTERM."""
    parser = Parser(prog="python -m bench.stub", description=__doc__)
    parser.add_argument("--port", type=whole, default=0, help="0: a free one [0]")
    options = parser.parse_all(argv)
    with suppress(KeyboardInterrupt):
        asyncio.run(serve(options.port))  # which writes at once, where uvloop gathers writes
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
