"""`baton serve`: the pools, the gateway and the HTTP server of one host, from start to drain."""

import asyncio
import logging
import os
import signal
import socket
import time
import uuid
from collections.abc import Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import uvicorn
import uvloop
from msgspec.structs import replace

from common.config import ServeConfig
from common.curve import read_key
from common.engine.links import Links
from common.errors import SetupError
from common.ids import InstanceId, Role
from common.log import RequestLog, line, set_up_logging
from common.messages import PROTOCOL, Hello, ModelIdentity, Peer
from common.metrics import GatewayMetrics
from common.rundir import host_id, make_private, remove_sockets, temporary
from common.text.grammar import Grammars, GrammarTokenizer
from common.text.load import load_text_model
from common.wire import Mailbox
from launch.checks import checked, local_workers
from launch.gateway.api.admission import Admission
from launch.gateway.attempts import GatewayOptions
from launch.gateway.auth import guarded
from launch.gateway.connection import SEND_BUFFER_BYTES, Limits, connections
from launch.gateway.engine import Engine
from launch.gateway.http import create_app
from launch.notify import Notifier, has_terminal
from launch.security import api_keys, check_control, check_tls, is_loopback, without_secrets
from launch.supervise import CRASHES, Supervisor

if TYPE_CHECKING:
    from collections.abc import Iterator

GOODBYE_MS = 100  # for the last messages to leave
KEEP_ALIVE_S = 75  # longer than clients keep idle connections, so that none is cut under a request
CONNECTIONS_S = 2  # for the last answers to leave
SETTLE_S = 0.1  # for workers to say that they have joined: the address is the last line

_ALL_LOCAL = (
    "--disaggregate always, and --prefill 0 starts no prefill worker: decode workers compute "
    "prompts until one joins; --prefill 1 starts one"
)
_OPEN_TO_ALL = "whoever reaches that address may use this server; --api-key-file FILE asks for keys"

_log = logging.getLogger(__name__)


def serve(config: ServeConfig, environ: Mapping[str, str]) -> int:
    """Serve until told to stop. Returns the exit code. `config.model` is a path by now."""
    set_up_logging(config.log_level, Role.GATEWAY, log_format=config.log_format)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)  # it would tell its own starts and stops
    keys = _checked_keys(config)
    identity = checked(config, local_workers(config, join=""))
    with _run_dir(config) as run_dir, _listening(config.host, config.port) as listener:
        local = replace(config, run_dir=str(run_dir), api_key=keys or None, api_key_file=None)
        server = _Server(local, identity, run_dir, without_secrets(environ))
        return uvloop.run(server.run(listener))


def _checked_keys(config: ServeConfig) -> tuple[str, ...]:
    """The API keys. Raises SetupError where who may use the server is not as it must be."""
    keys = api_keys(config)
    check_tls(config)
    check_control(config)
    if not keys and not is_loopback(config.host):
        _log.warning(line("no_api_key", host=config.host, detail=_OPEN_TO_ALL))
    return keys


class _Server:
    """The parts of one running `baton serve`."""

    def __init__(
        self,
        config: ServeConfig,
        identity: ModelIdentity,
        run_dir: Path,
        environ: Mapping[str, str],
    ) -> None:
        """`identity`: what workers must have."""
        self._config = config
        self._run_dir = run_dir
        self._instance = InstanceId(uuid.uuid4().hex)
        self._request_log = RequestLog(config.request_log, self._instance, Role.GATEWAY)
        self._mailbox = Mailbox(
            self._instance,
            Role.GATEWAY,
            run_dir=run_dir,
            listen=f"{config.control_host}:{config.control_port}",
            curve=None if config.control_key_file is None else read_key(config.control_key_file),
        )
        self._metrics = GatewayMetrics(config.served_model_name or "")
        self._links = Links(self._mailbox, self._hello(), reference=identity)
        self._engine = Engine(
            self._mailbox,
            self._links,
            GatewayOptions(
                max_requests=config.max_waiting_requests,
                disaggregate=config.disaggregate,
                recovery_s=config.recovery_seconds,
                admission=config.admission,
            ),
            request_log=self._request_log,
            metrics=self._metrics,
        )
        self._metrics.gateway(self._instance, self._engine.counts)
        self._engine.on_crash = self._crashed
        self._supervisor = Supervisor(
            local_workers(config, join=self._mailbox.endpoints[0]),
            environ,
            on_exit=self._exited,
            on_hopeless=self._hopeless,
        )
        self._engine.on_up = self._supervisor.joined
        self._engine.on_down = self._supervisor.silent
        self._engine.on_hung = self._supervisor.hung
        self._engine.troubles = self._troubles
        self._engine.history.local_workers = self._supervisor.workers
        self._admission = Admission(config.max_waiting_requests, self._metrics)
        self._http: uvicorn.Server | None = None
        self._notifier = Notifier(environ)
        self._has_terminal = has_terminal()
        self._draining: asyncio.Task[None] | None = None
        self._restarting: asyncio.Task[None] | None = None
        self._exit_code = 0
        self._hopeless_why: str | None = None

    def _hello(self) -> Hello:
        peer = Peer(
            instance=self._instance,
            role=Role.GATEWAY,
            host=host_id(),
            endpoints=self._mailbox.endpoints,
        )
        return Hello(protocol=PROTOCOL, peer=peer, model=None, limits=None, pool=None)

    async def run(self, listener: socket.socket) -> int:
        """From start to the last process gone. Raises SetupError where a worker cannot start."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._told_to_stop)
        loop.add_signal_handler(signal.SIGHUP, self._told_to_restart)
        join, pid = self._mailbox.endpoints[-1], os.getpid()
        _log.info(line("starting", model=self._config.model, join=join, pid=pid))
        config = self._config
        if config.disaggregate == "always" and config.decode.workers and not config.prefill.workers:
            _log.warning(line("no_prefill_worker", detail=_ALL_LOCAL))
        self._engine.start()
        self._supervisor.start()
        beating = asyncio.create_task(self._notifier.beat())
        try:
            await self._serve_http(listener)
        finally:
            beating.cancel()
            self._engine.close()
            await self._supervisor.stop()
            self._mailbox.close(linger_ms=GOODBYE_MS)
            self._request_log.close()
        _log.info(line("stopped"))
        if self._hopeless_why is not None:
            raise SetupError(self._hopeless_why)
        return self._exit_code

    async def _serve_http(self, listener: socket.socket) -> None:
        """Until told to stop, and whatever was in flight has ended."""
        config = self._config
        template = None if config.chat_template is None else Path(config.chat_template)
        text = await asyncio.to_thread(
            load_text_model, Path(config.model or ""), chat_template=template
        )
        grammars = Grammars(lambda: GrammarTokenizer(text))
        grammars.prepare()
        app = create_app(self._engine, text, config, self._metrics, self._admission, grammars)
        limits = Limits(
            slow_reader_s=config.slow_reader_seconds,
            on_slow_reader=self._metrics.slow_readers_total.inc,
        )
        self._http = _QuietServer(
            uvicorn.Config(
                guarded(app, config, config.api_key or (), self._metrics),
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
            )
        )
        if self._admission.draining:
            return
        showing = asyncio.create_task(self._show_ready(listener))
        await self._http.serve(sockets=[listener])
        showing.cancel()

    async def _show_ready(self, listener: socket.socket) -> None:
        began = time.monotonic()
        config = self._config
        wanted = {
            Role.PREFILL: config.prefill.workers,
            Role.DECODE: max(1, config.decode.workers),
        }
        await self._engine.up(wanted)
        await asyncio.sleep(SETTLE_S)
        host, port = listener.getsockname()[:2]
        scheme = "http" if config.ssl_certfile is None else "https"
        url = f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
        _log.info(
            line(
                "ready",
                url=url,
                model=config.served_model_name,
                prefill=wanted[Role.PREFILL],
                decode=wanted[Role.DECODE],
                after_s=round(time.monotonic() - began, 1),
            )
        )
        self._notifier.ready(f"serving at {url}")

    # --- restarting --------------------------------------------------------------------------

    def _told_to_restart(self) -> None:
        """SIGHUP: the workers, one after the other. A terminal that is closed sends it, too."""
        if self._has_terminal and not has_terminal():
            self._told_to_stop()
        elif self._draining is None and self._restarting is None:
            self._restarting = asyncio.create_task(self._restart())

    async def _restart(self) -> None:
        _log.info(line("rolling_restart"))
        self._notifier.reloading("restarting the workers one by one")
        began = time.monotonic()
        trouble = await self._supervisor.restart_each(lambda role: self._engine.workers()[role])
        seconds = round(time.monotonic() - began, 1)
        if trouble:
            _log.error(line("rolling_restart_stopped", seconds=seconds, detail=trouble))
        else:
            _log.info(line("rolling_restarted", seconds=seconds))
        self._notifier.ready(trouble or "serving, every worker restarted")
        self._restarting = None

    # --- stopping ----------------------------------------------------------------------------

    def _told_to_stop(self) -> None:
        """First: finish what is in flight. Again: at once."""
        if self._draining is not None:
            self._leave_at_once()
            return
        self._admission.draining = True
        self._notifier.stopping()
        if self._restarting is not None:
            self._restarting.cancel()
        self._draining = asyncio.create_task(self._drain())

    async def _drain(self) -> None:
        """Requests in flight end, well or late; then HTTP ends."""
        at_most_s = self._config.shutdown_timeout
        n = self._admission.in_progress
        _log.info(line("draining", in_progress=n, at_most_s=at_most_s))
        try:
            await asyncio.wait_for(self._admission.empty(), at_most_s)
        except TimeoutError:
            _log.warning(line("not_drained", in_progress=self._admission.in_progress))
            self._engine.close()  # their clients get an error instead of the rest
        if self._http is not None:
            self._http.should_exit = True

    def _leave_at_once(self) -> None:
        self._admission.draining = True
        self._engine.close()
        self._supervisor.kill()
        if self._http is not None:
            self._http.should_exit = self._http.force_exit = True

    def _exited(self, worker: InstanceId, code: int) -> None:
        self._engine.lost(worker, crashed=code in CRASHES)
        remove_sockets(self._run_dir, worker)

    def _hopeless(self, worker: str, why: str) -> None:
        _log.error(line("worker_cannot_start", worker=worker, detail=why))
        self._hopeless_why = self._hopeless_why or f"{worker} cannot start: {why}"
        self._leave_at_once()

    def _troubles(self, role: Role) -> tuple[str, ...]:
        """Why workers of that pool are not up: processes that ended, workers that were refused."""
        return (*self._supervisor.troubles(role), *self._links.refusals(role))

    def _crashed(self, error: BaseException) -> None:
        _log.critical(line("gateway_crashed"), exc_info=error)
        self._exit_code = 1
        self._leave_at_once()


class _QuietServer(uvicorn.Server):
    """Signals are ours: uvicorn would take them and raise them again after its shutdown."""

    @contextmanager
    def capture_signals(self) -> "Iterator[None]":
        yield


@contextmanager
def _run_dir(config: ServeConfig) -> "Iterator[Path]":
    """The given one, which stays; or a private temporary one."""
    if config.run_dir is not None:
        path = Path(config.run_dir)
        make_private(path)
        yield path
        return
    with temporary() as path:
        yield path


@contextmanager
def _listening(host: str, port: int) -> "Iterator[socket.socket]":
    """Bound before anything is started: a port that is taken is told at once."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        try:
            listener.bind((host, port))
        except OSError as error:
            raise SetupError(
                f"--host {host} --port {port}: {error.strerror}; choose another"
            ) from error
        listener.listen(2048)
        yield listener
