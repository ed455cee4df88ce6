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
from asyncio.subprocess import PIPE, Process
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from common.ids import InstanceId, Role
from common.log import field_of, line
from common.values import LogLevel
from launch.said import pass_on

BACKOFF_S = 0.25  # before the first restart; doubles
MAX_BACKOFF_S = 15.0
STEADY_S = 10.0  # up for so long, a worker's next restart waits as the first one does
START_SILENT_S = 300.0  # a worker that says nothing for so long, and has not joined, hangs
UNHEARD_S = 3600.0  # the same where its log level hides that it goes on
SILENT_S = 30.0  # not up any more for so long, a worker that lives is killed: it may be stopped
REPORTED_STARTS = 3  # that fail in a row, before it is an error of its own
LAST_LINES = 20  # of a worker's log, kept to be told with that error
CRASHES = (  # exit codes of a worker that nobody killed: an exception, and signals of its own doing
    1,
    *(-number for number in (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE)),
)
NOT_STARTED = 127  # instead of an exit code, as shells have it
SETUP_EXIT = 2  # of a worker that names what its operator must change
KILL_AFTER_S = 5.0  # SIGKILL for who does not leave on SIGTERM
AGAIN_S = 0.2  # between two signals, which the system would take for one
LEAVE_S = 10.0  # for a worker that is restarted, beyond the time that its requests get

_log = logging.getLogger(__name__)


_MODULES = {
    Role.PREFILL: "prefill.worker",
    Role.DECODE: "decode.worker",
    Role.GATEWAY: "launch.gateway.process",
}


class Kept(Protocol):
    """What a process is started with: a WorkerConfig, say. Travels to it as JSON."""

    @property
    def role(self) -> Role: ...

    @property
    def name(self) -> str: ...

    @property
    def log_level(self) -> LogLevel: ...

    @property
    def threads(self) -> int: ...

    @property
    def shutdown_timeout(self) -> float: ...


@dataclass(slots=True, eq=False)
class _Worker:
    """One configuration: the process that lives by it, and what became of those before."""

    config: Kept
    instance: InstanceId | None = None
    process: Process | None = None
    restarts: int = 0  # that nobody asked for
    up_at: float | None = None  # seconds, the loop's clock; None: it has not joined yet
    silence: asyncio.TimerHandle | None = None  # runs while it is not up yet, or not any more
    failed_starts: int = 0  # lives in a row that ended before they had joined
    trouble: str = ""  # how the last one ended, until the next has joined
    lines: deque[str] = field(default_factory=lambda: deque[str](maxlen=LAST_LINES))
    has_joined: bool = False  # one of its lives has
    leaving: bool = False  # it was told to, to be started again
    settled: "asyncio.Future[bool] | None" = None  # its restart: whether the next life joins

    def settle(self, *, joined: bool) -> None:
        """Its next life has joined, or has ended before."""
        if self.settled is not None and not self.settled.done():
            self.settled.set_result(joined)

    def stop_waiting(self) -> None:
        """It is up, or has ended."""
        if self.silence is not None:
            self.silence.cancel()
            self.silence = None


@dataclass(frozen=True, slots=True)
class LocalWorker:
    """A worker that is kept alive here, as its supervisor knows it."""

    name: str
    role: Role
    instance: InstanceId | None  # of its last life; None: it was never started
    pid: int | None  # None: it is not alive
    joined: bool  # in this life
    restarts: int
    trouble: str  # how its last life ended; empty once the next has joined


class Supervisor:
    """Keeps one process a configuration alive until `stop`."""

    def __init__(
        self,
        workers: Sequence[Kept],
        environ: Mapping[str, str],
        *,
        on_exit: Callable[[InstanceId, int], None],
        on_hopeless: Callable[[str, str], None],
    ) -> None:
        """`on_exit` hears of every process that has ended: which instance, with what exit code;
        `on_hopeless` of a worker that another start would not help: its name, and what it said
        that its operator must change."""
        self._workers = [_Worker(config) for config in workers]
        self._environ = environ
        self._on_exit = on_exit
        self._on_hopeless = on_hopeless
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = asyncio.Event()

    def start(self) -> None:
        """Start all, in the running loop."""
        self._tasks = [asyncio.create_task(self._keep(worker)) for worker in self._workers]

    async def stop(self, within_s: float = KILL_AFTER_S) -> None:
        """SIGTERM to all, SIGKILL to who stays; returns when none is left."""
        self._stopping.set()
        self._signal_all(signal.SIGTERM)
        pending = {task for task in self._tasks if not task.done()}
        if pending:
            _, pending = await asyncio.wait(pending, timeout=within_s)
        self.kill()
        if pending:
            await asyncio.wait(pending)

    def kill(self) -> None:
        """SIGKILL to all that are left. `stop` is still to be awaited."""
        self._stopping.set()
        self._signal_all(signal.SIGKILL)

    def _signal_all(self, number: signal.Signals) -> None:
        for worker in self._workers:
            if worker.process is not None:
                _signal(worker.process, number)

    # --- what others know of workers ---------------------------------------------------------

    def joined(self, instance: InstanceId) -> None:
        """That instance is up, if it is one of ours."""
        for worker in self._of(instance):
            worker.up_at, worker.failed_starts, worker.trouble = _now(), 0, ""
            worker.has_joined = True
            worker.stop_waiting()
            worker.settle(joined=True)

    def silent(self, instance: InstanceId) -> None:
        """That instance is not up any more. If it lives, it has a while to come back."""
        for worker in self._of(instance):
            self._give(worker, SILENT_S, "worker_silent")

    def hung(self, instance: InstanceId) -> None:
        """That instance makes no progress, and will not."""
        for worker in self._of(instance):
            self._kill(worker, "worker_hung")

    def _of(self, instance: InstanceId) -> list[_Worker]:
        return [w for w in self._workers if w.instance == instance and w.process is not None]

    def _give(self, worker: _Worker, seconds: float, why: str) -> None:
        """So long from now, to be up."""
        worker.stop_waiting()
        loop = asyncio.get_running_loop()
        worker.silence = loop.call_later(seconds, self._kill, worker, why)

    def _starting(self, worker: _Worker) -> None:
        """It starts, or shows that it goes on to: to load a model may take long."""
        if worker.up_at is None:
            tells = worker.config.log_level in ("debug", "info")
            self._give(worker, START_SILENT_S if tells else UNHEARD_S, "worker_hangs_at_start")

    def _kill(self, worker: _Worker, why: str) -> None:
        if worker.process is not None:
            _log.error(line(why, worker=worker.config.name))
            _signal(worker.process, signal.SIGKILL)

    def troubles(self, role: Role) -> tuple[str, ...]:
        """Why workers of that pool are not up, as far as ends of processes tell."""
        return tuple(w.trouble for w in self._workers if w.config.role is role and w.trouble)

    # --- a restart, one by one ---------------------------------------------------------------

    async def restart_each(self, n_up: Callable[[Role], int]) -> str:
        """One after the other: what it has in hand ends, it leaves, it is started again, and is up
        before the next one's turn comes. "": all were.

        Else the trouble of one that did not come up again: it is started again and again, as any
        that fails, and those after it are left as they are. `n_up`: workers of a pool that are up.
        """
        for worker in self._workers:
            role, name, began = worker.config.role, worker.config.name, _now()
            _log.info(line("worker_restarting", worker=name))
            # Nobody else could go on with what it decodes: that waits for its next life, the
            # shorter the better. Prompts are computed by decode workers meanwhile.
            alone = role is Role.DECODE and n_up(role) <= 1
            if not await self._restart(worker, at_once=alone):
                return worker.trouble
            _log.info(line("worker_restarted", worker=name, seconds=round(_now() - began, 1)))
        return ""

    async def _restart(self, worker: _Worker, *, at_once: bool) -> bool:
        """False: its next life has ended before it joined."""
        if worker.process is not None:
            worker.leaving = True
            await self._leave(worker, worker.process, at_once=at_once)
        worker.settled = asyncio.get_running_loop().create_future()
        try:
            return await worker.settled
        finally:
            worker.settled = None

    async def _leave(self, worker: _Worker, process: Process, *, at_once: bool) -> None:
        """Told twice it finishes nothing."""
        waits_s = [worker.config.shutdown_timeout + LEAVE_S]
        for wait_s in [AGAIN_S, *waits_s] if at_once else waits_s:
            _signal(process, signal.SIGTERM)
            with suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), wait_s)
                return
        self._kill(worker, "worker_does_not_leave")
        await process.wait()

    def workers(self) -> tuple[LocalWorker, ...]:
        return tuple(
            LocalWorker(
                name=w.config.name,
                role=w.config.role,
                instance=w.instance,
                pid=None if w.process is None else w.process.pid,
                joined=w.up_at is not None,
                restarts=w.restarts,
                trouble=w.trouble,
            )
            for w in self._workers
        )

    # --- lives -------------------------------------------------------------------------------

    async def _keep(self, worker: _Worker) -> None:
        backoff_s = BACKOFF_S
        while not self._stopping.is_set():
            instance = InstanceId(uuid.uuid4().hex)
            worker.instance, worker.up_at = instance, None
            try:
                code = await self._live(worker, instance)
            except OSError as error:  # of our own: no descriptor or no memory is left
                _log.error(line("worker_not_started", worker=worker.config.name, detail=str(error)))
                code = NOT_STARTED
            self._on_exit(instance, code)
            if self._stopping.is_set():
                return
            if worker.leaving:
                worker.leaving = False
                backoff_s = BACKOFF_S
                continue
            if code == SETUP_EXIT and not worker.has_joined:
                self._on_hopeless(worker.config.name, _reason(worker.lines))
                return
            if worker.up_at is not None and _now() - worker.up_at >= STEADY_S:
                backoff_s = BACKOFF_S
            wait_s = backoff_s * random.uniform(0.5, 1.5)
            self._report(worker, code, wait_s)
            worker.settle(joined=False)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), wait_s)
            backoff_s = min(2 * backoff_s, MAX_BACKOFF_S)
            worker.restarts += not self._stopping.is_set()

    def _report(self, worker: _Worker, code: int, wait_s: float) -> None:
        name = worker.config.name
        worker.failed_starts += worker.up_at is None
        n_failed = worker.failed_starts
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        worker.trouble = f"{name} ended with {how}"
        if n_failed:
            worker.trouble += f", {n_failed} time{'s' * (n_failed > 1)} before it had joined"
        if code == SETUP_EXIT:
            worker.trouble += f": {_reason(worker.lines)}"
        _log.error(line("worker_exited", worker=name, exit_code=code, restart_in_s=wait_s))
        if n_failed and n_failed % REPORTED_STARTS == 0:
            said = " | ".join(worker.lines)
            _log.error(
                line(
                    "worker_fails_at_start", worker=name, starts=n_failed, exit_code=code, log=said
                )
            )

    async def _live(self, worker: _Worker, instance: InstanceId) -> int:
        """One life of a worker, from its start to its exit code (negative: a signal).

        Raises OSError where it cannot be started.
        """
        config = worker.config
        config_fd = _in_memory(msgspec.json.encode(config))
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",  # the folder we happen to be in must not shadow our packages
                "-m",
                _MODULES[config.role],
                "--config-fd",
                str(config_fd),
                "--instance",
                instance,
                "--parent",
                str(os.getpid()),
                pass_fds=[config_fd],
                stdin=asyncio.subprocess.DEVNULL,
                stderr=PIPE,
                env={**self._environ, **_thread_limits(config.threads)},
                start_new_session=True,  # Ctrl-C is ours: workers leave when they are told to
            )
        finally:
            os.close(config_fd)
        worker.process = process
        if self._stopping.is_set():  # it was being started when all were told to stop
            _signal(process, signal.SIGKILL)
        self._starting(worker)
        try:
            await pass_on(process, config.name, worker.lines, lambda: self._starting(worker))
            return await process.wait()
        finally:
            worker.process = None
            worker.stop_waiting()


def _in_memory(content: bytes) -> int:
    """A descriptor to read it from; a pipe would hold 64 KiB, and its reader may never come."""
    made = os.memfd_create("config")
    with os.fdopen(made, "wb", closefd=False) as file:
        file.write(content)
    os.lseek(made, 0, os.SEEK_SET)
    return made


def _reason(lines: Sequence[str]) -> str:
    """Why it cannot start, as `common.engine.worker.entry` logs it."""
    for text in reversed(lines):
        detail = field_of(text, "cannot_start", "detail")
        if detail is not None:
            return detail
    return "its log tells why"


def _now() -> float:
    return asyncio.get_running_loop().time()


def _thread_limits(threads: int) -> dict[str, str]:
    """Read by the maths libraries when they are loaded, so set before the process starts."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    # Workers share a host's cores: threads that spin while they wait would take them from others.
    return {**dict.fromkeys(names, str(threads)), "OMP_WAIT_POLICY": "PASSIVE"}


def _signal(process: Process, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        process.send_signal(number)
