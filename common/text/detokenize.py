"""Token ids to text, one at a time, as a client may see it.

Must not look at text again once it has given it out: each token costs the same.
"""

import codecs
from collections.abc import Sequence

from common.text.tokenizer import Tokenizer

_new_decoder = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """The text of one sample. Not to be shared between threads.

    All that `push` and `finish` return, joined, is what `Tokenizer.decode` gives for all the ids.
    A character is given out with the token that completes it; U+FFFD appears only for bytes that
    no later token can make a character of.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        skip_special_tokens: bool = True,
        prompt_ids: Sequence[int] = (),
    ) -> None:
        """prompt_ids  the text continues theirs: a first space is real if they have any text, and
        bytes of a character that they began are completed here"""
        vocabulary = tokenizer.vocabulary
        self._tokenizer = tokenizer
        self._hidden = vocabulary.special_ids if skip_special_tokens else frozenset[int]()
        self._decoder = _new_decoder("replace")
        tail = self._last_bytes(prompt_ids)
        self._drops_space = vocabulary.first_space_is_added and not tail
        self._decoder.decode(_unfinished(tail))

    def push(self, token_id: int) -> str:
        """The text that this token completes; often empty."""
        if token_id in self._hidden:
            return ""
        text = self._decoder.decode(self._tokenizer.bytes_of(token_id))
        return self._first(text) if self._drops_space else text

    def finish(self) -> str:
        """What an unfinished character leaves: U+FFFD or nothing. Nothing may be pushed after."""
        return self._first(self._decoder.decode(b"", final=True))

    def _first(self, text: str) -> str:
        """`text`, without the space that encoding added, if it is the first of all."""
        if self._drops_space and text:
            self._drops_space = False
            return text.removeprefix(" ")
        return text

    def _last_bytes(self, ids: Sequence[int]) -> bytes:
        """At least the last 3 bytes of their text, if there are so many."""
        tail = b""
        for token_id in reversed(ids):
            if len(tail) >= 3:
                break
            if token_id not in self._hidden:
                tail = self._tokenizer.bytes_of(token_id) + tail
        return tail


def _unfinished(tail: bytes) -> bytes:
    """The last bytes of `tail` that a valid character could begin with."""
    for n_bytes in (3, 2, 1):
        begun = tail[-n_bytes:]
        if len(begun) == n_bytes and not _new_decoder("replace").decode(begun):
            return begun
    return b""
