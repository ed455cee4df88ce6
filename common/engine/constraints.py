"""What the grammars of a pass's draws allow. Owned by the thread that draws."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Lock, Thread

import numpy as np
from numpy.typing import NDArray

from common.engine.plan import Draw
from common.errors import SetupError
from common.ids import TransferId
from common.text.grammar import GrammarTokenizer, Matcher

MAX_MATCHERS = 1024  # answers that are followed; of others what they have said is read anew


class Constraints:
    """Reads the model's vocabulary once: when told to, else when an answer with a grammar comes."""

    def __init__(self, load: Callable[[], GrammarTokenizer]) -> None:
        self._load = load
        self._loading = Lock()  # of what comes next
        self._tokenizer: GrammarTokenizer | None = None
        self._matchers: OrderedDict[tuple[TransferId, int], Matcher] = OrderedDict()

    def prepare(self) -> None:
        """Begin to read the vocabulary, so that no pass waits for it. Any thread."""
        Thread(target=self._prepare, name="grammars").start()

    def _prepare(self) -> None:
        with suppress(SetupError):  # told to whoever draws
            self._ready()

    def allowed(self, draws: Sequence[Draw]) -> dict[int, NDArray[np.bool_]]:
        """By draw that has a grammar: [V], what it may draw."""
        return {at: self._one(draw) for at, draw in enumerate(draws) if draw.params.grammar}

    def _one(self, draw: Draw) -> NDArray[np.bool_]:
        key = (draw.transfer, draw.sample)
        matcher = self._matchers.pop(key, None)
        allowed_V = None if matcher is None else matcher.allowed(draw.outputs)
        if matcher is None or allowed_V is None:  # begun elsewhere, or with other outputs
            matcher = self._begin(draw.params.grammar)
            allowed_V = matcher.allowed(draw.outputs)
            assert allowed_V is not None
        self._matchers[key] = matcher
        while len(self._matchers) > MAX_MATCHERS:
            self._matchers.popitem(last=False)
        return allowed_V

    def _begin(self, grammar: str) -> Matcher:
        return self._ready().matcher(grammar)

    def _ready(self) -> GrammarTokenizer:
        with self._loading:
            if self._tokenizer is None:
                self._tokenizer = self._load()
            return self._tokenizer
