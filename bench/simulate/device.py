"""Devices whose memory holds token ids where a real one holds KV.

A pass writes ids into slots, and draws a token by reading its whole sequence back through its page
table. What is being written reads as garbage until the writer is final.
"""

from collections.abc import Iterable, Sequence
from random import Random

import numpy as np
from numpy.typing import NDArray

from bench.simulate.laws import require
from bench.simulate.model import (
    EXACT,
    POISON,
    SLOW_POISON,
    drawn_logprob,
    hashed,
    next_token,
    prompt_logprob,
)
from common.engine.plan import Drawn, PassPlan, PassResult, filled
from common.ids import PageHash, PageId
from common.kv.pages import PagePool
from common.messages import PageRef
from common.params import TokenLogprob

GARBAGE = -1


class Device:
    """Pages of token ids, and passes over them."""

    def __init__(self, n_pages: int, page_tokens: int, *, rounding: bool = False) -> None:
        """`rounding`: each attempt has draws of its own."""
        self.page_tokens = page_tokens
        self.generations = np.zeros(n_pages, np.uint64)
        self.slots = np.full((n_pages, page_tokens), GARBAGE, np.int64)
        self._rounding = rounding
        self._drawn: tuple[Drawn, ...] = ()  # by the last pass, if it did not raise

    def begin(self, plan: PassPlan) -> None:
        """From here on nobody can rely on what the pass will write."""
        self.slots.reshape(-1)[plan.slots_T] = GARBAGE
        for _, destination in plan.copies:
            self.slots[destination] = GARBAGE

    def fail(self, plan: PassPlan, random: Random) -> None:
        """It raised half-way."""
        self._drawn = ()
        written = random.randrange(plan.n_rows + 1)
        self.slots.reshape(-1)[plan.slots_T[:written]] = plan.tokens_T[:written]

    def can_finish(self, plan: PassPlan) -> bool:
        """The pass before has drawn what this one reads; and nothing in it is poison."""
        return not self.is_poison(plan) and self._has_read(plan)

    def is_poison(self, plan: PassPlan) -> bool:
        """No pass of the kind is ever computed."""
        slow = (draw.index and SLOW_POISON in draw.prompt for draw in plan.draws)
        return POISON in plan.tokens_T or any(slow)

    def _has_read(self, plan: PassPlan) -> bool:
        return self._drawn != () or not len(plan.unread_rows_U)

    def finish(self, plan: PassPlan) -> PassResult:
        plan = filled(plan, self._drawn)
        for source, destination in plan.copies:
            self.slots[destination] = self.slots[source]
        self.slots.reshape(-1)[plan.slots_T] = plan.tokens_T
        drawn: list[Drawn] = []
        for draw in plan.draws:
            attempt = draw.attempt if self._rounding else EXACT
            token = next_token(self._read(plan, draw.row), draw.sample, attempt)
            wanted = draw.params.logprobs is not None
            drawn.append(Drawn(token=token, logprob=drawn_logprob(token) if wanted else None))
        self._drawn = tuple(drawn)
        scores = [self._score(plan, s.first_row, s.targets) for s in plan.scores]
        return PassResult(drawn=tuple(drawn), scores=tuple(scores), seconds=0.001)

    def are_still(self, refs: Iterable[PageRef]) -> bool:
        """No page has begun another life since it was announced."""
        return all(int(self.generations[ref.page]) == ref.generation for ref in refs)

    def _score(
        self, plan: PassPlan, first_row: int, targets: Sequence[int]
    ) -> tuple[TokenLogprob, ...]:
        read = self._read
        return tuple(prompt_logprob(read(plan, first_row + i), t) for i, t in enumerate(targets))

    def _read(self, plan: PassPlan, row: int) -> int:
        """The hash of the sequence up to that row's token, through its page table."""
        b = int(np.searchsorted(plan.start_B1, row, side="right")) - 1
        n = int(plan.positions_T[row]) + 1
        table = plan.tables_BM[b, : -(-n // self.page_tokens)]
        sequence: NDArray[np.int64] = self.slots[table].reshape(-1)[:n]
        return hashed(sequence)


class CheckedPool(PagePool):
    """A pool that sees what it publishes: equal hashes must mean equal content, in all pools."""

    def __init__(self, device: Device, meaning: dict[PageHash, bytes]) -> None:
        super().__init__(len(device.slots), device.generations)
        self._device = device
        self._meaning = meaning

    def publish(self, page: PageId, page_hash: PageHash) -> bool:
        content = self._device.slots[page]
        require(GARBAGE not in content, f"page {page} is published, and is not whole")
        meaning = self._meaning.setdefault(page_hash, content.tobytes())
        require(meaning == content.tobytes(), f"page {page} is published as another one")
        return super().publish(page, page_hash)
