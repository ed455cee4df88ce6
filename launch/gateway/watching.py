"""Routes for people who watch a server: `GET /status`, and the page at `/ui/` that shows it.

Reads only; changes nothing. What the page needs lies beside it in `ui/`: nothing comes from
elsewhere, and its policy lets nothing come.
"""

import math
import os
import platform
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from common.errors import ClientError
from common.messages import PROTOCOL
from launch.gateway.api.errors import json_response
from launch.gateway.api.responses import encode
from launch.gateway.engine import Engine
from launch.gateway.own_part import part_of
from launch.gateway.summary import POOLS, Server, status, worker_statuses

VERSIONS = {
    "baton": version("baton-serving"),
    "protocol": str(PROTOCOL),
    "python": platform.python_version(),
}
UI = Path(__file__).parent / "ui"
UI_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "cache-control": "no-cache",  # asked for again by its ETag: an upgrade is seen at once
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


def watching_routes(
    engine: Engine,
    server: Callable[[], Server],
    in_progress: Callable[[], int],
    *,
    with_page: bool = True,
) -> list[BaseRoute]:
    """`server`: what is known of it without its history, at each request; `in_progress`: HTTP
    requests here."""

    async def tell(request: Request) -> Response:
        after = _number(request, "after", default=math.inf)
        elsewhere = await engine.history.elsewhere(after)
        views = [view for role in POOLS for view in engine.fleet.of(role)]
        history, now = engine.history, time.monotonic()
        own = part_of(history, in_progress(), now, after)
        workers = worker_statuses(views, history, now)
        document = status(server(), workers, own, elsewhere, after)
        return json_response(encode(document), headers={"cache-control": "no-store"})

    page = [
        Route("/", _to_the_page),
        Route("/ui", _to_the_page),
        Mount("/ui", _Page(directory=UI)),
    ]
    return [Route("/status", tell), *(page if with_page else ())]


def _number(request: Request, name: str, *, default: float) -> float:
    text = request.query_params.get(name)
    try:
        return default if text is None else float(text)
    except ValueError:
        raise ClientError(f"`{name}` must be a number.", param=name) from None


async def _to_the_page(_: Request) -> Response:
    return RedirectResponse("ui/")  # as its client names this server: there may be a proxy


class _Page(StaticFiles):
    """Files of the page, each with the policy under which it is shown."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        return await super().get_response("index.html" if path == "." else path, scope)

    def file_response(
        self,
        full_path: str | os.PathLike[str],
        stat_result: os.stat_result,
        scope: Scope,
        status_code: int = 200,
    ) -> Response:
        response = super().file_response(full_path, stat_result, scope, status_code)
        response.headers.update(UI_HEADERS)
        return response
