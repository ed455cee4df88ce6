"""The clients of a run of chaos: each asks, waits for the answer or leaves, and asks again.

Knows the server by its HTTP alone. Must not judge an answer.
"""

import asyncio
import time
from collections.abc import Sequence

import aiohttp
import msgspec

from bench.chaos.plan import Ask, Prompt, asks
from bench.chaos.record import Answer
from bench.client import Outcome, Target, send

MOST_REFUSED = 60
REFUSED_WITHIN_S = 60.0  # what had been taken is given up no sooner
AGAIN_S = 1.0  # as refusals tell at least
STUCK_S = 180.0  # without an end: longer than any fault, and what a server takes to recover
AT_ONCE = 4  # requests of which nothing is disturbed


def is_refusal(outcome: Outcome) -> bool:
    """Nothing was begun of it: the queues were full, or no worker was there."""
    if outcome.ended_s - outcome.sent_s >= REFUSED_WITHIN_S:
        return False
    nobody = outcome.error == "http_503" and outcome.message.startswith("no worker ")
    return nobody or outcome.error == "http_429"


class Clients:
    """All of them, on one session."""

    def __init__(
        self, session: aiohttp.ClientSession, target: Target, prompts: Sequence[Prompt]
    ) -> None:
        self._session = session
        self._target = msgspec.structs.replace(target, timeout_s=STUCK_S)
        self._prompts = prompts
        self._began = time.perf_counter()

    async def each_once(self) -> list[Answer]:
        """Every prompt, a few at once, by clients that stay; in the prompts' order."""
        places = asyncio.Semaphore(AT_ONCE)

        async def one(number: int) -> Answer:
            ask = Ask(f"p{number}", number, stream=True, leaves_after_s=None, thinks_s=0.0)
            async with places:
                return await self._answer(ask)

        return list(await asyncio.gather(*map(one, range(len(self._prompts)))))

    async def run(self, seed: int, n_clients: int, began: float, seconds: float) -> list[Answer]:
        """Until all have ended that were asked by then. `began`: the clock (time.perf_counter)."""
        self._began = began
        answers = await asyncio.gather(
            *(self._client(seed, number, seconds) for number in range(n_clients))
        )
        return [answer for one in answers for answer in one]

    async def _client(self, seed: int, number: int, seconds: float) -> list[Answer]:
        answers: list[Answer] = []
        for ask in asks(seed, number, len(self._prompts)):
            await asyncio.sleep(ask.thinks_s)
            if self._now() >= seconds:
                break
            answers.append(await self._answer(ask))
        return answers

    async def _answer(self, ask: Ask) -> Answer:
        """A refusal says when to come again, and so the client does."""
        n_refused = 0
        outcome = await self._ask(ask)
        while is_refusal(outcome) and n_refused < MOST_REFUSED:
            n_refused += 1
            await asyncio.sleep(AGAIN_S)
            outcome = await self._ask(ask)
        return Answer(ask, outcome, n_refused)

    async def _ask(self, ask: Ask) -> Outcome:
        prompt = self._prompts[ask.prompt]
        request = msgspec.structs.replace(prompt.request, stream=ask.stream)
        body = {**prompt.sampling, "return_token_ids": True}
        target = msgspec.structs.replace(self._target, extra_body=body)
        outcome = Outcome(index=ask.prompt, scheduled_s=self._now(), sent_s=self._now())
        try:
            async with asyncio.timeout(ask.leaves_after_s):
                await send(self._session, target, request, outcome, self._began)
        except TimeoutError:
            outcome.cancelled = True
        return outcome

    def _now(self) -> float:
        return time.perf_counter() - self._began
