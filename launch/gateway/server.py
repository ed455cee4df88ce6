"""The HTTP API of one gateway, from its first connection to the end of its last answer."""

import asyncio
import gc
import logging
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import uvicorn

from common.config import ServeConfig
from common.errors import SetupError
from common.ids import Role
from common.log import line
from common.metrics import GatewayMetrics
from common.text.grammar import Grammars, GrammarTokenizer
from common.text.load import load_text_model
from launch.gateway.api.admission import Admission
from launch.gateway.auth import guarded
from launch.gateway.connection import SEND_BUFFER_BYTES, Limits, connections
from launch.gateway.engine import Engine
from launch.gateway.http import create_app
from launch.gateway.misfits import misfits
from launch.gateway.places import Places

KEEP_ALIVE_S = 75  # longer than clients keep idle connections, so that none is cut under a request
CONNECTIONS_S = 2  # for the last answers to leave
BACKLOG = 2048  # connections that wait to be taken

_log = logging.getLogger(__name__)


class HttpServer:
    """`prepare`, then `serve_at` an address until told to stop."""

    def __init__(
        self,
        config: ServeConfig,
        engine: Engine,
        metrics: GatewayMetrics,
        places: Places | None = None,
        all_ready: Callable[[], bool] | None = None,
    ) -> None:
        """`places`: where other gateways of the server are counted, too; `all_ready`: whether they
        take requests."""
        self._config = config
        self._engine = engine
        self._metrics = metrics
        self._places = places
        self._admission = Admission(config.max_waiting_requests, metrics, places)
        if all_ready is not None:
            self._admission.all_ready = all_ready
        self.tells_misfits = True  # of several gateways one does
        self._http: _Server | None = None
        self._prepared = asyncio.Event()

    async def prepare(self) -> None:
        """Load what texts are read and written with."""
        config, metrics = self._config, self._metrics
        template = None if config.chat_template is None else Path(config.chat_template)
        text = await asyncio.to_thread(
            load_text_model, Path(config.model or ""), chat_template=template
        )
        if self.tells_misfits:
            for event, detail in misfits(text, config):
                _log.warning(line(event, detail=detail))
        grammars = Grammars(lambda: GrammarTokenizer(text))
        grammars.prepare()
        app = create_app(self._engine, text, config, metrics, self._admission, grammars)
        limits = Limits(
            slow_reader_s=config.slow_reader_seconds,
            on_slow_reader=metrics.slow_readers_total.inc,
        )
        self._http = _Server(
            uvicorn.Config(
                guarded(app, config, config.api_key or (), metrics, self._places),
                log_config=None,
                access_log=False,
                server_header=False,
                http=connections(limits),
                ssl_certfile=config.ssl_certfile,
                ssl_keyfile=config.ssl_keyfile,
                ssl_ca_certs=config.ssl_ca_certs,
                ssl_cert_reqs=config.ssl_cert_reqs,
                ws="none",
                lifespan="off",
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=CONNECTIONS_S,
                backlog=BACKLOG,
            )
        )
        gc.freeze()  # of what is here by now nothing is garbage: to look at it all takes 30 ms
        self._prepared.set()

    async def serve_at(
        self, listener: socket.socket, on_start: Callable[[], None] | None = None
    ) -> None:
        """Until told to stop, and whatever was in flight has ended. `on_start`: connections are
        taken."""
        assert self._http is not None
        if not self._admission.draining:
            self._http.on_start = on_start
            await self._http.serve(sockets=[listener])

    def in_progress(self) -> int:
        """HTTP requests that are being answered."""
        return self._admission.in_progress

    async def up(self, wanted: Mapping[Role, int]) -> None:
        """Until requests are taken, for so many workers."""
        await self._prepared.wait()
        await self._engine.up(wanted)

    async def drain(self) -> None:
        """Requests in flight end, well or late; then HTTP ends."""
        self._admission.draining = True
        at_most_s = self._config.shutdown_timeout
        n = self._admission.in_progress
        _log.info(line("draining", in_progress=n, at_most_s=at_most_s))
        try:
            await asyncio.wait_for(self._admission.empty(), at_most_s)
        except TimeoutError:
            _log.warning(line("not_drained", in_progress=self._admission.in_progress))
            self._admission.give_up()
            self._engine.close()  # their clients get an error instead of the rest
        if self._http is not None:
            self._http.should_exit = True

    def leave_at_once(self) -> None:
        """Whatever is in flight."""
        self._admission.draining = True
        self._admission.give_up()
        self._engine.close()
        if self._http is not None:
            self._http.should_exit = self._http.force_exit = True


class _Server(uvicorn.Server):
    """Signals are ours: uvicorn would take them and raise them again after its shutdown."""

    on_start: Callable[[], None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.on_start is not None:
            self.on_start()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextmanager
def bound(host: str, port: int, *, shared: bool = False) -> Iterator[socket.socket]:
    """A socket at that address (port 0: any), so that a port that is taken is told at once.

    `shared`: others may be bound there that are, too; connections are dealt out among those who
    listen. Raises SetupError.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        if shared:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            one.bind((host.strip("[]"), port))
        except OSError as error:
            raise SetupError(
                f"--host {host} --port {port}: {error.strerror}; choose another"
            ) from error
        yield one
