"""`baton serve`: the pools, the gateway and the HTTP server of one host, from start to drain."""

import asyncio
import logging
import os
import signal
import time
import uuid
from collections.abc import Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from msgspec.structs import replace

from common.config import ServeConfig
from common.errors import SetupError
from common.ids import InstanceId, Role
from common.log import line
from common.messages import ModelIdentity
from common.metrics import GatewayMetrics
from common.rundir import make_clean, remove_sockets, temporary
from common.text.load import read_template
from launch.checks import checked, local_workers
from launch.gateway.control import Control
from launch.gateway.server import BACKLOG, HttpServer, bound
from launch.gateway.traces_endpoint import traces_url
from launch.gateways import Gateways
from launch.leaving import left, run
from launch.notify import Notifier, has_terminal
from launch.security import api_keys, check_control, check_tls, is_loopback, without_secrets
from launch.supervise import CRASHES, Supervisor

if TYPE_CHECKING:
    from collections.abc import Iterator

SETTLE_S = 0.1  # for workers to say that they have joined: the address is the last line

_ALL_LOCAL = (
    "--disaggregate always, and --prefill 0 starts no prefill worker: decode workers compute "
    "prompts until one joins; --prefill 1 starts one"
)
_OPEN_TO_ALL = "whoever reaches that address may use this server; --api-key-file FILE asks for keys"

_log = logging.getLogger(__name__)


def serve(config: ServeConfig, environ: Mapping[str, str]) -> int:
    """Serve until told to stop. Returns the exit code. `config.model` is a path by now."""
    logging.getLogger("uvicorn").setLevel(logging.WARNING)  # it would tell its own starts and stops
    keys = _checked_keys(config)
    if config.otlp_traces_endpoint is not None:
        traces_url(config.otlp_traces_endpoint)
    if config.chat_template is not None:
        read_template(Path(config.chat_template))
    identity = checked(config, local_workers(config, join=""))
    with _run_dir(config) as run_dir:
        local = replace(config, run_dir=str(run_dir), api_key=keys or None, api_key_file=None)
        server = _Server(local, identity, without_secrets(environ))
        code = run(server.run())
    return left(code)


def _checked_keys(config: ServeConfig) -> tuple[str, ...]:
    """The API keys. Raises SetupError where who may use the server is not as it must be."""
    keys = api_keys(config)
    check_tls(config)
    check_control(config)
    if not keys and not is_loopback(config.host):
        _log.warning(line("no_api_key", host=config.host, detail=_OPEN_TO_ALL))
    return keys


class Front(Protocol):
    """What takes clients' connections: a gateway here, or several beside this process."""

    @property
    def port(self) -> int: ...

    async def serve(self) -> None:
        """Until told to stop, and whatever was in flight has ended."""
        ...

    async def up(self, wanted: Mapping[Role, int]) -> None:
        """Until requests are taken, for so many workers."""
        ...

    async def drain(self) -> None:
        """Requests in flight end, well or late; then `serve` does."""
        ...

    def leave_at_once(self) -> None: ...

    def worker_ended(self, worker: InstanceId, *, crashed: bool) -> None:
        """The process is no more; `crashed`: by itself."""
        ...


class _Here(HttpServer):
    """The one gateway of a server, in this process."""

    def __init__(self, config: ServeConfig, control: Control, metrics: GatewayMetrics) -> None:
        """Raises SetupError where the port is taken."""
        super().__init__(config, control.engine, metrics)
        self._stack = ExitStack()
        self._listener = self._stack.enter_context(bound(config.host, config.port))
        self._listener.listen(BACKLOG)

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    async def serve(self) -> None:
        with self._stack:
            await self.prepare()
            await self.serve_at(self._listener)

    def worker_ended(self, worker: InstanceId, *, crashed: bool) -> None:
        """The launcher's engine is the gateway's: it knows."""


class _Server:
    """The parts of one running `baton serve`."""

    def __init__(
        self, config: ServeConfig, identity: ModelIdentity, environ: Mapping[str, str]
    ) -> None:
        """`identity`: what workers must have."""
        self._config = config
        metrics = GatewayMetrics(config.served_model_name or "")
        instance = InstanceId(uuid.uuid4().hex)
        self._control = Control(config, identity, instance, metrics, port=config.control_port)
        self._engine = self._control.engine
        self._engine.on_crash = self._crashed
        self._supervisor = Supervisor(
            local_workers(config, join=self._control.mailbox.endpoints[0]),
            environ,
            on_exit=self._exited,
            on_hopeless=self._hopeless,
        )
        self._engine.on_up = self._supervisor.joined
        self._engine.on_down = self._supervisor.silent
        self._engine.on_hung = self._supervisor.hung
        self._engine.troubles = self._troubles
        self._engine.history.local_workers = self._supervisor.workers
        try:
            self._front = self._open_front(identity, metrics, environ)
        except BaseException:
            self._control.mailbox.close()
            raise
        self._notifier = Notifier(environ)
        self._has_terminal = has_terminal()
        self._outlives_terminal = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN  # nohup
        self._draining: asyncio.Task[None] | None = None
        self._restarting: asyncio.Task[None] | None = None
        self._showing: asyncio.Task[None] | None = None
        self._exit_code = 0
        self._hopeless_why: str | None = None

    def _open_front(
        self, identity: ModelIdentity, metrics: GatewayMetrics, environ: Mapping[str, str]
    ) -> Front:
        if self._config.gateways == 1:
            return _Here(self._config, self._control, metrics)
        gateways = Gateways(self._config, identity, self._control, environ, self._hopeless)
        gateways.troubles = self._troubles
        gateways.local_workers = self._supervisor.workers
        return gateways

    async def run(self) -> int:
        """From start to the last process gone. Raises SetupError where a worker cannot start."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._told_to_stop)
        loop.add_signal_handler(signal.SIGHUP, self._told_to_restart)
        join, pid = self._control.mailbox.endpoints[-1], os.getpid()
        _log.info(line("starting", model=self._config.model, join=join, pid=pid))
        config = self._config
        if config.disaggregate == "always" and config.decode.workers and not config.prefill.workers:
            _log.warning(line("no_prefill_worker", detail=_ALL_LOCAL))
        self._engine.start()
        self._supervisor.start()
        beating = asyncio.create_task(self._notifier.beat())
        self._showing = asyncio.create_task(self._show_ready())
        try:
            await self._front.serve()
        finally:
            beating.cancel()
            self._showing.cancel()
            self._engine.close()
            await self._supervisor.stop()
            self._control.close()
        _log.info(line("stopped"))
        if self._hopeless_why is not None:
            raise SetupError(self._hopeless_why)
        return self._exit_code

    async def _show_ready(self) -> None:
        began = time.monotonic()
        config, port = self._config, self._front.port
        wanted = {
            Role.PREFILL: config.prefill.workers,
            Role.DECODE: max(1, config.decode.workers),
        }
        await self._front.up(wanted)
        await asyncio.sleep(SETTLE_S)
        host = f"[{config.host.strip('[]')}]" if ":" in config.host else config.host
        url = f"{'http' if config.ssl_certfile is None else 'https'}://{host}:{port}"
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
            self._has_terminal = False
            if not self._outlives_terminal:
                self._told_to_stop()
        elif self._restarting is not None:
            _log.warning(line("already_restarting"))
        elif self._draining is None:
            self._restarting = asyncio.create_task(self._restart())

    async def _restart(self) -> None:
        if self._showing is not None:  # what has not come up yet is not restarted
            await asyncio.shield(self._showing)
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
        self._notifier.stopping()
        if self._restarting is not None:
            self._restarting.cancel()
        self._draining = asyncio.create_task(self._front.drain())

    def _leave_at_once(self) -> None:
        self._front.leave_at_once()
        self._engine.close()
        self._supervisor.kill()

    def _exited(self, worker: InstanceId, code: int) -> None:
        crashed = code in CRASHES
        self._engine.lost(worker, crashed=crashed)
        self._front.worker_ended(worker, crashed=crashed)
        remove_sockets(Path(self._config.run_dir or ""), worker)

    def _hopeless(self, worker: str, why: str) -> None:
        _log.error(line("worker_cannot_start", worker=worker, detail=why))
        self._hopeless_why = self._hopeless_why or f"{worker} cannot start: {why}"
        self._leave_at_once()

    def _troubles(self, role: Role) -> tuple[str, ...]:
        """Why workers of that pool are not up: processes that ended, workers that were refused."""
        return (*self._supervisor.troubles(role), *self._control.links.refusals(role))

    def _crashed(self, error: BaseException) -> None:
        _log.critical(line("gateway_crashed"), exc_info=error)
        self._exit_code = 1
        self._leave_at_once()


@contextmanager
def _run_dir(config: ServeConfig) -> "Iterator[Path]":
    """The given one, which stays, without what killed processes left; or a temporary one."""
    if config.run_dir is not None:
        path = Path(config.run_dir)
        make_clean(path)
        yield path
        return
    with temporary() as path:
        yield path
