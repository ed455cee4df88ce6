"""A run of chaos: the server, its clients, and whoever strikes its workers, from start to gone.

Does what `bench.chaos.plan` says and writes down what happened; `bench.chaos.verdict` judges it.
"""

import asyncio
import json
import re
import signal
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import aiohttp

from bench.chaos import processes
from bench.chaos.load import Clients
from bench.chaos.plan import Fault, Kind, Struck, Worker, target
from bench.chaos.record import Answer, Census, Record, Sample, Settings
from bench.client import Target
from bench.sender import open_session
from bench.server import NotReady, Server, running

POOLS = {"prefill": 2, "decode": 2}
FLAGS = (
    *("--prefill", str(POOLS["prefill"]), "--decode", str(POOLS["decode"])),
    *("--served-model-name", "chaos", "--dtype", "float32", "--disaggregate", "always"),
    *("--max-model-len", "1024", "--kv-cache-memory-bytes", "128MiB", "--chunk-tokens", "64"),
)
WATCH_EVERY_S = 5.0
CUT_EVERY_S = 0.025
WHOLE_S = 120.0  # for all workers to be up, and at rest
LEFT_S = 15.0  # for what ends with the server to end
POLL_S = 0.2
_LOAD = re.compile(
    r"^baton:(?:num_requests_running|num_requests_waiting|kv_cache_usage_perc)"
    r'\{.*role="(\w+)".*\} ([0-9.e+-]+)$',
    re.MULTILINE,
)


def disturb(settings: Settings, logs: Path) -> Record:
    """Raises NotReady where the server does not start, or does not answer undisturbed."""
    record = Record(settings, request_log=logs / "requests.jsonl", server_log=logs / "server.log")
    record.request_log.unlink(missing_ok=True)  # of an earlier run: it is appended to
    names = processes.shared_names()
    with tempfile.TemporaryDirectory(prefix="bc-") as home:
        run_dir = Path(home) / "run"
        where = ("--run-dir", str(run_dir), "--request-log", str(record.request_log))
        with running((*FLAGS, *where, *settings.flags), log=record.server_log) as server:
            asyncio.run(_Run(server, record, run_dir).whole())
        record.left = _left(server.pid, names)
    return record


def _left(gateway: int, names: frozenset[str]) -> list[str]:
    """What outlives a server that has ended."""
    deadline = time.monotonic() + LEFT_S
    while (left := processes.started_by(gateway)) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    return [*left, *processes.orphans(processes.shared_names() - names)]


class _Run:
    def __init__(self, server: Server, record: Record, run_dir: Path) -> None:
        self._server = server
        self._record = record
        self._run_dir = run_dir
        self._settings = record.settings
        self._target = Target(base_url=server.url, model="chaos")
        self._busy: set[int] = set()  # process ids for which a fault still lasts

    async def whole(self) -> None:
        record, settings = self._record, self._settings
        if not await self._rests():
            raise NotReady("not all workers are up and at rest")
        self._check_cuts()
        record.before = await self._with_clients(lambda clients: clients.each_once())
        for outcome in (answer.outcome for answer in record.before):
            if outcome.error:
                raise NotReady(f"undisturbed, it answers {outcome.error}: {outcome.message}")
        await self._rests()
        record.at_first = await self._census()
        record.began = time.monotonic()
        began = time.perf_counter()
        watching = asyncio.create_task(self._watch())
        striking = asyncio.create_task(self._strike_all())
        try:
            record.during = await self._with_clients(
                lambda clients: clients.run(
                    settings.seed, settings.n_clients, began, settings.seconds
                )
            )
            await striking
        finally:
            for task in (watching, striking):
                task.cancel()
            await asyncio.gather(watching, striking, return_exceptions=True)
        ended = time.monotonic()
        if await self._rests():
            record.rested_after_s = time.monotonic() - ended
            record.after = await self._with_clients(lambda clients: clients.each_once())
            await self._rests()
            record.at_last = await self._census()

    def _check_cuts(self) -> None:
        cuts = any(fault.kind is Kind.CUT for fault in self._settings.faults)
        with processes.victim(processes.workers(self._server.pid)[0].pid) as victim:
            if cuts and victim is not None and not victim.can_be_cut:
                raise NotReady("--kinds kill stop: the system forbids us to cut a worker off")

    async def _with_clients(
        self, work: Callable[[Clients], Awaitable[list[Answer]]]
    ) -> list[Answer]:
        async with open_session(self._target) as session:
            return await work(Clients(session, self._target, self._settings.prompts))

    def _now(self) -> float:
        return time.monotonic() - self._record.began

    # --- striking ------------------------------------------------------------------------------

    async def _strike_all(self) -> None:
        async with asyncio.TaskGroup() as lasting:
            for fault in self._settings.faults:
                await asyncio.sleep(max(0.0, fault.at_s - self._now()))
                workers = processes.workers(self._server.pid)
                worker = target(fault, workers, frozenset(self._busy))
                if worker is None:
                    self._record.n_spared += 1
                else:
                    lasting.create_task(self._strike(fault, worker))

    async def _strike(self, fault: Fault, worker: Worker) -> None:
        with processes.victim(worker.pid) as victim:
            if victim is None:
                self._record.n_spared += 1
                return
            struck = Struck(fault, worker, self._now())
            print(struck, file=sys.stderr)
            self._record.struck.append(struck)
            self._busy.add(worker.pid)
            try:
                await self._last(fault, victim)
            finally:
                self._busy.discard(worker.pid)

    async def _last(self, fault: Fault, victim: processes.Victim) -> None:
        match fault.kind:
            case Kind.KILL:
                victim.send(signal.SIGKILL)
            case Kind.STOP:
                victim.send(signal.SIGSTOP)
                try:
                    await asyncio.sleep(fault.lasts_s)
                finally:
                    victim.send(signal.SIGCONT)
            case Kind.CUT:
                until_s = self._now() + fault.lasts_s
                victim.drop_connections()
                while self._now() < until_s:
                    await asyncio.sleep(CUT_EVERY_S)
                    victim.drop_connections()

    # --- watching ------------------------------------------------------------------------------

    async def _watch(self) -> None:
        while True:
            for name, pid in self._processes().items():
                n_bytes = processes.anonymous_bytes(pid)
                if n_bytes:
                    self._record.samples.setdefault(name, []).append(Sample(self._now(), n_bytes))
            await asyncio.sleep(WATCH_EVERY_S)

    def _processes(self) -> dict[str, int]:
        """Process ids by name."""
        gateway = self._server.pid
        found = {f"{worker.role} {worker.pid}": worker.pid for worker in processes.workers(gateway)}
        return {"gateway": gateway, **found}

    async def _census(self) -> Census:
        await asyncio.sleep(1.0)  # for the clients' connections to be gone
        return Census(
            {name: processes.n_descriptors(pid) for name, pid in self._processes().items()},
            sum(1 for _ in self._run_dir.iterdir()),
        )

    async def _rests(self) -> bool:
        """All workers are up, and hold nothing, for a moment. False: not within `WHOLE_S`."""
        deadline = time.monotonic() + WHOLE_S
        n_seen = 0
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)) as session:
            while time.monotonic() < deadline:
                n_seen = n_seen + 1 if await self._rests_now(session) else 0
                if n_seen == 3:
                    return True
                await asyncio.sleep(POLL_S)
        return False

    async def _rests_now(self, session: aiohttp.ClientSession) -> bool:
        with suppress(aiohttp.ClientError, TimeoutError):
            state = json.loads(await self._page(session, "/ready"))
            up = {role: state[role]["up"] for role in POOLS}
            loads = _LOAD.findall(await self._page(session, "/metrics"))
            told = {role: sum(of == role for of, _ in loads) for role in POOLS}
            nothing = all(float(value) == 0 for _, value in loads)
            return nothing and up == POOLS and told == {role: 3 * n for role, n in POOLS.items()}
        return False

    async def _page(self, session: aiohttp.ClientSession, path: str) -> str:
        async with session.get(self._server.url + path) as response:
            return await response.text()
