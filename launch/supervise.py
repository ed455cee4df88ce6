"""Worker processes of this host: started, watched, restarted with backoff, stopped together.

Knows processes, not requests: who is ready to serve is the gateway's knowledge.
"""

import asyncio
import logging
import os
import random
import signal
import sys
import uuid
from asyncio.subprocess import Process
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import msgspec

from common.config import WorkerConfig
from common.ids import InstanceId
from common.log import line

BACKOFF_S = 0.25  # before the first restart; doubles
MAX_BACKOFF_S = 15.0
STEADY_S = 10.0  # a life this long resets the backoff
SETUP_EXIT = 2  # of a worker that names what its operator must change
KILL_AFTER_S = 5.0  # SIGKILL for who does not leave on SIGTERM

_log = logging.getLogger(__name__)


class Supervisor:
    """Keeps one process a configuration alive until `stop`."""

    def __init__(
        self,
        workers: Sequence[WorkerConfig],
        environ: Mapping[str, str],
        *,
        on_exit: Callable[[InstanceId], None],
        on_hopeless: Callable[[str], None],
    ) -> None:
        """`on_exit` hears of every process that has ended, with the instance that it was;
        `on_hopeless` of a worker that another start would not help, by its name."""
        self._workers = workers
        self._environ = environ
        self._on_exit = on_exit
        self._on_hopeless = on_hopeless
        self._processes: dict[str, Process] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = asyncio.Event()

    def start(self) -> None:
        """Start all, in the running loop."""
        self._tasks = [asyncio.create_task(self._keep(worker)) for worker in self._workers]

    async def stop(self) -> None:
        """SIGTERM to all, SIGKILL to who stays; returns when none is left."""
        self._stopping.set()
        for process in self._processes.values():
            _signal(process, signal.SIGTERM)
        pending = {task for task in self._tasks if not task.done()}
        if pending:
            _, pending = await asyncio.wait(pending, timeout=KILL_AFTER_S)
        self.kill()
        if pending:
            await asyncio.wait(pending)

    def kill(self) -> None:
        """SIGKILL to all that are left. `stop` is still to be awaited."""
        self._stopping.set()
        for process in self._processes.values():
            _signal(process, signal.SIGKILL)

    async def _keep(self, worker: WorkerConfig) -> None:
        backoff_s = BACKOFF_S
        loop = asyncio.get_running_loop()
        while not self._stopping.is_set():
            began = loop.time()
            instance = InstanceId(uuid.uuid4().hex)
            code = await self._live(worker, instance)
            self._on_exit(instance)
            if self._stopping.is_set():
                return
            if code == SETUP_EXIT:
                self._on_hopeless(worker.name)
                return
            if loop.time() - began >= STEADY_S:
                backoff_s = BACKOFF_S
            wait_s = backoff_s * random.uniform(0.5, 1.5)
            _log.error(
                line("worker_exited", worker=worker.name, exit_code=code, restart_in_s=wait_s)
            )
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), wait_s)
            backoff_s = min(2 * backoff_s, MAX_BACKOFF_S)

    async def _live(self, worker: WorkerConfig, instance: InstanceId) -> int:
        """One life of a worker, from its start to its exit code (negative: a signal)."""
        reader, writer = os.pipe()
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",  # the folder we happen to be in must not shadow our packages
                "-m",
                f"{worker.role}.worker",
                "--config-fd",
                str(reader),
                "--instance",
                instance,
                "--parent",
                str(os.getpid()),
                pass_fds=[reader],
                stdin=asyncio.subprocess.DEVNULL,
                env={**self._environ, **_thread_limits(worker.threads)},
                start_new_session=True,  # Ctrl-C is ours: workers leave when they are told to
            )
            os.write(writer, msgspec.json.encode(worker))
        finally:
            os.close(reader)
            os.close(writer)
        self._processes[worker.name] = process
        if self._stopping.is_set():  # it was being started when all were told to stop
            _signal(process, signal.SIGKILL)
        try:
            return await process.wait()
        finally:
            del self._processes[worker.name]


def _thread_limits(threads: int) -> dict[str, str]:
    """Read by the maths libraries when they are loaded, so set before the process starts."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    # Workers share a host's cores: threads that spin while they wait would take them from others.
    return {**dict.fromkeys(names, str(threads)), "OMP_WAIT_POLICY": "PASSIVE"}


def _signal(process: Process, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        process.send_signal(number)
