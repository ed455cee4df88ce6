"""What grammars and rules of tokens allow a pass's draws. Owned by the thread that draws."""

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from common.engine.plan import Draw
from common.ids import TransferId
from common.params import SamplingParams
from common.text.grammar import Grammars, Matcher
from common.text.token_rules import ReadRules, read_rules

MAX_MATCHERS = 1024  # answers that are followed; of others what they have said is read anew


class Constraints:
    def __init__(self, grammars: Grammars) -> None:
        self._grammars = grammars
        self._grammar = ""  # whose matcher is `_unread`
        self._unread: Matcher | None = None  # what answers begin with: it takes long to make
        self._matchers: OrderedDict[tuple[TransferId, int], Matcher] = OrderedDict()

    def allowed(self, draws: Sequence[Draw]) -> dict[int, NDArray[np.bool_]]:
        """By draw that has a grammar, or rules: [V], what it may draw."""
        return {at: self._one(draw) for at, draw in enumerate(draws) if draw.params.grammar}

    def _one(self, draw: Draw) -> NDArray[np.bool_]:
        rules = read_rules(draw.params.grammar)
        if rules is None:
            return self._by_grammar(draw, draw.params.grammar)
        return self._by_rules(draw, rules)

    def _by_rules(self, draw: Draw, rules: ReadRules) -> NDArray[np.bool_]:
        """Where rules and grammar leave nothing together, the answer ends."""
        of_grammar_V = self._by_grammar(draw, rules.grammar) if rules.grammar else None
        allowed_V = rules.allowed(of_grammar_V)
        if of_grammar_V is not None and not allowed_V.any():
            return self._grammars.tokenizer().ends()
        return rules.without_bad_words(allowed_V, draw.outputs, _put_off(draw))

    def _by_grammar(self, draw: Draw, grammar: str) -> NDArray[np.bool_]:
        key = (draw.transfer, draw.sample)
        matcher = self._matchers.pop(key, None)
        allowed_V = None if matcher is None else matcher.allowed(draw.outputs)
        if matcher is None or allowed_V is None:  # begun elsewhere, or with other outputs
            matcher = self._begin(grammar)
            allowed_V = matcher.allowed(draw.outputs)
        if matcher.failure is not None:  # of its own, or of those that it shares with
            self._unread = None
            matcher = self._new(grammar)
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


def _put_off(draw: Draw) -> tuple[int, ...]:
    """Tokens that end answers, where this one must not end yet."""
    params: SamplingParams = draw.params
    if draw.index >= params.min_tokens:
        return ()
    return params.end_token_ids + params.stop_token_ids
