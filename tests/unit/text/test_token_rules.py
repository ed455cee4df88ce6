"""Rules of single tokens, beside what vLLM's own code says of them."""

from random import Random

import numpy as np
import pytest

from common.text.grammar import of_ebnf
from common.text.load import TextModel
from common.text.token_rules import PREFIX, TokenRules, allowed_bits, read_rules, spellings

V = 11


def may(rules: TokenRules, *outputs: int, unless: tuple[int, ...] = ()) -> set[int]:
    read = read_rules(rules.to_text())
    assert read is not None
    left_V = read.without_bad_words(read.allowed(None), outputs, unless)
    return set(np.flatnonzero(left_V).tolist())


def as_vllm_does(bad_words: list[tuple[int, ...]], outputs: tuple[int, ...]) -> set[int]:
    """Its loop over the words, in the words of its documentation: the last token of a sequence is
    not allowed when the next token can complete the sequence."""
    left = set(range(V))
    for word in bad_words:
        n_before = len(word) - 1
        if n_before <= len(outputs) and outputs[len(outputs) - n_before :] == word[:-1]:
            left.discard(word[-1])
    return left


def test_a_grammar_has_no_rules() -> None:
    assert read_rules('start: "a"') is None


def test_rules_are_no_grammar_of_a_clients() -> None:
    text = TokenRules(vocab_size=V, bad_words=((V + 1,),)).to_text()
    assert text.startswith(PREFIX)
    with pytest.raises(ValueError, match="neither in Lark's form nor GBNF"):
        of_ebnf(f'{text}\nstart: "a"')


def test_allowed_tokens_are_the_only_ones() -> None:
    for ids in ([0], [10, 3, 3], list(range(V))):
        assert may(TokenRules(vocab_size=V, allowed_bits=allowed_bits(ids, V))) == set(ids)


def test_bad_words_end_nowhere_as_with_vllm() -> None:
    rng = Random(0)
    for _ in range(300):
        words = [
            tuple(rng.choices(range(3), k=rng.randint(1, 4))) for _ in range(rng.randint(1, 6))
        ]
        outputs = tuple(rng.choices(range(3), k=rng.randint(0, 8)))
        rules = TokenRules(vocab_size=V, bad_words=tuple(words))
        assert may(rules, *outputs) == as_vllm_does(words, outputs)


def test_bad_words_give_way_where_nothing_else_is_left() -> None:
    two = allowed_bits([4, 5], V)
    rules = TokenRules(vocab_size=V, allowed_bits=two, bad_words=((4, 4), (4, 5)))
    assert may(rules) == {4, 5}
    assert may(rules, 4) == {4, 5}
    one = TokenRules(vocab_size=V, allowed_bits=two, bad_words=((4,),))
    assert may(one) == {5}
    assert may(one, unless=(5,)) == {4, 5}


def test_words_are_spelt_at_a_begin_and_behind_a_space(smollm2: TextModel) -> None:
    tokenizer = smollm2.tokenizer

    def ids(text: str) -> tuple[int, ...]:
        return tuple(tokenizer.encode(text, add_special_tokens=False))

    assert spellings("cat", tokenizer) == [ids("cat"), ids(" cat")]
    assert spellings(" \n cat", tokenizer) == [ids("cat"), ids(" cat")]
    assert len(ids(" zebra")) != len(ids("zebra"))
    assert spellings("zebra", tokenizer) == [ids("zebra")]
    assert spellings(" \n", tokenizer) == []
