"""Prompts of random tokens, as ids or as text. Imports nothing of the engine."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from bench.client import Request

_LOWEST_ID = 1000  # below are a vocabulary's special tokens and single bytes


class Tokenizer(Protocol):
    """Text to token ids and back; no special tokens are added."""

    def encode(self, text: str) -> list[int]: ...

    def decode(self, ids: list[int]) -> str: ...


class Prompts:
    """Draws them, and gives them the form that is sent."""

    def __init__(
        self,
        rng: np.random.Generator,
        *,
        vocab_size: int,
        tokenizer: Tokenizer | None,
        as_text: bool,
    ) -> None:
        """Raises ValueError for text without a tokenizer."""
        if as_text and tokenizer is None:
            raise ValueError("prompts in text need a tokenizer")
        self._rng = rng
        self._lowest = min(_LOWEST_ID, vocab_size // 2)
        self._vocab_size = vocab_size
        self._tokenizer = tokenizer if as_text else None
        self._salt = int(rng.integers(1 << 63))

    def ids(self, n: int) -> list[int]:
        return self._rng.integers(self._lowest, self._vocab_size, n).tolist()

    def of_blocks(self, blocks: Sequence[tuple[int, int]], n: int) -> list[int]:
        """The first n tokens of the blocks, each (id, tokens): what an id stands for is the same
        in every prompt. What they lack is drawn."""
        if not blocks:
            return self.ids(n)
        parts = [
            np.arange(length, dtype=np.uint64) + (np.uint64(key) << np.uint64(20))
            for key, length in blocks
        ]
        mixed = _mix(np.concatenate(parts) ^ np.uint64(self._salt))
        span = np.uint64(self._vocab_size - self._lowest)
        made = (mixed % span).astype(np.int64) + self._lowest
        ids = made[:n].tolist()
        return ids + self.ids(n - len(ids))

    def request(self, ids: list[int], max_tokens: int, *, prefix: int | None) -> Request:
        """As text where that was asked for: it may come to a few tokens more or less, and its
        count is that of the text."""
        if self._tokenizer is None:
            return Request(prompt=ids, max_tokens=max_tokens, prompt_tokens=len(ids), prefix=prefix)
        text = self._tokenizer.decode(ids)
        again = self._tokenizer.encode(text)
        if len(again) > len(ids):
            text = self._tokenizer.decode(again[: len(ids)])
            again = self._tokenizer.encode(text)
        return Request(prompt=text, max_tokens=max_tokens, prompt_tokens=len(again), prefix=prefix)


def _mix(x: np.ndarray) -> np.ndarray:
    """splitmix64's finaliser (Steele, Lea, Flood 2014), element by element. uint64."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
