"""The loads of `bench.engine`, over HTTP: one stream, many at once, one that is handed over.

Prompts are distinct random words, cut to length by the server's own tokenizer. Drives any
OpenAI-compatible server; imports nothing of the engine.
"""

import asyncio
import random
import statistics
import string
from typing import Any

import aiohttp
import numpy as np

from bench.arrivals import Arrivals
from bench.client import Outcome, Request, Target
from bench.load import run

PROMPT, OUTPUT = 256, 128
SOLO_REQUESTS, SOLO_OUTPUT = 3, 64
_HANDOFF_STREAMS, _HANDOFF_PROMPT, _HANDOFF_AFTER_S, _HANDOFF_TIMES = 8, 2048, 4.0, 3
_SAMPLED = {"temperature": 0.8, "top_p": 0.95}
MS = 1e3


class Load:
    """Against one server, which it warms up."""

    def __init__(self, base_url: str, *, keep_alive: bool = True, seed: int = 0) -> None:
        """`keep_alive`: off for a server that closes connections which it said it would keep."""
        self._random = random.Random(seed)
        self._url = base_url
        headers: dict[str, str] = {} if keep_alive else {"Connection": "close"}
        model = asyncio.run(self._model())
        self._target = Target(base_url=base_url, model=model, headers=headers)
        self._run([self._request(32, 8)], 1)

    def solo(self, n_tokens: int) -> tuple[float, float]:
        """Median TTFT and TPOT of one stream, ms."""
        outcomes = self._run(self._requests(SOLO_REQUESTS, n_tokens, SOLO_OUTPUT), 1)
        tpots_s = [outcome.tpot_s or 0.0 for outcome in outcomes]
        return (
            MS * statistics.median(outcome.ttft_s for outcome in outcomes),
            MS * statistics.median(tpots_s),
        )

    def at_once(self, n: int, n_requests: int, *, sampled: bool = False) -> dict[str, float]:
        """A closed loop of n clients."""
        requests = self._requests(n_requests, PROMPT, OUTPUT)
        outcomes = self._run(requests, n, sampled=sampled)
        n_tokens = sum(outcome.output_tokens for outcome in outcomes)
        gaps_s = [gap_s for outcome in outcomes for gap_s in outcome.gaps_s]
        return {
            "tokens_per_s": n_tokens / max(outcome.ended_s for outcome in outcomes),
            "p99_itl_ms": MS * float(np.percentile(gaps_s, 99)),
            "ttft_ms": MS * statistics.median(outcome.ttft_s for outcome in outcomes),
            "tpot_ms": MS * statistics.median(outcome.tpot_s or 0.0 for outcome in outcomes),
        }

    def handoff(self) -> tuple[float, float]:
        """From the first to the second token of a long prompt, and a step, while others decode."""
        streams = self._requests(_HANDOFF_STREAMS, 64, 480)
        late = [
            self._request(_HANDOFF_PROMPT, 8, at_s=_HANDOFF_AFTER_S * (i + 1))
            for i in range(_HANDOFF_TIMES)
        ]
        timed = [Request(prompt=s.prompt, max_tokens=s.max_tokens, at_s=0.0) for s in streams]
        outcomes = asyncio.run(run(self._target, timed + late, Arrivals(timed=True)))
        _check(outcomes)
        gaps_s = [outcome.gaps_s[0] for outcome in outcomes[len(streams) :]]
        steps_s = [gap_s for outcome in outcomes[: len(streams)] for gap_s in outcome.gaps_s]
        return MS * statistics.median(gaps_s), MS * statistics.median(steps_s)

    def _run(
        self, requests: list[Request], max_concurrency: int, *, sampled: bool = False
    ) -> list[Outcome]:
        target = self._target
        if sampled:
            target = Target(
                base_url=target.base_url, model=target.model, temperature=None, extra_body=_SAMPLED
            )
        outcomes = asyncio.run(run(target, requests, Arrivals(max_concurrency=max_concurrency)))
        _check(outcomes)
        return outcomes

    def _requests(self, n: int, n_tokens: int, n_output: int) -> list[Request]:
        return [self._request(n_tokens, n_output) for _ in range(n)]

    def _request(self, n_tokens: int, n_output: int, at_s: float | None = None) -> Request:
        prompt = asyncio.run(self._words(n_tokens))
        return Request(prompt=prompt, max_tokens=n_output, at_s=at_s)

    async def _words(self, n_tokens: int) -> str:
        """As many random words as make about so many tokens."""
        words = [
            "".join(self._random.choices(string.ascii_lowercase, k=self._random.randint(2, 8)))
            for _ in range(n_tokens)
        ]
        text = " ".join(words)
        async with aiohttp.ClientSession() as session:
            said = await self._post(session, "tokenize", {"prompt": text})
            if not said.get("tokens"):  # llama.cpp's name for it
                said = await self._post(session, "tokenize", {"content": text})
            tokens = said["tokens"][:n_tokens]
            said = await self._post(session, "detokenize", {"tokens": tokens})
        return said.get("prompt") or said["content"]

    async def _post(
        self, session: aiohttp.ClientSession, path: str, body: dict[str, Any]
    ) -> dict[str, Any]:
        async with session.post(f"{self._url}/{path}", json=body) as answer:
            return await answer.json()

    async def _model(self) -> str:
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"{self._url}/v1/models") as answer,
        ):
            return (await answer.json())["data"][0]["id"]


def _check(outcomes: list[Outcome]) -> None:
    for outcome in outcomes:
        if not outcome.ok:
            raise RuntimeError(f"request {outcome.index}: {outcome.error}: {outcome.message}")
