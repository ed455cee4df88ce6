"""One sample's tokens in, its text out: detokenized, cut at stop strings, counted.

Must know nothing of HTTP, and decide nothing but where the text ends.
"""

from collections.abc import Sequence

import msgspec

from common.text.detokenize import Detokenizer
from common.text.stops import StopStrings


class TextDelta(msgspec.Struct, frozen=True, gc=False):
    """What some tokens added to a sample."""

    text: str  # may be shown now
    n_tokens: int  # of those pushed that belong to the sample: all, or up to the stop's last
    text_offsets: tuple[int, ...]  # of each of these: characters of the sample before its text
    stopped_on: str | None = None


class TextStream:
    """The text of one sample. Not to be shared between threads."""

    def __init__(
        self, detokenizer: Detokenizer, stops: StopStrings, *, min_tokens: int = 0
    ) -> None:
        """min_tokens  a stop string that is complete by this many tokens is ordinary text"""
        self._detokenizer = detokenizer
        self._stops = stops
        self._min_tokens = min_tokens
        self._n_chars = 0  # of all text so far, held back or not
        self.n_tokens = 0  # of the sample so far: its completion_tokens
        self.stopped_on: str | None = None

    def push(self, ids: Sequence[int], *, last_is_stop_token: bool = False) -> TextDelta:
        """Take the next tokens. Once a stop string was found, tokens are no longer the sample's.

        last_is_stop_token  the last one ended the sample: it counts, but is not text
        """
        text = ""
        offsets: list[int] = []
        n_texts = len(ids) - last_is_stop_token
        for token_id in ids:
            if self.stopped_on is not None:
                break
            self.n_tokens += 1
            offsets.append(self._n_chars)
            if len(offsets) <= n_texts:
                text += self._read(self._detokenizer.push(token_id))
        return TextDelta(text, len(offsets), tuple(offsets), self.stopped_on)

    def finish(self) -> TextDelta:
        """No more tokens will come: give out what was held back. A stop may be found even here."""
        text = ""
        if self.stopped_on is None:
            text = self._read(self._detokenizer.finish())
        if self.stopped_on is None:
            text += self._stops.flush()
        return TextDelta(text, 0, (), self.stopped_on)

    def _read(self, text: str) -> str:
        self._n_chars += len(text)
        safe, self.stopped_on = self._stops.push(text, may_stop=self.n_tokens > self._min_tokens)
        return safe
