"""The gateways of a server that has several: processes that share its HTTP port.

They are started, watched and restarted as workers are; a gateway that ends takes its own clients'
connections with it, and nothing else. Knows processes and who is up, no requests.
"""

import asyncio
import shutil
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path

import msgspec
from msgspec.structs import replace
from prometheus_client.multiprocess import mark_process_dead

from common.config import ServeConfig
from common.ids import InstanceId, Role
from common.messages import ModelIdentity, PeerLost
from common.metrics import SHARED_VARIABLE
from common.rundir import SHORT_INSTANCE, remove_sockets, socket_file
from launch.gateway.control import Control
from launch.gateway.places import Places, make_shared
from launch.gateway.process import GatewayConfig
from launch.gateway.roster import LOOK_S, MAX_LINE_BYTES, Ended, Roster, Serving, Teller
from launch.gateway.server import CONNECTIONS_S, bound
from launch.supervise import LocalWorker, Supervisor

SILENT_S = 15.0  # a gateway says something every second: after so long it hangs
PAUSE_S = 1.0  # between two looks: beyond it, it was we who did not hear
REMEMBERED = 64  # workers that have ended, to be told of
LEAVE_S = CONNECTIONS_S + 3.0  # for a gateway to leave, beyond the time that its requests get
UNREAD_BYTES = 2**20  # of rosters: a gateway that does not read them is told no more


class Gateways:
    """All of them. Calls come from the event loop's thread."""

    def __init__(
        self,
        config: ServeConfig,
        identity: ModelIdentity,
        control: Control,
        environ: Mapping[str, str],
        on_hopeless: Callable[[str, str], None],
    ) -> None:
        """`control`: the launcher's, which knows the workers; `config.run_dir` is settled;
        `on_hopeless` as in `Supervisor`. Raises SetupError where the port is taken."""
        self._config = config
        self._control = control
        self._run_dir = Path(config.run_dir or "")
        self._stack = ExitStack()
        self._port = self._reserve()
        home = self._run_dir / f"{control.instance[:SHORT_INSTANCE]}.shared"
        home.mkdir()
        self._stack.callback(shutil.rmtree, home)
        self._metrics = home / "metrics"
        self._metrics.mkdir()
        n_keys = len(config.api_key or ())
        make_shared(home / "places", config.gateways, n_keys)
        self._places = Places(n_keys, shared=home / "places")
        self._roster = socket_file(self._run_dir, f"{control.instance[:SHORT_INSTANCE]}.gws")
        local = replace(config, port=self._port)
        self._supervisor = Supervisor(
            [
                GatewayConfig(
                    serve=local,
                    identity=identity,
                    number=number,
                    roster=str(self._roster),
                    places=str(home / "places"),
                    metrics=str(self._metrics),
                    name=f"gateway-{number}",
                    log_level=config.log_level,
                    shutdown_timeout=config.shutdown_timeout,
                )
                for number in range(config.gateways)
            ],
            {**environ, SHARED_VARIABLE: str(self._metrics)},
            on_exit=self._exited,
            on_hopeless=on_hopeless,
        )
        self._ended: deque[Ended] = deque(maxlen=REMEMBERED)
        self._writers: set[asyncio.StreamWriter] = set()
        self._serving: dict[InstanceId, Serving] = {}
        self._heard_at: dict[InstanceId, float] = {}
        self._is_ready = False
        self._over = asyncio.Event()
        self.troubles: Callable[[Role], tuple[str, ...]] = lambda _: ()
        self.local_workers: Callable[[], tuple[LocalWorker, ...]] = tuple

    def _reserve(self) -> int:
        """The port, held by a socket that does not listen while gateways come and go."""
        config = self._config
        if config.port:  # by nobody else either who shares it with his own
            with bound(config.host, config.port):
                pass
        held = self._stack.enter_context(bound(config.host, config.port, shared=True))
        return int(held.getsockname()[1])

    @property
    def port(self) -> int:
        return self._port

    # --- a front ------------------------------------------------------------------------------

    async def serve(self) -> None:
        """Until told to stop, and the last gateway has ended."""
        server = await asyncio.start_unix_server(
            self._hear, str(self._roster), limit=MAX_LINE_BYTES
        )
        telling = asyncio.create_task(self._tell())
        try:
            self._supervisor.start()
            await self._over.wait()
        finally:
            telling.cancel()
            await self._supervisor.stop()
            server.close()
            self._roster.unlink(missing_ok=True)
            self._stack.close()

    async def up(self, wanted: Mapping[Role, int]) -> None:
        """Until every gateway serves with so many workers."""
        while not self._is_up(wanted):  # noqa: ASYNC110 - told by several, and seldom waited for
            await asyncio.sleep(LOOK_S)
        self._is_ready = True

    async def drain(self) -> None:
        """Each finishes what it has in flight, and leaves."""
        await self._supervisor.stop(within_s=self._config.shutdown_timeout + LEAVE_S)
        self._over.set()

    def leave_at_once(self) -> None:
        self._supervisor.kill()
        self._over.set()

    def worker_ended(self, worker: InstanceId, *, crashed: bool) -> None:
        """Its process is no more: the gateways are told at once."""
        self._ended.append(Ended(worker, crashed))
        self._write(msgspec.json.encode(self._state()) + b"\n")

    # --- what gateways and launcher tell each other -------------------------------------------

    def _is_up(self, wanted: Mapping[Role, int]) -> bool:
        return len(self._serving) == self._config.gateways and all(
            told.up.get(role, 0) >= n
            for told in self._serving.values()
            for role, n in wanted.items()
        )

    def _state(self) -> Roster:
        ended = {one.instance for one in self._ended}
        fleet = self._control.engine.fleet
        return Roster(
            workers=tuple(fleet.hello(i).peer for i in fleet.instances() if i not in ended),
            ended=tuple(self._ended),
            troubles={role: self.troubles(role) for role in (Role.PREFILL, Role.DECODE)},
            local=self.local_workers(),
            ready=self._is_ready,
            gateways=self._supervisor.workers(),
        )

    async def _tell(self) -> None:
        teller, looked_at = Teller(), time.monotonic()
        while True:
            self._write(teller.due(self._state()))
            now = time.monotonic()
            if now - looked_at > PAUSE_S:
                self._heard_at = dict.fromkeys(self._heard_at, now)
            looked_at = now
            for instance, heard_at in list(self._heard_at.items()):
                if now - heard_at > SILENT_S:
                    del self._heard_at[instance], self._serving[instance]
                    self._supervisor.hung(instance)
            await asyncio.sleep(LOOK_S)

    def _write(self, data: bytes) -> None:
        for writer in self._writers:
            if data and writer.transport.get_write_buffer_size() < UNREAD_BYTES:
                writer.write(data)

    async def _hear(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One gateway, to its end."""
        writer.write(msgspec.json.encode(self._state()) + b"\n")
        self._writers.add(writer)
        try:
            while told := await reader.readline():
                serving = msgspec.json.decode(told, type=Serving)
                if serving.instance not in self._heard_at:
                    self._supervisor.joined(serving.instance)
                self._serving[serving.instance] = serving
                self._heard_at[serving.instance] = time.monotonic()
        except ConnectionError:
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    def _exited(self, gateway: InstanceId, _code: int) -> None:
        """What it had is given back, here and at the workers."""
        self._serving.pop(gateway, None)
        self._heard_at.pop(gateway, None)
        remove_sockets(self._run_dir, gateway)
        for number, one in enumerate(self._supervisor.workers()):
            if one.instance == gateway:
                self._places.clear(number)
                mark_process_dead(number, str(self._metrics))
        now = time.monotonic()
        for worker in self._control.engine.fleet.instances():
            self._control.links.send(worker, PeerLost(instance=gateway), now)
