"""Grammars over passes: every draw is held to its own, wherever its answer was begun."""

from random import Random

import msgspec
import numpy as np
import pytest
import torch
from llguidance import LLParserLimits

from common.engine.constraints import Constraints
from common.engine.plan import Draw
from common.ids import TransferId
from common.params import SamplingParams
from common.sampling import sample
from common.text.grammar import Grammars, GrammarTokenizer, Matcher, of_choice, of_regex
from common.text.load import TextModel
from common.text.token_rules import TokenRules, allowed_bits

END = 2


@pytest.fixture
def constraints(smollm2: TextModel) -> Constraints:
    return Constraints(Grammars(lambda: GrammarTokenizer(smollm2)))


def draw(
    name: str, outputs: tuple[int, ...] = (), grammar: str = "", temperature: float = 0.0
) -> Draw:
    params = SamplingParams(
        max_tokens=9, seed=1, temperature=temperature, grammar=grammar, logprobs=1
    )
    return Draw(
        transfer=TransferId(name), attempt=1, sample=0, index=len(outputs), row=0, params=params,
        prompt=(7,), outputs=outputs,
    )  # fmt: skip


def test_only_draws_with_a_grammar_are_held_to_one(constraints: Constraints) -> None:
    allowed = constraints.allowed([draw("a"), draw("b", grammar=of_choice(["red"])), draw("c")])
    assert list(allowed) == [1]


def test_nothing_is_loaded_for_answers_that_may_be_anything() -> None:
    def never() -> GrammarTokenizer:
        raise AssertionError

    assert Constraints(Grammars(never)).allowed([draw("a")]) == {}


def test_answers_go_on_from_what_they_have_said(
    constraints: Constraints, smollm2: TextModel
) -> None:
    grammar = of_choice(["red wine", "blue sky"])
    encode = smollm2.tokenizer.encode

    def may(name: str, text: str) -> set[int]:
        outputs = tuple(encode(text, add_special_tokens=False))
        (only,) = constraints.allowed([draw(name, outputs, grammar)]).values()
        return set(np.flatnonzero(only).tolist())

    def spells(text: str, tokens: set[int]) -> bool:
        return all(text.startswith(smollm2.tokenizer.text_of(token)) for token in tokens)

    may("a", "")
    assert spells(" wine", may("a", "red"))
    assert spells(" sky", may("b", "blue"))  # begun elsewhere
    assert spells(" sky", may("a", "blue"))  # another attempt: other outputs
    assert may("a", "blue sky") == {END}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_draw_takes_the_best_of_what_it_may(
    constraints: Constraints, smollm2: TextModel, temperature: float
) -> None:
    red, blue = (smollm2.tokenizer.encode(w, add_special_tokens=False)[0] for w in ("red", "blue"))
    logits_BV = torch.zeros(2, smollm2.vocab_size)
    logits_BV[:, 1234] = 50.0
    logits_BV[:, blue] = 20.0
    draws = [draw("a", grammar=of_choice(["red", "blue"]), temperature=temperature), draw("b")]
    before = logits_BV.clone()
    held, free = sample(logits_BV, draws, constraints.allowed(draws))
    assert (held.token, free.token) == (blue, 1234)
    assert held.logprob is not None
    assert held.logprob.logprob == pytest.approx(-30, abs=1e-3)  # of the raw logits
    assert held.logprob.top_tokens == (1234,)
    assert torch.equal(logits_BV, before)
    assert red != blue


def test_answers_of_one_grammar_do_not_fail_of_what_others_have_learnt(
    smollm2: TextModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their matchers share what they learn, of which there may only be so much."""
    monkeypatch.setattr("common.text.grammar.LIMITS", LLParserLimits(max_lexer_states=4000))
    grammars = Grammars(lambda: GrammarTokenizer(smollm2))
    constraints, random, grammar = Constraints(grammars), Random(1), of_regex("(.*a.{30}b)+")
    made = 0

    def new(self: GrammarTokenizer, grammar: str) -> Matcher:
        nonlocal made
        made += 1
        return make(self, grammar)

    make = GrammarTokenizer.matcher
    for name in range(12):
        alone, outputs = grammars.tokenizer().matcher(grammar), ()
        monkeypatch.setattr(GrammarTokenizer, "matcher", new)
        for _ in range(5):
            (may_V,) = constraints.allowed([draw(str(name), outputs, grammar)]).values()
            expected_V = alone.allowed(outputs)
            assert expected_V is not None
            assert (may_V == expected_V).all()
            outputs += (random.choice(np.flatnonzero(may_V).tolist()),)
        monkeypatch.setattr(GrammarTokenizer, "matcher", make)
        assert alone.failure is None
    assert 1 < made < 12  # some were shared, and some had to be made anew


def ids(text: TextModel, *words: str) -> set[int]:
    return {text.tokenizer.encode(word, add_special_tokens=False)[0] for word in words}


def ruled(text: TextModel, **rules: object) -> str:
    return msgspec.convert({"vocab_size": text.vocab_size, **rules}, TokenRules).to_text()


def test_rules_hold_beside_a_grammar(constraints: Constraints, smollm2: TextModel) -> None:
    red, blue = ids(smollm2, "red"), ids(smollm2, "blue")
    (bad,), (other,) = red, blue

    def may(*outputs: int, **rules: object) -> set[int]:
        held = ruled(smollm2, grammar=of_choice(["red", "blue"]), **rules)
        name = f"{rules}"
        (only,) = constraints.allowed([draw(name, outputs, held)]).values()
        return set(np.flatnonzero(only).tolist())

    assert {bad, other} < may()
    assert may(bad_words=((bad,),)) == may() - red
    assert may(allowed_bits=allowed_bits([bad, other], smollm2.vocab_size)) == {bad, other}
    assert may(other, bad_words=((bad,),)) == {END}
    assert may(allowed_bits=allowed_bits([7], smollm2.vocab_size)) == {END}  # of neither


def test_rules_alone_load_no_grammars() -> None:
    def never() -> GrammarTokenizer:
        raise AssertionError

    held = TokenRules(vocab_size=9, bad_words=((3,), (5, 6))).to_text()
    told = Constraints(Grammars(never)).allowed([draw("a", (5,), held), draw("b", (4,), held)])
    assert [np.flatnonzero(~may_V).tolist() for may_V in told.values()] == [[3, 6], [3]]


def test_an_end_that_is_put_off_is_nothing_left(constraints: Constraints) -> None:
    """Bad words give way to it; else no token could be drawn."""
    held = TokenRules(
        vocab_size=9, allowed_bits=allowed_bits([3, 7], 9), bad_words=((3,),)
    ).to_text()
    params = SamplingParams(
        max_tokens=9, seed=1, min_tokens=1, stop_token_ids=(7,), grammar=held, temperature=0.0
    )
    early = msgspec.structs.replace(draw("a"), params=params)
    late = msgspec.structs.replace(early, index=1, outputs=(3,))
    draws = [early, late]
    told = constraints.allowed(draws)
    assert [np.flatnonzero(may_V).tolist() for may_V in told.values()] == [[3, 7], [7]]
    logits_BV = torch.arange(9.0).expand(2, -1)
    assert [one.token for one in sample(logits_BV, draws, told)] == [3, 7]
