"""What the grammars of a pass's draws allow. Owned by the thread that draws."""

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from common.engine.plan import Draw
from common.ids import TransferId
from common.text.grammar import Grammars, Matcher

MAX_MATCHERS = 1024  # answers that are followed; of others what they have said is read anew


class Constraints:
    def __init__(self, grammars: Grammars) -> None:
        self._grammars = grammars
        self._grammar = ""  # whose matcher is `_unread`
        self._unread: Matcher | None = None  # what answers begin with: it takes long to make
        self._matchers: OrderedDict[tuple[TransferId, int], Matcher] = OrderedDict()

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
        if matcher.failure is not None:  # of its own, or of those that it shares with
            self._unread = None
            matcher = self._new(draw.params.grammar)
            allowed_V = matcher.allowed(draw.outputs)
        assert allowed_V is not None
        self._matchers[key] = matcher
        while len(self._matchers) > MAX_MATCHERS:
            self._matchers.popitem(last=False)
        return allowed_V

    def _begin(self, grammar: str) -> Matcher:
        if self._unread is None or self._grammar != grammar:
            self._grammar, self._unread = grammar, self._new(grammar)
        return self._unread.copy()

    def _new(self, grammar: str) -> Matcher:
        return self._grammars.tokenizer().matcher(grammar)
