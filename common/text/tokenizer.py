"""Text to token ids and back, for any model, over the `tokenizers` library.

Encoding is the library's. Decoding is ours: every id stands for fixed bytes, and a text is the
bytes of its ids read as UTF-8, so that the same text can be had one token at a time
(`detokenize`). Must not read files: `gguf_tokenizer` and `hf_tokenizer` build it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import tokenizers

from common.errors import ClientError


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What ids stand for."""

    token_bytes: tuple[bytes, ...]  # by id; b"" where an id has no token, or one that is unused
    special_ids: frozenset[int]  # tokens that are not text: left out of what a client sees
    first_space_is_added: bool  # encoding puts a space before a text, so decoding takes it away
    special_tokens: Mapping[str, str] = field(default_factory=dict[str, str])
    """Role -> spelling, for chat templates: bos_token, eos_token, unk_token, pad_token, ..."""


class Tokenizer:
    """Immutable once built. Every method may be called from any thread; `encode` frees the GIL."""

    def __init__(self, backend: tokenizers.Tokenizer, vocabulary: Vocabulary) -> None:
        backend.no_truncation()  # a tokenizer.json may ask for either, in silence
        backend.no_padding()
        self._backend = backend
        self.vocabulary = vocabulary
        self._longest_token_bytes = max(map(len, vocabulary.token_bytes), default=1)

    @property
    def vocab_size(self) -> int:
        """Ids are 0 .. vocab_size - 1. The model may have more rows than this."""
        return len(self.vocabulary.token_bytes)

    def special_token_id(self, role: str) -> int | None:
        """The id of a role that templates know, such as eos_token, if there is such a token."""
        spelling = self.vocabulary.special_tokens.get(role)
        return None if spelling is None else self._backend.token_to_id(spelling)

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Ids of `text`. Spellings of special tokens in it become those tokens.

        That is what llama.cpp's server and vLLM do with prompts: a client can write a turn's end.
        add_special_tokens  also put in what the model wants around a prompt (BOS, EOS); False for
                            a rendered chat, whose template has written them
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ClientError(f"the text is not valid Unicode: {error.reason}") from error
        # `encode` would hold the GIL; a batch of one does not.
        batch = self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        return batch[0].ids

    def decode(
        self, ids: Sequence[int], *, skip_special_tokens: bool, continues_text: bool = False
    ) -> str:
        """The text of `ids`; every part that is not UTF-8 becomes U+FFFD.

        continues_text  other text stands before: a leading space is real, and stays
        """
        text = b"".join(
            self.bytes_of(token_id)
            for token_id in ids
            if not (skip_special_tokens and token_id in self.vocabulary.special_ids)
        ).decode("utf-8", "replace")
        if self.vocabulary.first_space_is_added and not continues_text:
            return text.removeprefix(" ")
        return text

    def bytes_of(self, token_id: int) -> bytes:
        """The bytes that an id stands for: part of a character, perhaps. Empty: it has no token.

        Models often have more rows than tokens, so an id past the end is not an error; a negative
        one is.
        """
        if token_id < 0:
            raise ValueError(f"token id {token_id} is negative")
        if token_id >= len(self.vocabulary.token_bytes):
            return b""
        return self.vocabulary.token_bytes[token_id]

    def text_of(self, token_id: int) -> str:
        """One token by itself, as logprobs name it; U+FFFD for part of a character."""
        return self.bytes_of(token_id).decode("utf-8", "replace")

    def fewest_tokens(self, text: str) -> int:
        """No encoding of `text` has fewer tokens: lets a hopeless prompt be refused unencoded.

        Holds where encoding keeps every byte; a normalizer that shortens text breaks it by little.
        """
        return -(-len(text.encode("utf-8", "replace")) // self._longest_token_bytes)


def check_prompt_ids(ids: Sequence[int], *, vocab_size: int, param: str = "prompt") -> None:
    """Raise `ClientError` if a client's ids are not all rows of the model."""
    if not ids or (min(ids) >= 0 and max(ids) < vocab_size):
        return
    for position, token_id in enumerate(ids):
        if not 0 <= token_id < vocab_size:
            raise ClientError(
                f"token id {token_id} at position {position} is out of range: this model's ids are "
                f"0 to {vocab_size - 1}",
                param=param,
            )
