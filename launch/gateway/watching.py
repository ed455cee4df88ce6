"""Routes for people who watch a server: `GET /status`. Reads only; changes nothing."""

import platform
import time
from collections.abc import Callable
from importlib.metadata import version

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from common.messages import PROTOCOL
from launch.gateway.api.errors import json_response
from launch.gateway.api.responses import encode
from launch.gateway.engine import Engine
from launch.gateway.summary import POOLS, Server, status

VERSIONS = {
    "baton": version("baton-serving"),
    "protocol": str(PROTOCOL),
    "python": platform.python_version(),
}


def watching_routes(engine: Engine, server: Callable[[], Server]) -> list[Route]:
    """`server`: what is known of it without its history, at each request."""

    async def tell(_: Request) -> Response:
        views = [view for role in POOLS for view in engine.fleet.of(role)]
        document = status(server(), views, engine.history, time.monotonic())
        return json_response(encode(document), headers={"cache-control": "no-store"})

    return [Route("/status", tell)]
