"""Several client processes for one load, where one could not keep up with the answers.

The parent writes each child a job and the moment of the start on its stdin, and reads outcomes from
its stdout: msgpack after 4 bytes of length. The end of its stdin tells a child to stop. Imports
nothing of the engine.
"""

import asyncio
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Sequence

import msgspec
import uvloop

from bench.client import Outcome, Request, Target
from bench.sender import Sender, open_session

_LENGTH_BYTES = 4
_PIPE_BYTES = 1 << 20
_START_AFTER_S = 0.05  # all have read it by then


class Job(msgspec.Struct, frozen=True):
    """One process's part."""

    target: Target
    due: list[tuple[int, Request, float]]
    max_concurrency: int | None


async def run_processes(
    jobs: Sequence[Job], on_outcome: Callable[[Outcome], None], stop: asyncio.Event
) -> list[Outcome]:
    """One process a job; all have ended when it returns. Raises OSError if one dies before."""
    children = [await _start(job) for job in jobs]
    try:
        for child in children:
            await _read(_out(child))  # its ready
        began = msgspec.msgpack.encode(time.perf_counter() + _START_AFTER_S)
        for child in children:
            _write(_in(child), began)
        stopping = asyncio.create_task(_stop(children, stop))
        gathered = await asyncio.gather(*(_outcomes(child, on_outcome) for child in children))
        stopping.cancel()
    finally:
        for child in children:
            if child.returncode is None:
                child.kill()
            await child.wait()
    return sorted((o for outcomes in gathered for o in outcomes), key=lambda o: o.index)


async def _start(job: Job) -> Process:
    """In a session of its own: Ctrl-C is for the parent to judge."""
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",  # the folder we happen to be in must not shadow our packages
        "-m",
        "bench.processes",
        stdin=PIPE,
        stdout=PIPE,
        limit=_PIPE_BYTES,
        start_new_session=True,
    )
    _write(_in(child), msgspec.msgpack.encode(job))
    return child


async def _stop(children: Sequence[Process], stop: asyncio.Event) -> None:
    await stop.wait()
    for child in children:
        _in(child).close()


async def _outcomes(child: Process, on_outcome: Callable[[Outcome], None]) -> list[Outcome]:
    """Until it sends an empty message."""
    outcomes: list[Outcome] = []
    while data := await _read(_out(child)):
        outcomes.append(msgspec.msgpack.decode(data, type=Outcome))
        on_outcome(outcomes[-1])
    return outcomes


def _in(child: Process) -> asyncio.StreamWriter:
    assert child.stdin is not None
    return child.stdin


def _out(child: Process) -> asyncio.StreamReader:
    assert child.stdout is not None
    return child.stdout


def _write(to: asyncio.StreamWriter, data: bytes) -> None:
    to.write(len(data).to_bytes(_LENGTH_BYTES) + data)


async def _read(source: asyncio.StreamReader) -> bytes:
    """Raises OSError where the other side ended."""
    try:
        n_bytes = int.from_bytes(await source.readexactly(_LENGTH_BYTES))
        return await source.readexactly(n_bytes)
    except asyncio.IncompleteReadError:
        raise OSError("a client process ended before its load did") from None


# --- the child ---------------------------------------------------------------------------------


async def _child() -> None:
    loop = asyncio.get_running_loop()
    source = asyncio.StreamReader(limit=_PIPE_BYTES)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(source), sys.stdin)
    transport, protocol = await loop.connect_write_pipe(
        asyncio.streams.FlowControlMixin, sys.stdout
    )
    answers = asyncio.StreamWriter(transport, protocol, None, loop)
    job = msgspec.msgpack.decode(await _read(source), type=Job)
    async with open_session(job.target) as session:
        _write(answers, b"ready")
        began = msgspec.msgpack.decode(await _read(source), type=float)
        stop = asyncio.Event()
        stopping = asyncio.create_task(_stop_at_end(source, stop))
        sender = Sender(
            session,
            job.target,
            began=began,
            on_outcome=lambda outcome: _write(answers, msgspec.msgpack.encode(outcome)),
        )
        await sender.run(job.due, job.max_concurrency, stop)
        stopping.cancel()
    _write(answers, b"")
    await answers.drain()
    answers.close()


async def _stop_at_end(source: asyncio.StreamReader, stop: asyncio.Event) -> None:
    await source.read()
    stop.set()


if __name__ == "__main__":
    uvloop.run(_child())
