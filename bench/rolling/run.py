"""The server, its load, and what is done to it meanwhile. Knows HTTP, processes and logs alone."""

import asyncio
import os
import random
import re
import signal
import sys
import time
from asyncio.subprocess import DEVNULL, Process
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from bench.client import Outcome, Request, Target, send
from bench.rolling.record import Mark, Record, Up
from bench.sender import open_session
from bench.server import NotReady, Server, free_port, running

MODEL = "rolling"
ROLES = ("prefill", "decode")
N_PROMPTS = 8
VOCABULARY = (1000, 30_000)
LOOK_EVERY_S = 0.2
WAIT_S = 600.0  # for anything that is to come about
DRAIN_S = 10  # what is in hand gets so long; then it goes on elsewhere
SHARED = (
    *("--served-model-name", MODEL, "--dtype", "float32", "--max-model-len", "1024"),
    *("--kv-cache-memory-bytes", "128MiB", "--shutdown-timeout", str(DRAIN_S)),
)
_EVENT = re.compile(r" event=(worker_restarting|worker_restarted) worker=(\S+)")
_END = re.compile(r" event=(rolling_restarted|rolling_restart_stopped) .*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What is to be done."""

    model: str | None  # as `baton serve --model` takes it
    workers: int  # of each pool
    rate: float  # requests/s
    prompt_tokens: int
    output_tokens: int
    calm_s: float  # before, between and after
    seed: int
    flags: tuple[str, ...]  # of the server and of the worker that joins

    @property
    def model_flags(self) -> tuple[str, ...]:
        return () if self.model is None else ("--model", self.model)


def roll(settings: Settings, logs: Path) -> tuple[Record, dict[int, tuple[int, int]]]:
    """The record, and by request's index what it asked: (which prompt, how many tokens).

    Raises NotReady where the server does not start, or a worker does not come up again.
    """
    control_port = free_port()
    pools = [part for role in ROLES for part in (f"--{role}", str(settings.workers))]
    flags = (*pools, *SHARED, "--control-port", str(control_port), *settings.flags)
    with running((*settings.model_flags, *flags), log=logs / "server.log") as server:
        return asyncio.run(_Run(server, settings, logs, control_port).whole())


class _Run:
    def __init__(self, server: Server, settings: Settings, logs: Path, control_port: int) -> None:
        self._server = server
        self._settings = settings
        self._logs = logs
        self._join = f"tcp://127.0.0.1:{control_port}"
        self._draw = random.Random(settings.seed)
        self._prompts = [
            [self._draw.randrange(*VOCABULARY) for _ in range(settings.prompt_tokens)]
            for _ in range(N_PROMPTS)
        ]
        self._record = Record(settings.calm_s)
        self._wanted: dict[int, tuple[int, int]] = {}
        self._began = time.perf_counter()
        self._up = dict.fromkeys(ROLES, 0)

    async def whole(self) -> tuple[Record, dict[int, tuple[int, int]]]:
        target = Target(base_url=self._server.url, model=MODEL)
        async with open_session(target) as session:
            watching = asyncio.create_task(self._watch(session))
            try:
                await self._until(self._all_up, "all workers up")
                await self._answer(session, target, 0)  # the first costs more than any other
                self._began = time.perf_counter()
                self._record.up.clear()
                loading = asyncio.create_task(self._load(session, target))
                await self._disturb()
                loading.cancel()
                with suppress(asyncio.CancelledError):
                    await loading
            finally:
                watching.cancel()
        return self._record, self._wanted

    def _all_up(self) -> bool:
        return all(n == self._settings.workers for n in self._up.values())

    def _now(self) -> float:
        return time.perf_counter() - self._began

    # --- the load ------------------------------------------------------------------------------

    async def _load(self, session: aiohttp.ClientSession, target: Target) -> None:
        """Until it is cancelled; what has been sent is answered then, too."""
        sent: list[asyncio.Task[Outcome]] = []
        at_s = 0.0
        try:
            while True:
                at_s += self._draw.expovariate(self._settings.rate)
                await asyncio.sleep(max(0.0, at_s - self._now()))
                sent.append(asyncio.create_task(self._answer(session, target, len(sent))))
        finally:
            self._record.outcomes = list(await asyncio.gather(*sent))

    async def _answer(self, session: aiohttp.ClientSession, target: Target, index: int) -> Outcome:
        """Which prompt is asked, and for how many tokens, its index alone decides. One in eight
        answers is so long that it outlives the time that a worker gets to finish."""
        number = index % N_PROMPTS
        n_tokens = self._settings.output_tokens * (8 if number == N_PROMPTS - 1 else 1)
        self._wanted[index] = (number, n_tokens)
        request = Request(prompt=self._prompts[number], max_tokens=n_tokens)
        outcome = Outcome(index=index, scheduled_s=self._now(), sent_s=self._now())
        await send(session, target, request, outcome, self._began)
        return outcome

    # --- what is done ----------------------------------------------------------------------------

    async def _disturb(self) -> None:
        calm_s = self._settings.calm_s
        await asyncio.sleep(calm_s)
        await self._restart_each()
        await asyncio.sleep(calm_s)
        async with self._joined() as process:
            n = self._settings.workers
            await self._until(lambda: self._up["prefill"] > n, "one more prefill worker up")
            self._mark("a prefill worker has joined")
            await asyncio.sleep(calm_s)
            self._mark("it is told to leave")
            process.send_signal(signal.SIGTERM)
            code = await asyncio.wait_for(process.wait(), WAIT_S)
            if code != 0:
                raise NotReady(f"the worker that left ended with {code}")
            self._mark("it has left")
        await asyncio.sleep(calm_s)

    async def _restart_each(self) -> None:
        os.kill(self._server.pid, signal.SIGHUP)
        log, told = self._logs / "server.log", 0
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            text = log.read_text("utf-8", "replace")
            events = _EVENT.findall(text)
            for event, worker in events[told:]:
                self._mark(f"{worker} {event.removeprefix('worker_')}")
            told = len(events)
            ended = _END.search(text)
            if ended is not None:
                if ended[1] != "rolling_restarted":
                    raise NotReady(ended[0].strip())
                return
            await asyncio.sleep(LOOK_EVERY_S)
        raise NotReady(f"the workers are not restarted after {WAIT_S:g} s")

    @asynccontextmanager
    async def _joined(self) -> AsyncIterator[Process]:
        """A worker of its own, as an operator starts it."""
        flags = (*self._settings.model_flags, *SHARED, *self._settings.flags)
        self._mark("a prefill worker is started")
        with (self._logs / "joined.log").open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "launch.cli", "prefill", "--join", self._join),
                *flags,
                stdin=DEVNULL,
                stderr=log,
            )
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    def _mark(self, what: str) -> None:
        mark = Mark(self._now(), what)
        print(f"{mark.at_s:.1f} s: {what}", file=sys.stderr, flush=True)
        self._record.marks.append(mark)

    # --- watching --------------------------------------------------------------------------------

    async def _watch(self, session: aiohttp.ClientSession) -> None:
        while True:
            with suppress(aiohttp.ClientError, TimeoutError):
                async with session.get(f"{self._server.url}/ready") as response:
                    state = await response.json()
                self._up = {role: int(state[role]["up"]) for role in ROLES}
                self._record.up.append(Up(self._now(), **self._up))
            await asyncio.sleep(LOOK_EVERY_S)

    async def _until(self, holds: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + WAIT_S
        while not holds():
            if time.monotonic() > deadline:
                raise NotReady(f"{what}: not after {WAIT_S:g} s")
            await asyncio.sleep(LOOK_EVERY_S)
