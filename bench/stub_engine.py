"""Prefill and decode as the stub has them: passes and steps whose costs are known exactly.

Prompts that wait share passes, up to a budget; streams step together. Nothing is computed: each
operation ends at its time. Imports nothing of the engine.
"""

import asyncio
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

import msgspec

BUDGET_TOKENS = 512  # of a prefill pass


class EngineCosts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Seconds: `pass_s + token_s * tokens + pair_s * pairs`; `step_s + context_token_s * context +
    sequence_s * streams`; and what a first token and a second one wait for beside them."""

    pass_s: float = 0.0
    token_s: float = 0.0
    pair_s: float = 0.0
    step_s: float = 0.0
    context_token_s: float = 0.0
    sequence_s: float = 0.0
    delay_s: float = 0.0
    handoff_s: float = 0.0


@dataclass(eq=False)
class _Prompt:
    n_tokens: int
    n_done: int = 0
    computed: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(eq=False)
class _Stream:
    n_context: int
    n_tokens: int = 0  # drawn, and not taken
    drawn: asyncio.Event = field(default_factory=asyncio.Event)


class Engine:
    """One prefill and one decode, side by side."""

    def __init__(self, costs: EngineCosts) -> None:
        self._costs = costs
        self._prompts: list[_Prompt] = []
        self._streams: list[_Stream] = []
        self._prefilling: asyncio.Task[None] | None = None
        self._stepping: asyncio.Task[None] | None = None

    async def tokens(self, n_prompt: int, n_tokens: int) -> AsyncGenerator[None]:
        """Yields when each token is there."""
        prompt = _Prompt(n_prompt)
        self._prompts.append(prompt)
        if self._prefilling is None or self._prefilling.done():
            self._prefilling = asyncio.create_task(self._prefill())
        await prompt.computed.wait()
        await asyncio.sleep(self._costs.delay_s)
        yield
        stream = _Stream(n_prompt)
        await asyncio.sleep(self._costs.handoff_s)
        self._streams.append(stream)
        if self._stepping is None or self._stepping.done():
            self._stepping = asyncio.create_task(self._step())
        try:
            for _ in range(n_tokens - 1):
                await stream.drawn.wait()
                stream.n_tokens -= 1
                if not stream.n_tokens:
                    stream.drawn.clear()
                yield
        finally:
            self._streams.remove(stream)

    async def _prefill(self) -> None:
        at = time.perf_counter()
        while self._prompts:
            left, n_tokens, n_pairs = BUDGET_TOKENS, 0, 0.0
            chosen = list(self._prompts)
            for prompt in chosen:
                size = min(prompt.n_tokens - prompt.n_done, left)
                n_pairs += size * (prompt.n_done + (size + 1) / 2)
                prompt.n_done += size
                n_tokens, left = n_tokens + size, left - size
            costs = self._costs
            at += costs.pass_s + costs.token_s * n_tokens + costs.pair_s * n_pairs
            await _until(at)
            for prompt in chosen:
                if prompt.n_done == prompt.n_tokens:
                    self._prompts.remove(prompt)
                    prompt.computed.set()

    async def _step(self) -> None:
        at = time.perf_counter()
        while self._streams:
            chosen, costs = list(self._streams), self._costs
            n_context = sum(stream.n_context for stream in chosen)
            at += costs.step_s + costs.sequence_s * len(chosen)
            at += costs.context_token_s * n_context
            await _until(at)
            for stream in chosen:
                stream.n_context += 1
                stream.n_tokens += 1
                stream.drawn.set()


async def _until(at: float) -> None:
    await asyncio.sleep(max(0.0, at - time.perf_counter()))
