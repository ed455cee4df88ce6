"""A server with models and figures that answers no prompt, over HTTP or https."""

import asyncio
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from aiohttp import web


class Refusing:
    """A server that answers no probe, and keeps what it was asked."""

    def __init__(self, metrics: str) -> None:
        self.metrics = metrics
        self.bodies: list[dict[str, Any]] = []

    async def models(self, _: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "m", "max_model_len": 4096}]})

    async def told(self, _: web.Request) -> web.Response:
        return web.Response(text=self.metrics)

    async def complete(self, request: web.Request) -> web.Response:
        self.bodies.append(await request.json())
        return web.json_response({"error": {"message": "no probes here"}}, status=400)

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/v1/models", self.models)
        app.router.add_get("/metrics", self.told)
        app.router.add_post("/v1/completions", self.complete)
        return app


@contextmanager
def served(server: Refusing, tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """Its URL, on a thread of its own."""
    loop, stop, ready, urls = asyncio.new_event_loop(), asyncio.Event(), threading.Event(), [""]

    async def serve() -> None:
        runner = web.AppRunner(server.app())
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
        urls[0] = f"http{'s' if tls else ''}://127.0.0.1:{runner.addresses[0][1]}"
        ready.set()
        await stop.wait()
        await runner.cleanup()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    assert ready.wait(10)
    try:
        yield urls[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()
