"""What `baton profile` asks of a server, and the times that its client sees.

Prompts are random, so that no prefix cache holds them. Imports nothing of the engine, and judges
nothing: `bench.profile_fit` does.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from statistics import mean, median

import aiohttp
import numpy as np

from bench.client import Outcome, Request, Target, send
from bench.profile_fit import Alone, Beside, Probes, Steps, Together

ALONE_TOKENS = 10  # of each answer
ALONE_LENGTHS = (16, 64, 128, 192, 256, 384, 512, 768, 1024, 2048)  # of prompts
TOGETHER = ((4, 128), (4, 384), (2, 512))  # (prompts, tokens of each)
STREAMS = ((1, 64), (2, 64), (4, 64), (8, 64), (16, 64), (1, 768), (4, 768), (8, 768))
"""(Streams, tokens of each prompt.)"""
WINDOWS, WINDOW_STEPS = 3, 8  # whose mean steps are taken
UNSTEADY_STEPS = 3  # after the last of the streams has begun
N_BESIDE, BESIDE_TOKENS = 4, 64  # streams that prompts come beside
BURST = (4, 512)  # those prompts
N_ECHOES = 20
LOWEST_ID = 1000  # below are a vocabulary's special tokens and single bytes
_POLL_S = 0.01


class Prober:
    """Asks one server. Raises RuntimeError where a request fails."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        target: Target,
        *,
        seed: int,
        vocab_size: int,
        max_model_len: int,
    ) -> None:
        self._session = session
        self._target = target
        self._rng = np.random.default_rng(seed)
        self._vocab_size = vocab_size
        self._max_model_len = max_model_len
        self._began = time.perf_counter()

    async def all(self, done: Callable[[str], object] = lambda _: None) -> Probes:
        """One round. `done` is told what was measured, as it goes."""
        await self._alone(64)
        echoes = [await self._echo() for _ in range(N_ECHOES)]
        done("echoes")
        lengths = [n for n in ALONE_LENGTHS if n + ALONE_TOKENS <= self._max_model_len]
        alone = [await self._alone(n) for n in lengths for _ in range(2)]
        done("prompts alone")
        together = [await self._together(*many) for many in TOGETHER]
        done("prompts together")
        steps = [step for many in STREAMS for step in await self._steps(*many)]
        done("streams")
        beside = [await self._beside()]
        done("prompts beside streams")
        return Probes(
            echo_s=median(echoes),
            alone=tuple(alone),
            together=tuple(together),
            steps=tuple(steps),
            beside=tuple(beside),
        )

    async def _echo(self) -> float:
        began = time.perf_counter()
        async with self._session.get(f"{self._target.base_url}/v1/models") as response:
            await response.read()
        return time.perf_counter() - began

    async def _alone(self, n_tokens: int) -> Alone:
        (outcome,), tasks = self._send(1, n_tokens, ALONE_TOKENS)
        await asyncio.gather(*tasks)
        _must_be_well([outcome])
        times_s = outcome.chunk_times_s
        if len(times_s) < 4:
            raise RuntimeError(f"{len(times_s)} chunks for {ALONE_TOKENS} tokens: steps are unseen")
        return Alone(
            n_tokens=n_tokens,
            ttft_s=outcome.ttft_s,
            second_s=times_s[1] - times_s[0],
            step_s=mean(outcome.gaps_s[1:]),
        )

    async def _together(self, n_prompts: int, n_tokens: int) -> Together:
        outcomes, tasks = self._send(n_prompts, n_tokens, 1)
        await asyncio.gather(*tasks)
        _must_be_well(outcomes)
        return Together(n_prompts=n_prompts, n_tokens=n_tokens, last_s=_last_s(outcomes))

    async def _steps(self, n_streams: int, n_tokens: int) -> list[Steps]:
        async with self._streams(n_streams, n_tokens) as outcomes:
            firsts = [len(outcome.chunk_times_s) for outcome in outcomes]
            n_more = WINDOWS * WINDOW_STEPS
            await _until(outcomes, [first + n_more for first in firsts])
            found: list[Steps] = []
            for window in range(WINDOWS):
                begins = [first - 1 + window * WINDOW_STEPS for first in firsts]
                step_s = median(
                    _mean_gap(outcome, begin, begin + WINDOW_STEPS)
                    for outcome, begin in zip(outcomes, begins, strict=True)
                )
                n_context = sum(n_tokens + begin + 1 + WINDOW_STEPS // 2 for begin in begins)
                found.append(Steps(n_sequences=n_streams, n_context=n_context, step_s=step_s))
            return found

    async def _beside(self) -> Beside:
        alone = await self._together(*BURST)
        async with self._streams(N_BESIDE, BESIDE_TOKENS) as streams:
            firsts = [len(outcome.chunk_times_s) for outcome in streams]
            await _until(streams, [first + WINDOWS * WINDOW_STEPS for first in firsts])
            began = [len(outcome.chunk_times_s) for outcome in streams]
            loaded = await self._together(*BURST)
            ended = [len(outcome.chunk_times_s) for outcome in streams]
            pairs = list(zip(streams, firsts, began, ended, strict=True))
            return Beside(
                n_streams=N_BESIDE,
                step_s=mean(_mean_gap(o, first - 1, begin - 1) for o, first, begin, _ in pairs),
                step_beside_s=mean(_mean_gap(o, begin - 1, end - 1) for o, _, begin, end in pairs),
                last_s=alone.last_s,
                last_beside_s=loaded.last_s,
            )

    @asynccontextmanager
    async def _streams(self, n: int, n_tokens: int) -> AsyncIterator[list[Outcome]]:
        """Running steadily; given up at the end."""
        outcomes, tasks = self._send(n, n_tokens, self._max_model_len - n_tokens)
        try:
            await _until(outcomes, [1] * n)
            steady = [len(outcome.chunk_times_s) + UNSTEADY_STEPS for outcome in outcomes]
            await _until(outcomes, steady)
            yield outcomes
            _must_be_well(outcomes)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.sleep(0.1)  # until the server has heard of it

    def _send(
        self, n: int, n_tokens: int, max_tokens: int
    ) -> tuple[list[Outcome], list["asyncio.Task[None]"]]:
        lowest = min(LOWEST_ID, self._vocab_size // 2)
        outcomes: list[Outcome] = []
        tasks: list[asyncio.Task[None]] = []
        for index in range(n):
            prompt = self._rng.integers(lowest, self._vocab_size, n_tokens).tolist()
            request = Request(prompt=prompt, max_tokens=max_tokens, prompt_tokens=n_tokens)
            now_s = time.perf_counter() - self._began
            outcome = Outcome(index=index, scheduled_s=now_s, sent_s=now_s)
            sending = send(self._session, self._target, request, outcome, self._began)
            outcomes.append(outcome)
            tasks.append(asyncio.create_task(sending))
        return outcomes, tasks


async def _until(outcomes: Sequence[Outcome], counts: Sequence[int]) -> None:
    """Each has so many tokens. Raises RuntimeError where one ends before."""
    while any(len(o.chunk_times_s) < n for o, n in zip(outcomes, counts, strict=True)):
        if any(outcome.ended_s for outcome in outcomes):
            _must_be_well(outcomes)
            raise RuntimeError("a stream ended while it was measured: the context is too short")
        await asyncio.sleep(_POLL_S)


def _mean_gap(outcome: Outcome, begin: int, end: int) -> float:
    return (outcome.chunk_times_s[end] - outcome.chunk_times_s[begin]) / max(1, end - begin)


def _last_s(outcomes: Sequence[Outcome]) -> float:
    """From the first one's sending to the last first token."""
    last_s = max(outcome.chunk_times_s[0] for outcome in outcomes)
    return last_s - min(outcome.sent_s for outcome in outcomes)


def _must_be_well(outcomes: Sequence[Outcome]) -> None:
    for outcome in outcomes:
        if outcome.error:
            raise RuntimeError(f"{outcome.error}: {outcome.message}")
