"""Of which tokens an answer may be made, whatever it must be: vLLM's `allowed_token_ids` and
`bad_words`, as the text that workers follow. Raises ClientError. Slow where there are many words.
"""

from collections.abc import Sequence

from common.errors import ClientError
from common.text.token_rules import TokenRules, allowed_bits, spellings
from common.text.tokenizer import check_prompt_ids
from launch.gateway.api.decoding import shown
from launch.gateway.api.requests import Sampling
from launch.gateway.api.served import Served

MAX_BAD_TOKENS = 2**14  # of all words, as they are spelt: they travel with each attempt


def with_rules(
    grammar: str, request: Sampling, served: Served, end_token_ids: Sequence[int]
) -> str:
    """The grammar, and what the request says beside it. `end_token_ids`: what may end an answer."""
    allowed, words = request.allowed_token_ids, request.bad_words
    if allowed is None and not words:
        return grammar
    vocab_size = served.text.vocab_size
    bad_words = _spelt(words or (), served)
    if allowed is not None:
        check_prompt_ids(allowed, vocab_size=vocab_size, param="allowed_token_ids")
        _check_something_is_left(allowed, bad_words, request, end_token_ids)
    rules = TokenRules(
        vocab_size=vocab_size,
        allowed_bits=None if allowed is None else allowed_bits(allowed, vocab_size),
        bad_words=tuple(bad_words),
        grammar=grammar,
    )
    return rules.to_text()


def _spelt(words: Sequence[str], served: Served) -> list[tuple[int, ...]]:
    """Each spelling once."""
    spelt: dict[tuple[int, ...], None] = {}
    for n, word in enumerate(words):
        param = f"bad_words[{n}]"
        try:
            ways = spellings(word, served.text.tokenizer)
        except ClientError as error:
            raise ClientError(f"{param}: {error}", param=param) from error
        if not ways:
            raise ClientError(
                f"{param} is {shown(word)}, which is no word: leading white space does not count; "
                "use logit_bias for its tokens",
                param=param,
            )
        spelt.update(dict.fromkeys(ways))
    n_tokens = sum(map(len, spelt))
    if n_tokens > MAX_BAD_TOKENS:
        raise ClientError(
            f"bad_words make {n_tokens} tokens; at most {MAX_BAD_TOKENS}", param="bad_words"
        )
    return list(spelt)


def _check_something_is_left(
    allowed: Sequence[int],
    bad_words: Sequence[tuple[int, ...]],
    request: Sampling,
    end_token_ids: Sequence[int],
) -> None:
    left = set(allowed)
    if request.min_tokens and left <= set(end_token_ids):
        raise ClientError(
            f"allowed_token_ids has only tokens that end an answer, but min_tokens is "
            f"{request.min_tokens}",
            param="allowed_token_ids",
        )
    if left <= {word[0] for word in bad_words if len(word) == 1}:
        raise ClientError(
            "bad_words has every one of allowed_token_ids: nothing is left to say",
            param="bad_words",
        )
