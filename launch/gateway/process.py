"""One of several gateways of a server: a process that shares the HTTP port with the others.

`python -P -m launch.gateway.process --config-fd N`: as a launcher starts it. It learns from the
launcher who the workers are (`launch.gateway.roster`), and is a whole gateway to them.
"""

import argparse
import asyncio
import logging
import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec

from common.config import ServeConfig
from common.engine.process import die_with, leave_joining_to_parent
from common.errors import SetupError
from common.ids import InstanceId, Role
from common.log import line, log_what_python_says, set_up_logging
from common.messages import ModelIdentity
from common.metrics import GatewayMetrics, share_values
from common.sections import Section
from common.values import LogLevel
from launch.gateway.control import Control
from launch.gateway.own_part import part_of
from launch.gateway.parts import Part
from launch.gateway.places import Places
from launch.gateway.roster import Follower
from launch.gateway.server import HttpServer, bound
from launch.gateway.siblings import Siblings
from launch.leaving import left, run

EXIT_CRASHED = 1
EXIT_SETUP = 2
LINK_S = 5.0  # to get to know the workers, before a connection is taken

_log = logging.getLogger(__name__)


class GatewayConfig(Section, frozen=True, kw_only=True):
    """What the process needs. Travels to it as JSON, its keys with it."""

    serve: ServeConfig  # `port` is the one that is shared
    identity: ModelIdentity  # what workers must have
    number: int
    roster: str  # the launcher's socket
    places: str  # a file, of `launch.gateway.places`
    metrics: str  # a directory where all gateways count
    name: str
    log_level: LogLevel
    shutdown_timeout: float  # seconds
    threads: int = 1
    role: Role = Role.GATEWAY


class _Gateway:
    """The parts of one."""

    def __init__(self, config: GatewayConfig, instance: InstanceId, parent: int) -> None:
        serve, number = config.serve, config.number
        self._config = config
        self._parent = parent
        metrics = GatewayMetrics(serve.served_model_name or "", shared=Path(config.metrics))
        self._control = Control(serve, config.identity, instance, metrics, port=0)
        self._control.engine.on_crash = self._crashed
        self._follower = Follower(self._control)
        places = Places(len(serve.api_key or ()), shared=Path(config.places), gateway=number)
        engine, follower = self._control.engine, self._follower
        self._server = HttpServer(serve, engine, metrics, places, follower.all_ready)
        self._server.tells_misfits = number == 0
        self._siblings = Siblings(
            Path(serve.run_dir or ""), instance, self._part, follower.siblings
        )
        engine.history.elsewhere = self._siblings.ask
        self._draining: asyncio.Task[None] | None = None
        self._exit_code = 0

    async def run(self) -> int:
        """From start to the end of the last answer; the exit code."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._told_to_stop)
        with ExitStack() as stack:
            stack.callback(self._control.close)
            self._control.engine.start()
            following = asyncio.create_task(
                self._follower.follow(Path(self._config.roster), self._leave_at_once)
            )
            stack.callback(following.cancel)
            stack.callback(self._siblings.close)
            await self._siblings.listen()
            await self._server.prepare()
            await self._follower.linked(LINK_S)
            serve = self._config.serve
            listener = stack.enter_context(bound(serve.host, serve.port, shared=True))
            await self._server.serve_at(listener, self._serves)
        return self._exit_code

    def _part(self, after: float) -> Part:
        history, in_progress = self._control.engine.history, self._server.in_progress()
        return part_of(history, in_progress, time.monotonic(), after)

    def _serves(self) -> None:
        self._follower.serving = True
        _log.info(line("serving", pid=os.getpid()))

    def _told_to_stop(self) -> None:
        """First: finish what is in flight. Again, or by the launcher's death: at once."""
        if self._draining is not None or os.getppid() != self._parent:
            self._leave_at_once()
        else:
            self._draining = asyncio.create_task(self._server.drain())

    def _leave_at_once(self) -> None:
        self._server.leave_at_once()

    def _crashed(self, error: BaseException) -> None:
        _log.critical(line("gateway_crashed"), exc_info=error)
        self._exit_code = EXIT_CRASHED
        self._leave_at_once()


def main(argv: Sequence[str]) -> int:
    """The exit code; 2 where the operator must act."""
    parser = argparse.ArgumentParser(description="Started by a launcher; people use `baton`.")
    parser.add_argument("--config-fd", type=int, required=True, help="to read a JSON config from")
    parser.add_argument("--instance", required=True, help="uuid4 hex")
    parser.add_argument("--parent", type=int, required=True, help="process id of the launcher")
    told = parser.parse_args(argv)
    with os.fdopen(told.config_fd, "rb") as file:
        config = msgspec.json.decode(file.read(), type=GatewayConfig)
    instance = InstanceId(told.instance)
    name, form = f"{config.name}/{instance[:8]}", config.serve.log_format
    set_up_logging(config.log_level, name, log_format=form)
    log_what_python_says()
    logging.getLogger("uvicorn").setLevel(logging.WARNING)  # it would tell its own starts and stops
    leave_joining_to_parent(config.log_level)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the launcher's to judge
    try:
        die_with(told.parent)
        share_values(config.number)
        return left(run(_Gateway(config, instance, told.parent).run()))
    except SetupError as error:
        _log.error(line("cannot_start", detail=str(error)))
        return EXIT_SETUP


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
